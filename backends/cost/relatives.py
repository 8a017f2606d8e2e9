"""Whose kernels a GPU that was not measured borrows: the nearest measured one's, and how far off that is."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from llmir import hw
from llmir.hw import Device

# Multiprocessors of a GPU at least (GeForce RTX 3050 laptop: 16). A TPU has one or two large cores.
FEWEST = 16

# What borrowing adds to a kernel's mean relative error (`python benchmarks/transfer.py DIR`): each of A100,
# H100, B200 and L40S predicted by the others' kernels and its own datasheet, less the error of its own
# kernels, the mean of products, attention, experts, collectives and streams.
SAME_ISA = 0.12  # no two of these share one: what products alone lose between generations
SAME_MEMORY = 0.21  # A100, H100 and B200, MI300X and MI355X, with HBM
SAME_VENDOR = 0.53  # these and L40S, with GDDR
# What whole runs of vLLM on AMD's MI250 are off when NVIDIA's A100 predicts its attention is 0.45
# (docs/results.md, "Predictions against measurements"); no less than within a vendor.
OTHER_VENDOR = 0.53


def nearness(device: Device, other: Device) -> tuple[float, ...]:
    """How far a measured GPU is from another, compared from left to right.

    Another vendor's is farthest. Then kernels are compiled for an instruction set; then chips with memory in
    stacks (HBM) are made for data centers and those with GDDR for graphics, whatever their generation is
    called: of sm_120 with GDDR7, sm_89 with GDDR6 is nearer than sm_100 with HBM3e.
    """
    ours, theirs = device.matrix_peak("bf16")[0], other.matrix_peak("bf16")[0]
    abroad = device.vendor != other.vendor
    return (
        abroad,
        device.isa != other.isa,
        _technology(device) != _technology(other),
        0 if abroad else abs(_generation(device) - _generation(other)),
        not abroad and device.memory_kind != other.memory_kind,
        abs(math.log(ours / theirs)),  # the chip's; memory varies among products of one chip
    )


@lru_cache(maxsize=1024)
def borrowing(device: Device, other: Device) -> float:
    """What is added to the mean relative error of a kernel of `other` on `device`."""
    abroad, generations, technologies, *_ = nearness(device, other)
    if abroad:
        return OTHER_VENDOR
    return SAME_VENDOR if technologies else SAME_MEMORY if generations else SAME_ISA


@lru_cache(maxsize=256)
def relatives(device: Device) -> tuple[Device, ...]:
    """The measured bundled GPUs other than this one, the nearest first; a device that is no GPU has none."""
    if (device.multiprocessors or 0) < FEWEST:
        return ()
    known = (hw.load(name) for name in hw.measured())
    return tuple(sorted((d for d in known if d != device), key=lambda other: nearness(device, other)))


@lru_cache(maxsize=256)
def kernels_of(device: Device) -> Device | None:
    """Whose kernels are taken: the nearest device's with an engine's, its own if it was measured; or None.

    Where a library's alone were measured on a nearer one, those go before.
    """
    whole = (d for d in (device, *relatives(device)) if d.calibration and not d.calibration.partial)
    return next(whole, None)


def _technology(device: Device) -> str:
    """HBM, GDDR or DDR: the letters that a kind of memory begins with."""
    found = re.match("[A-Z]+", device.memory_kind.upper())
    return found[0] if found else ""


def _generation(device: Device) -> int:
    """The number in an instruction set's name, which AMD counts in hexadecimal (gfx90a)."""
    found = re.search("[0-9a-f]+$", device.isa.lower())
    return int(found[0], 16) if found else 0
