"""Kernels that are borrowed: what changes in them on another device, and how far off they then are.

Parameters that are ratios to a datasheet travel as they are, times of a die as those of the nearest. Two
others change with the chip:

- What a multiprocessor does beside its matrix unit takes as long where that unit is slower, so that less of
  its peak is lost: of H20, whose multiprocessors are H100's with a fifth of the matrix rate, nearly nothing.
  Where the unit is faster, libraries hide more as well, and the share stays.
- A block of decoding that is alone draws as many bytes a second as it can have on their way, whatever share
  of the memory's bandwidth that is.

Vendors' datasheets are not equally near to what their software reaches: of AMD's, products reach 0.3 to 0.5
of the matrix peak where NVIDIA's reach 0.7 (docs/results.md). So another vendor's kernels keep to their
shares as far as products do on the two.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from llmir.hw import Device, transfer

from .kernels import KERNELS, Decode, Gemm, GemmShape, Kernel, LowGemm, parameters
from .relatives import relation

MATRIX = {"rate", "matrix"}  # shares of the matrix peak, by the names that kernels have for them
# A chip whose matrix units are below two thirds of those that were measured, clock for clock, is not kept
# from them by its power: H20 has 400 W for 148 TFLOP/s, H100 700 for 989.
CUT = 2 / 3


class Reached(NamedTuple):
    """Shares of the datasheet's rates that products reach; of two devices, one's beside the other's."""

    matrix: float
    memory: float


ALIKE = Reached(1.0, 1.0)
# Products by which vendors are compared, with their dtype and bits of both operands.
PRODUCTS = {
    "gemm_bf16": ("bf16", 16),
    "gemm_fp8": ("fp8", 8),
    "gemm_fp8_block": ("fp8", 8),
    "gemm_int8": ("int8", 8),
}


def carried(kernel: Kernel, device: Device, other: Device, reached: Reached = ALIKE) -> Kernel:
    """A kernel of `other` as it is on `device`; `reached` says what products do there, beside other's."""
    slower = min(1.0, _beside(device) / _beside(other))
    values = dict(vars(kernel))
    for name in MATRIX & values.keys():
        values[name] = reached.matrix * _share(values[name], slower)
    if slower < CUT and "sustained" in values:
        values["sustained"] = 1.0
    if "bandwidth" in values:
        values["bandwidth"] *= reached.memory
    if isinstance(kernel, Decode):
        values["alone"] *= _drawn(device) / _drawn(other)
    inside = {p.name: min(max(values[p.name], p.low), p.high) for p in parameters(type(kernel))}
    return (LowGemm if slower < CUT and type(kernel) is Gemm else type(kernel))(**inside)


def reached(kernel: Gemm, device: Device, family: str) -> Reached:
    """Shares of the device's rates that a large product reaches at home, and one of a single row."""
    dtype, bits = PRODUCTS[family]
    large = GemmShape(m=8192, n=8192, k=8192, x_bits=bits, w_bits=bits, dtype=dtype)
    single = replace(large, m=1, n=16384, k=16384)
    flops, moved = 2 * 8192**3, 16384**2 * bits / 8
    return Reached(
        flops / device.matrix_peak(dtype)[0] / float(kernel.seconds(device, large)),
        moved / device.memory_Bps / float(kernel.seconds(device, single)),
    )


def _share(share: float, slower: float) -> float:
    """Of the peak of a unit that is so much slower, where what is beside it takes as long.

    >>> _share(0.8, 1.0), _share(0.5, 0.25)
    (0.8, 0.8)
    """
    return share / (share + (1 - share) * slower)


def _beside(device: Device) -> float:
    """What the matrix units do in the time of an fp32 FLOP."""
    return device.matrix_peak("bf16")[0] / device.vector_flops["fp32"]


def _drawn(device: Device) -> float:
    """Bandwidth of a multiprocessor's share."""
    return device.memory_Bps / (device.multiprocessors or 1)


@lru_cache(maxsize=4096)
def of_device(device: Device, other: Device, family: str) -> float:
    """What a kernel of `other` is more off on `device`: a mean relative error; 0 of its own."""
    return 0.0 if device == other else _of(relation(device, other), family)


def of_engine(family: str) -> float:
    """What another engine's kernel is more off than the engine's own."""
    return _of(transfer.ENGINE, family)


def _of(relation: str, family: str) -> float:
    known = transfer.table()[relation]
    group = KERNELS[family].group
    return known.get(group) or max(known.values())


def together(*errors: float) -> float:
    """Of errors that know nothing of each other: the root of the sum of their squares.

    >>> together(0.03, 0.04), together(0.1, 0.0)
    (0.05, 0.1)
    """
    return math.hypot(*errors)
