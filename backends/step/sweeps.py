"""Figures at many points, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmir.base.array_namespace import Number
from llmir.ir.sizes.binding import Binding

# Arrays are evaluated in pieces of about this many elements, so that they stay in a core's cache.
BLOCK = 1 << 16
# Points of which the times of the stages are held at once, 8 bytes each.
WHOLE = 1 << 20


def sweep(figure: Callable[[Binding], Number], at: Binding, block: int = BLOCK) -> Number:
    """`figure(at)`, evaluated in blocks when `at` holds large arrays."""
    (found,) = sweeps(lambda at: (figure(at),), at, block)
    return found


def sweeps(
    figures: Callable[[Binding], Sequence[Number]], at: Binding, block: int = BLOCK
) -> Sequence[Number]:
    """The same of several figures."""
    shape = at.shape
    if not shape:
        return figures(at)
    points = math.prod(shape)
    if points <= 2 * block:
        return [np.broadcast_to(figure, shape).astype(np.float64) for figure in figures(at)]
    step = max(1, block * shape[0] // points)
    results: list[Any] = []
    for start in range(0, shape[0], step):
        part = slice(start, start + step)
        found = figures(at.block(part))
        results = results or [np.empty(shape) for _ in found]
        for result, figure in zip(results, found, strict=True):
            result[part] = figure
    return results
