"""Kernels that are borrowed: what changes in them on another device, and how far off they then are.

Parameters that are ratios to a datasheet travel as they are, times of a die as those of the nearest. Three
others change with the chip, as each kernel says of its own (`Kernel.moved`):

- What a multiprocessor does beside its matrix unit takes as long where that unit is slower, so that less of
  its peak is lost: of H20, whose multiprocessors are H100's with a fifth of the matrix rate, nearly nothing.
  Where the unit is faster, libraries hide more as well, and the share stays.
- A power limit allows as many products a clock as there, which a slower unit may not need: H20 has 400 W for
  148 TFLOP/s, H100 700 for 989.
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

from llmir.backends.kernels.base import KERNELS, Kernel, Travel, parameters
from llmir.backends.kernels.gemm import Gemm, GemmShape
from llmir.hw import library, transfer
from llmir.hw.device import Device
from llmir.ir.sizes.atoms import maximum, minimum

from .relatives import relation


class Reached(NamedTuple):
    """Shares of the datasheet's rates that products reach; of two devices, one's beside the other's."""

    matrix: float
    memory: float


ALIKE = Reached(1.0, 1.0)
# Products by which vendors are compared, with the bits of both operands.
PRODUCTS = {"gemm_bf16": 16, "gemm_fp8": 8, "gemm_fp8_block": 8, "gemm_int8": 8}


def carried(
    kernel: Kernel, device: Device, other: Device, reached: Reached = ALIKE, dtype: str = "bf16"
) -> Kernel:
    """A kernel of `other` as it is on `device`, where it computes in this dtype.

    `reached` says what products do there, beside other's.
    """
    travel = Travel(device, other, dtype, reached.matrix, reached.memory)
    kind, values = type(kernel), kernel.moved(travel)
    kind = kind if device == other else kind.elsewhere()
    return kind(**{p.name: minimum(maximum(values[p.name], p.low), p.high) for p in parameters(kind)})


def computes(family: str) -> str:
    """The dtype of a family's products, as its name says.

    >>> computes("gemm_fp8_block"), computes("gemm_int8_weights"), computes("moe_nvfp4")
    ('fp8', 'bf16', 'fp4')
    """
    parts = family.split("_")
    named = {"fp32": "fp32", "fp8": "fp8", "nvfp4": "fp4", "int8": "int8"}
    return "bf16" if parts[-1] == "weights" else next((named[p] for p in parts if p in named), "bf16")


def reached(kernel: Gemm, device: Device, family: str) -> Reached:
    """Shares of the device's rates that a large product reaches at home, and one of a single row."""
    dtype, bits = computes(family), PRODUCTS[family]
    large = GemmShape(m=8192, n=8192, k=8192, x_bits=bits, w_bits=bits, dtype=dtype)
    single = replace(large, m=1, n=16384, k=16384)
    flops, moved = 2 * 8192**3, 16384**2 * bits / 8
    return Reached(
        flops / device.matrix_peak(dtype)[0] / float(kernel.seconds(device, large)),
        moved / device.memory_Bps / float(kernel.seconds(device, single)),
    )


@lru_cache(maxsize=4096)
def of_device(device: Device, other: Device, family: str) -> float:
    """What a kernel of `other` is more off on `device`: a mean relative error; 0 of its own.

    Of a device whose file states other rates than it was measured with, as of one of the same die.
    """
    if device == other:
        home = measured_with(device, family)
        return _of(relation(device, home), family) if home else 0.0
    return _of(relation(device, other), family)


def of_rates(device: Device, other: Device, family: str) -> float:
    """What of that no whole run has in it, where the two have one chip: by rates that its file states alone.

    Runs were of devices as they are, and of those that differ in memory; a file may state what is no longer
    of one die.
    """
    if device == other:
        return of_device(device, other, family)
    apart = relation(device, other) == transfer.SAME_SM
    least, most = (_of(kind, family) for kind in (transfer.SAME_DIE, transfer.SAME_SM))
    return math.sqrt(max(0.0, most**2 - least**2)) if apart else 0.0


def measured_with(device: Device, family: str) -> Device | None:
    """The bundled device that a kernel was measured on, where a file that extends it states other rates.

    Of links for collectives, and for all else of the chip and its memory.
    """
    if device.own_calibration or not device.measured_as:
        return None
    home = library.load(device.measured_as)
    if KERNELS[family].group == "collectives":
        pairs = ((link, device.links.get(name)) for name, link in home.links.items())
        return home if any(there and here.Bps != there.Bps for here, there in pairs) else None
    ours, theirs = ((d.matrix_flops, d.vector_flops, d.memory_Bps) for d in (device, home))
    return home if ours != theirs else None


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
