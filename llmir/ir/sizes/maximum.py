"""The expected largest of several like sums, from their cumulants."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmir.base.array_namespace import Number, namespace

_TINY = 1e-12


def excess(second: Number, third: Number, ranks: int) -> Number:
    """By how much the largest of `ranks` like sums is expected to exceed their mean, from their cumulants.

    As of gamma variables with this variance and skewness g, which are (2/g)·((1 − g²/36 + g·z/6)³ − 1)
    deviations above their mean where a normal variable is z (Wilson & Hilferty 1931). That the sums have one
    total lowers the variance of each and makes them differ more: the two cancel.
    """
    xp = namespace(second, third)
    deviation = xp.sqrt(xp.maximum(second, _TINY))
    skewness = third / deviation**3
    g = xp.where(abs(skewness) < 1e-4, 1e-4, skewness)
    z1, z2, z3 = _of_normals(ranks)
    a, b = 1 - g**2 / 36, g / 6
    cube = a**3 + 3 * a**2 * b * z1 + 3 * a * b**2 * z2 + b**3 * z3
    return xp.maximum(deviation * 2 / g * (cube - 1), 0)


@lru_cache(maxsize=256)
def _of_normals(count: int) -> tuple[float, float, float]:
    """The first three moments of the largest of `count` standard normal variables, by quadrature."""
    z, step = np.linspace(-10, 10, 20001, retstep=True)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    below = np.clip(np.cumsum(density) * step, 0, 1)
    weights = count * density * below ** (count - 1) * step
    first, second, third = (float((z**i * weights).sum()) for i in (1, 2, 3))
    return first, second, third
