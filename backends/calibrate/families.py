"""Which measured rows each family of kernels is fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmir.backends.cost.kernels import KERNELS, GemmShape, Kernel, Shape, StreamShape
from llmir.errors import InputError

from .rows import LATENCY, Column, Table

TURNS = 5  # weights that the benchmarks of the tables use in turn, so that the L2 should hold none


@dataclass(frozen=True)
class Family:
    """A name in `calibration:`, the kernel it calibrates, and the rows that it is fitted to.

    `where` gives the words that a row of it has; rows alike in the columns `group` are left out together.
    """

    name: str
    kind: str
    file: str
    columns: Mapping[str, Column]
    group: Sequence[str]
    shape: Callable[[Table], Shape]
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ("gpu", "framework", "source")

    @property
    def kernel(self) -> type[Kernel]:
        """What is calibrated."""
        return KERNELS[self.name]


def _gemm(name: str, dtypes: Sequence[str], dtype: str, x: float, w: float) -> Family:
    def shape(t: Table) -> GemmShape:
        return GemmShape(t["m"], t["n"], t["k"], x_bits=x, w_bits=w, dtype=dtype, turns=TURNS)

    columns = {**{size: Column() for size in "mnk"}, **LATENCY}
    return Family(name, "gemm", "gemm.csv", columns, ("n", "k"), shape, {"dtype": dtypes})


def _stream(name: str, ops: Sequence[str], group: str) -> Family:
    def shape(t: Table) -> StreamShape:
        return StreamShape(t["rows"], t["bytes_moved_ideal"])

    columns = {"rows": Column(), "cols": Column(), "bytes_moved_ideal": Column(high=1e13)} | LATENCY
    return Family(name, "elementwise", "elementwise.csv", columns, (group,), shape, {"op": ops})


# Bits of an element with its share of scales: one in fp32 for each 128 (fp8_block), one in 8 bits for each 16
# (nvfp4), one in 16 bits for each 128 of int4.
_FAMILIES = (
    _gemm("gemm_bf16", ("bfloat16", "float16"), "bf16", 16, 16),
    _gemm("gemm_fp8", ("fp8",), "fp8", 8, 8),
    _gemm("gemm_fp8_block", ("fp8_block",), "fp8", 8.25, 8),
    _gemm("gemm_nvfp4", ("nvfp4",), "nvfp4", 4.5, 4.5),
    _gemm("gemm_int8", ("sq",), "int8", 8, 8),
    _gemm("gemm_int8_weights", ("int8_wo",), "bf16", 16, 8),
    _gemm("gemm_int4_weights", ("int4_wo",), "bf16", 16, 4.125),
    _stream("rms_norm", ("rms_norm",), "rows"),
    _stream("layer_norm", ("input_layernorm", "layernorm"), "rows"),
    _stream("softmax", ("softmax",), "rows"),
    _stream("add", ("add",), "rows"),
    _stream("activation", ("mlp_act", "gelu"), "cols"),
    _stream("rope", ("attn_rope",), "cols"),
    _stream("quantize", ("scale_matrix",), "cols"),
)
FAMILIES: dict[str, Family] = {f.name: f for f in _FAMILIES}


def families(name: str | None = None) -> list[Family]:
    """The family of that name, or all of a kind, or all; InputError for a name that is neither."""
    found = [f for f in _FAMILIES if name in (None, f.name, f.kind)]
    if not found:
        known = [*dict.fromkeys(f.kind for f in _FAMILIES), *FAMILIES]
        raise InputError(f"unknown family {name!r}, known are {', '.join(known)}")
    return found
