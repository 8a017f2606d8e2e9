"""Latent attention of one rank: the core, naive or absorbed, and the products that absorb the expansion."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Column, Table
from llmir.backends.silicon.sources import known
from llmir.build import Builder
from llmir.errors import InputError
from llmir.frozen import FrozenDict
from llmir.graph import Program, Value

from .table import MORE, WHOSE, Kernels, columns

TYPES, PRODUCTS = known()["types"], known()["products"]
LATENT, ROTARY, HEAD = 512, 64, 128  # of DeepSeek-V2 and V3, of which all rows are
_PRODUCTS = {"mla_gen_pre": "t g u, l g u -> t g l", "mla_gen_post": "t g l, l g u -> t g u"}


@lru_cache(maxsize=64)
def core(dtype: str, kv: str, form: str) -> Program:
    """q of `b` sequences with `t` new tokens and `g` heads, over caches of `c` tokens."""
    if dtype not in TYPES or (kv or dtype) not in TYPES:
        raise InputError(f"dtype {dtype!r} with {kv!r} of an attention is not known")
    q_type, kv_type = TYPES[dtype], TYPES[kv or dtype]
    b = Builder()
    head = LATENT if form == "absorbed" else HEAD
    q = b.input(f"{q_type}[b, t, g, {head}]", name="q")
    q_rope = b.input(f"{q_type}[b, t, g, {ROTARY}]", name="q_rope")
    k_rope = b.cache(f"{kv_type}[b, c, {ROTARY}]", name="k_rope")
    if form == "absorbed":
        held: tuple[Value, ...] = (b.cache(f"{kv_type}[b, c, {LATENT}]", name="latents"), k_rope)
    else:
        k, v = (b.input(f"{q_type}[b, c, g, {HEAD}]", name=n) for n in "kv")
        held = (k, k_rope, v)
    b.output(b.latent_attention(q, q_rope, *held, mask="causal", name="o"))
    return Program(f"latent attention {dtype} {kv} {form}", {"main": b.graph()})


@lru_cache(maxsize=64)
def product(dtype: str, scope: str) -> Program:
    """The product of `t` tokens' queries with what expands keys, or of latents with what expands values."""
    if dtype not in PRODUCTS:
        raise InputError(f"dtype {dtype!r} of a product is not known")
    x_type, w_type = PRODUCTS[dtype]
    x_size = HEAD if scope == "mla_gen_pre" else LATENT
    b = Builder()
    x = b.input(f"{x_type}{'.mmk' if 'fp8' in x_type else ''}[t, g, {x_size}]", name="x")
    roles = {"mla_gen_pre": ".nbk", "mla_gen_post": ".kbn"}[scope] if "fp8" in w_type else ""
    w = b.weight(f"{w_type}{roles}[{LATENT}, g, {HEAD}]", name="w")
    to = "bf16" if x_type.startswith("fp8") else ""
    b.output(b.linear(x, w, einsum=_PRODUCTS[scope], to=to, name="product"))
    return Program(f"{scope} {dtype}", {"main": b.graph()})


class Latent(Kernels):
    """New tokens of uniform sequences; `context` counts those before too. Of products `batch` is tokens."""

    name = "mla"
    numbers = columns("batch", "q_len", "num_heads", context=Column(low=0))
    words = (*WHOSE, "dtype", "phase", "scope")
    more = ("kv_dtype", *MORE)
    key = ("dtype", "kv_dtype", "scope", "timed")
    symbols = FrozenDict(b="batch", g="num_heads", c="context")
    groups = ("num_heads", "context")
    finer = ("batch",)
    variants = True
    fits = ("mla_",)

    def program(self, *key: Any) -> Program:
        """One op."""
        dtype, kv, scope, timed = key
        if scope in _PRODUCTS:
            return product(dtype, scope)
        if scope != "attn_core":
            raise InputError(f"scope {scope!r}: a whole block is not one kernel; attn_core and products are")
        return core(dtype, kv, timed or "naive")

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Of a product, tokens and heads."""
        new = np.where(rows["phase"] == "bmm", rows["batch"], rows["q_len"])
        return {**super().sizes(rows), "t": new}

    def kinds(self, rows: Table) -> Array:
        """By phase, and what the whole block is of."""
        block = np.array([str(scope).startswith("module") for scope in rows["scope"]], dtype=bool)
        return np.where(block, "mla_block_", "mla_").astype(object) + rows["phase"]
