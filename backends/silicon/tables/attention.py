"""Tables of flash attention on one rank: causal, with or without a window; and of encoders."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table, known_sources
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder

from .table import MORE, WHOSE, KernelTable, columns

TYPES = known_sources()["types"]
HEADS = ("num_heads", "num_kv_heads", "head_dim")


@lru_cache(maxsize=256)
def attention(dtype: str, kv: str, mask: str, keys: str = "c") -> Program:
    """Attention of `b` sequences with `t` new tokens, with `g`·`r` heads of size `d`, over `keys`: `t` keys,
    or a cache of `c`.
    """
    if dtype not in TYPES or (kv or dtype) not in TYPES:
        raise InputError(f"dtype {dtype!r} with {kv!r} of an attention is not known")
    q_type, kv_type = TYPES[dtype], TYPES[kv or dtype]
    b = Builder()
    q = b.input(f"{q_type}[b, t, g, r, d]", name="q")
    k, v = (b.cache(f"{kv_type}[b, {keys}, g, d]", name=n) for n in "kv")
    to = "bf16" if q_type in ("fp8_e4m3", "int8") else ""
    b.output(b.flash_attention(q, k, v, mask=mask, to=to, name="o"))
    return Program(f"attention {dtype} {kv}", {"main": b.graph()})


def prompts(rows: Table) -> Array:
    """The symbol of the number of keys of each row: `t` for prompts without cached tokens, otherwise `c`."""
    return np.where(rows["context"] == rows["q_len"], "t", "c").astype(object)


class AttentionTable(KernelTable):
    """Attention of uniform sequences. `context` counts cached and new tokens."""

    name = "attention"
    numbers = columns("batch", "q_len", "context", *HEADS, window=Column(low=0, empty=0))
    words = (*WHOSE, "dtype")
    more = ("kv_dtype", *MORE)
    key = ("dtype", "kv_dtype", "window", "keys")
    symbols = FrozenDict(b="batch", t="q_len", c="context", g="num_kv_heads", d="head_dim")
    groups = HEADS
    finer = ("batch",)
    variants = True

    def program(self, *key: Any) -> Program:
        dtype, kv, window, keys = key
        return attention(dtype, kv, f"window({int(window)})" if window else "causal", keys)

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """Prompts without cached tokens attend only to their own keys."""
        return Table({**rows.columns, "keys": prompts(rows)})

    def sizes(self, rows: Table) -> dict[str, Array]:
        return {**super().sizes(rows), "r": rows["num_heads"] / rows["num_kv_heads"]}

    def row_kinds(self, rows: Table) -> Array:
        """Decode for one token after cached tokens, otherwise prefill, including prompts of one token."""
        decodes = (rows["q_len"] == 1) & (rows["context"] > 1)
        return np.where(decodes, "attention_decode", "attention_prefill").astype(object)

    def invalid_rows(self, rows: Table) -> dict[str, Array]:
        return {
            "num_kv_heads does not divide num_heads": rows["num_heads"] % rows["num_kv_heads"] > 0,
            "context is past + q_len, so it is not below q_len": rows["context"] < rows["q_len"],
        }


class EncoderTable(KernelTable):
    """Full attention: each token attends to all tokens."""

    name = "attention_encoder"
    numbers = columns("batch", "q_len", "num_heads", "head_dim")
    words = (*WHOSE, "dtype")
    more = MORE
    key = ("dtype",)
    symbols = FrozenDict(b="batch", t="q_len", g="num_heads", d="head_dim")
    groups = ("num_heads", "head_dim")
    variants = True

    def program(self, *key: Any) -> Program:
        return attention(*key, "", "full", "t")

    def sizes(self, rows: Table) -> dict[str, Array]:
        return {**super().sizes(rows), "r": np.ones(len(rows))}
