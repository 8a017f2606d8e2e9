"""Pareto fronts: what nothing else is better than in both figures."""

from __future__ import annotations

import numpy as np

from llmir.base.values import Array

DIGITS = 10  # to which figures are compared: beyond, they differ by how they were added up


def front(x: Array, y: Array) -> Array:
    """Of points, which are on the front where more is better of both, ties included; not those of NaN.

    >>> front(np.array([1.0, 2, 2, 3, 1]), np.array([9.0, 5, 5, 1, 8])).tolist()
    [True, True, True, True, False]
    """
    a, b = _rounded(x), _rounded(y)
    order = np.lexsort((-b, -a))
    order = order[~(np.isnan(a) | np.isnan(b))[order]]
    a, b, found = a[order], b[order], np.zeros(x.shape, dtype=bool)
    # Of points of one x the first has the largest y; those with a larger x have less.
    first = np.concatenate([[True], a[1:] < a[:-1]])[: len(a)]
    group = np.cumsum(first) - 1
    tops = b[first]
    before = np.concatenate([[-np.inf], np.maximum.accumulate(tops)[:-1]])[: len(tops)]
    found[order] = (b == tops[group]) & (b > before[group])
    return found


def _rounded(values: Array) -> Array:
    """Values to some significant digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(values))))
    return np.where(values == 0, 0.0, np.round(values * scale) / scale)
