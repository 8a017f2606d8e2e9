"""Which measured rows a family of kernels is fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llmir.backends.cost.kernels import Gemm, GemmShape, Kernel, Shape

from .rows import LATENCY, Column, Table

SIZES = ("m", "n", "k")


@dataclass(frozen=True)
class Family:
    """A name in `calibration:`, the kernel it calibrates, and the rows that it is fitted to.

    `where` gives the words that a row of it has; rows alike in the columns `group` are left out together.
    """

    name: str
    kind: str
    file: str
    kernel: type[Kernel]
    columns: Mapping[str, Column]
    group: Sequence[str]
    shape: Callable[[Table], Shape]
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Sequence[str] = ("gpu", "framework")


def _gemm(
    name: str, dtypes: Sequence[str], dtype: str, bits: tuple[float, float], quantizes: bool = False
) -> Family:
    x, w = bits

    def shape(t: Table) -> GemmShape:
        return GemmShape(t["m"], t["n"], t["k"], x_bits=x, w_bits=w, dtype=dtype, quantizes=quantizes)

    columns = {**{s: Column() for s in SIZES}, **LATENCY}
    return Family(name, "gemm", "gemm.csv", Gemm, columns, ("n", "k"), shape, {"dtype": dtypes})


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        _gemm("gemm_bf16", ("bfloat16", "float16"), "bf16", (16, 16)),
        _gemm("gemm_fp8", ("fp8",), "fp8", (8, 8), quantizes=True),
    )
}
