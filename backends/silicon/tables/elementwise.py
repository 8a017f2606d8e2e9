"""Tables of kernels that read and write rows: norms, activations, sums, rope, quantization."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from llmir.backends.silicon.rows import Array, Table
from llmir.base.errors import InputError
from llmir.hw.device import Device
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder

from .attention import TYPES
from .table import MORE, WHOSE, KernelTable, columns

FP8 = "fp8_e4m3_t"
NARROWS = ("scale_matrix", "static", "rms_norm_quant_fp8")  # the dtype column may be that of the result
Build = Callable[..., Any]


def _row(op: str, operands: int = 1, weights: int = 0, **options: Any) -> Build:
    """An op on `m` rows of `n` values."""

    def build(b: Builder, type: str, turns: int) -> Value:
        x = [b.input(f"{type}[m, n]", name=f"x{i}") for i in range(operands)]
        w = [b.weight(f"{type}[n]", name=f"w{i}", turns=turns) for i in range(weights)]
        found = getattr(b, op)(*x, *w, **options)
        return found if isinstance(found, Value) else found[0]

    return build


def _rope(b: Builder, type: str, turns: int) -> Value:
    """The rotary embedding of the query and key heads of `m` tokens, with `n` values in total."""
    return b.rope(b.input(f"{type}[1, m, n]", name="x"))


def _appended(b: Builder, type: str, turns: int) -> Value:
    """Rotary embedding and cache write of `n` values each of queries, keys and values."""
    q = b.input(f"{type}[1, m, 1, 1, n]", name="q")
    k, v = (b.input(f"{type}[1, m, 1, n]", name=name) for name in "kv")
    caches = (b.cache(f"{type}[1, p, 1, n]", name=f"{name}_cache") for name in "kv")
    return b.rope_append(q, k, v, *caches)[0]


def _apart(b: Builder, type: str, turns: int) -> Value:
    """Two kernels: the rotary embedding of queries and keys, and the cache write of keys and values."""
    b.output(b.rope(b.input(f"{type}[1, m, 2, n]", name="qk")))
    return b.append(
        b.cache(f"{type}[1, p, 2, n]", name="kv_cache"), b.input(f"{type}[1, m, 2, n]", name="kv")
    )


# Builders by the op name of a table. A gelu has the bytes of any activation of one operand.
OPS: dict[str, Build] = {
    "add": _row("add", 2),
    "rms_norm": _row("rms_norm", weights=1),
    "add_rms_norm": _row("add_rms_norm", 2, 1),
    "rms_norm_quant_fp8": _row("rms_norm_quantize", weights=1, to=FP8, static=True),
    "layernorm": _row("layer_norm", weights=2),
    "input_layernorm": _row("layer_norm", weights=2),
    "softmax": _row("softmax"),
    "mlp_act": _row("silu_mul", 2),
    "gelu": _row("silu"),
    "attn_rope": _rope,
    "rope_append": _appended,
    "rope+append": _apart,
    "scale_matrix": _row("quantize", to=FP8),
    "static": _row("quantize", to=FP8, static=True),
}


class ElementwiseTable(KernelTable):
    """Ops on `rows` rows with `cols` values. A row contains the values of all heads of a token."""

    name = "elementwise"
    numbers = columns("rows", "cols")
    words = (*WHOSE, "dtype", "op")
    more = (*MORE, "timing")
    key = ("timed", "dtype", "turns")

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The op that was timed is the op of the table, unless its source states another one."""
        timed = np.where(rows["timed"] == "", rows["op"], rows["timed"])
        return Table({**rows.columns, "timed": timed, "turns": np.nan_to_num(rows["turns"])})

    def program(self, *key: Any) -> Program:
        return elementwise(*key)

    def sizes(self, rows: Table) -> dict[str, Array]:
        """Rows and columns. If a row is a rope with a cache write, a third of its columns each are queries,
        keys and values.
        """
        each = rows["cols"] / np.where(rows["op"] == "rope_append", 3, 1)
        return {"m": rows["rows"], "n": each, "p": np.ones(len(rows))}

    def held_out_groups(self, rows: Table) -> list[tuple[Any, ...]]:
        """Rows are grouped by width; ops with a scale or sum per row are grouped by the number of rows, if it
        differs.
        """
        by_rows = np.array([op in ("softmax", "add") or "norm" in op for op in rows["op"]])
        by_rows &= len(set(rows["rows"])) > 1
        return list(zip(by_rows, np.where(by_rows, rows["rows"], rows["cols"]), strict=True))


@lru_cache(maxsize=256)
def elementwise(timed: str, dtype: str, turns: int = 0) -> Program:
    """The program of a timed op; for quantization, the dtype of the table is that of the result."""
    if timed not in OPS:
        raise InputError(f"no op is a {timed!r}")
    type = "bf16" if timed in NARROWS and dtype == "fp8" else TYPES.get(dtype, "")
    if not type:
        raise InputError(f"dtype {dtype!r} of an elementwise op is not known")
    b = Builder()
    b.output(OPS[timed](b, type, int(turns)))
    return Program(timed, {"main": b.graph()})
