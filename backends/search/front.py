"""Pareto fronts, and the smallest number that meets a condition.

`front` marks the points that no other point exceeds in both of two values; `minimize` finds the smallest
number that meets a condition, with few evaluations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmir.base.values import Array

# Pareto fronts

DIGITS = 10  # digits of comparisons; later digits depend on the order of summation


def front(x: Array, y: Array) -> Array:
    """Mark the points on the Pareto front, where larger is better for both values; equal points are all on
    the front, and NaN is never on it.

    >>> front(np.array([1.0, 2, 2, 3, 1]), np.array([9.0, 5, 5, 1, 8])).tolist()
    [True, True, True, True, False]
    """
    a, b = _rounded(x), _rounded(y)
    order = np.lexsort((-b, -a))
    order = order[~(np.isnan(a) | np.isnan(b))[order]]
    a, b, found = a[order], b[order], np.zeros(x.shape, dtype=bool)
    # Of points with equal x the first has the largest y; points with a larger x have a smaller y.
    first = np.concatenate([[True], a[1:] < a[:-1]])[: len(a)]
    group = np.cumsum(first) - 1
    tops = b[first]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(tops)[:-1]])[: len(tops)]
    found[order] = (b == tops[group]) & (b > before[group])
    return found


def _rounded(values: Array) -> Array:
    """Round values to some significant digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(values))))
    return np.where(values == 0, 0.0, np.round(values * scale) / scale)


# Smallest number


def minimize(meets: Callable[[int], bool], low: int, start: int, most: int) -> int | None:
    """The smallest number above `low` that meets a condition; the search begins at `start`. If a number meets
    the condition, all larger numbers must do so.

    The first step is a twentieth of `start`, and each step is twice as large as the one before. None if
    `most` does not meet it.

    >>> [minimize(lambda n: n >= 30, 0, start, 1000) for start in (1, 29, 500)]
    [30, 30, 30]
    >>> minimize(lambda n: n > 9, 0, 5, 9)
    """
    now, step = start, max(1, start // 20)
    if meets(now):
        while now - low > 1:
            before = max(now - step, low + 1)
            if not meets(before):
                low = before
                break
            now, step = before, 2 * step
    else:
        while True:
            if now >= most:
                return None
            low, now, step = now, min(now + step, most), 2 * step
            if meets(now):
                break
    while now - low > 1:
        middle = (now + low) // 2
        if meets(middle):
            now = middle
        else:
            low = middle
    return now
