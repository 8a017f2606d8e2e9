"""Whose kernels a GPU that was not measured borrows: the nearest measured one's, and what both share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.transfer import OTHER_MEMORY, OTHER_SM, OTHER_VENDOR, SAME_DIE, SAME_SM

# Multiprocessors of a GPU at least (GeForce RTX 3050 laptop: 16). A TPU has one or two large cores.
FEWEST = 16

# A multiprocessor's matrix rate within this ratio: of one die, however many of them are enabled. Clocks of
# one die's products differ by up to 13% (H100's PCIe card and module); the nearest two dies of one
# instruction set by 22% (L4 and L40S).
DIE = 1.15


def nearness(device: Device, other: Device) -> tuple[float, ...]:
    """How far a measured GPU is from another, compared from left to right.

    Another vendor's is farthest. Then kernels are compiled for an instruction set; then chips with memory in
    stacks (HBM) are made for data centers and those with GDDR for graphics, whatever their generation is
    called: of sm_120 with GDDR7, sm_89 with GDDR6 is nearer than sm_100 with HBM3e. Of other vendors' chips
    those of its time are nearest, as the narrowest floats tell that both multiply. No rate tells, so that a
    file with one raised has the same kernels.
    """
    abroad = device.vendor != other.vendor
    return (
        abroad,
        device.isa != other.isa,
        _technology(device) != _technology(other),
        0 if abroad else abs(_generation(device) - _generation(other)),
        not abroad and device.memory_kind != other.memory_kind,
        abs(math.log2(_narrowest(device) / _narrowest(other))),
    )


@lru_cache(maxsize=1024)
def relation(device: Device, other: Device) -> str:
    """What two GPUs have in common, one of `hw.transfer.RELATIONS`.

    Of one instruction set they are of one die where a multiprocessor's matrix unit is as fast: H200 and H100,
    A30 and A100, but not H20, whose units are a fifth of H100's.
    """
    abroad, generations, technologies, *_ = nearness(device, other)
    if abroad or technologies or generations:
        return OTHER_VENDOR if abroad else OTHER_MEMORY if technologies else OTHER_SM
    ours, theirs = (d.matrix_peak("bf16")[0] / (d.multiprocessors or 1) for d in (device, other))
    return SAME_DIE if max(ours, theirs) <= DIE * min(ours, theirs) else SAME_SM


@lru_cache(maxsize=256)
def relatives(device: Device) -> tuple[Device, ...]:
    """The measured bundled GPUs other than this one, the nearest first; a device that is no GPU has none."""
    if (device.multiprocessors or 0) < FEWEST:
        return ()
    others = (library.load(name) for name in library.measured() if name != device.measured_as)
    return tuple(sorted(others, key=lambda other: nearness(device, other)))


def by_nearness(device: Device) -> Iterator[Device]:
    """The device itself, then its relatives, whose files are read only if they are asked for."""
    yield device
    yield from relatives(device)


@lru_cache(maxsize=256)
def kernels_of(device: Device) -> Device | None:
    """Whose kernels are taken: the nearest device's with an engine's, its own if it was measured; or None.

    Where a library's alone were measured on a nearer one (`libraries_of`), those go before.
    """
    whole = (d for d in by_nearness(device) if d.calibration and not d.calibration.partial)
    return next(whole, None)


@lru_cache(maxsize=256)
def on_own_chip(device: Device) -> bool:
    """Whether its kernels are its own, or of a GPU that differs in memory alone: hosts are fitted on such."""
    found = kernels_of(device)
    alike = device.isa, device.multiprocessors
    return found is not None and (found.isa, found.multiprocessors) == alike


@lru_cache(maxsize=256)
def libraries_of(device: Device) -> tuple[Device, ...]:
    """The GPUs nearer than `kernels_of` on which a library was measured alone, the nearest first."""
    measured = (d for d in by_nearness(device) if d.calibration)
    return tuple(takewhile(lambda d: d.calibration and d.calibration.partial, measured))


def _narrowest(device: Device) -> int:
    """Bits of the narrowest floats that its matrix units multiply."""
    return min(int(name[2:]) for name in ("bf16", *device.matrix_flops) if not name.startswith("int"))


def _technology(device: Device) -> str:
    """HBM, GDDR or DDR: the letters that a kind of memory begins with."""
    found = re.match("[A-Z]+", device.memory_kind.upper())
    return found[0] if found else ""


def _generation(device: Device) -> int:
    """The number in an instruction set's name, which AMD counts in hexadecimal (gfx90a)."""
    found = re.search("[0-9a-f]+$", device.isa.lower())
    return int(found[0], 16) if found else 0
