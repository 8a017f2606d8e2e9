"""Kernels that are borrowed: what changes in them on another device, and how far off they then are.

Parameters that are ratios to a datasheet travel as they are, times of a die as those of the nearest. Two
others change with the chip:

- What a multiprocessor does beside its matrix unit takes as long where that unit is slower, so that less of
  its peak is lost: of H20, whose multiprocessors are H100's with a fifth of the matrix rate, nearly nothing.
  Where the unit is faster, libraries hide more as well, and the share stays.
- A block of decoding that is alone draws as many bytes a second as it can have on their way, whatever share
  of the memory's bandwidth that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llmir.hw import Device, transfer

from .kernels import KERNELS, Decode, Kernel, parameters
from .relatives import relation

MATRIX = ("rate", "matrix")  # shares of the matrix peak, by the names that kernels have for them
# A chip whose matrix units are below two thirds of those that were measured, clock for clock, is not kept
# from them by its power: H20 has 400 W for 148 TFLOP/s, H100 700 for 989.
CUT = 2 / 3


def carried(kernel: Kernel, device: Device, other: Device) -> Kernel:
    """A kernel of `other` as it is on `device`."""
    slower = min(1.0, _beside(device) / _beside(other))
    values: dict[str, float] = {
        name: _share(getattr(kernel, name), slower) for name in MATRIX if hasattr(kernel, name)
    }
    if slower < CUT and hasattr(kernel, "sustained"):
        values["sustained"] = 1.0
    if isinstance(kernel, Decode):
        values["alone"] = kernel.alone * _drawn(device) / _drawn(other)
    known = {p.name: p for p in parameters(type(kernel))}
    inside = {name: min(max(v, known[name].low), known[name].high) for name, v in values.items()}
    changed: Any = replace(kernel, **inside) if inside else kernel
    return changed  # type: ignore[no-any-return]


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
    return _of("other engine", family)


def _of(relation: str, family: str) -> float:
    table: Mapping[str, Mapping[str, float]] = transfer.table()
    known = table[relation]
    group = KERNELS[family].group
    return known.get(group) or max(known.values())


def together(*errors: float) -> float:
    """Of errors that know nothing of each other: the root of the sum of their squares.

    >>> together(0.03, 0.04), together(0.1, 0.0)
    (0.05, 0.1)
    """
    return math.hypot(*errors)
