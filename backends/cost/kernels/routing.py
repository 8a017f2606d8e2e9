"""Which experts tokens go to, and what of it falls to the rank that has most to do."""

from __future__ import annotations

import numpy as np

from llmir.dim import Number

from .base import Array

NARROWEST = 200.0  # least ratio of the busiest expert's load to the idlest's under a power law
WIDEST = 0.8  # share of the tokens that the busiest expert may get, in the published benchmarks' generator


def balanced(tokens: Number, top_k: Number, experts: Number, ranks: Number) -> tuple[Array, Array]:
    """Routed rows of a rank and experts that they touch, where loads are as even as they can be.

    >>> [int(x) for x in balanced(4, 8, 128, 8)], [int(x) for x in balanced(4096, 8, 128, 8)]
    ([4, 4], [4096, 16])
    """
    rows = np.maximum(np.ceil(tokens * top_k / ranks), 1)
    return np.asarray(rows), np.asarray(np.minimum(rows, experts / ranks))


def power_law(
    tokens: Number, top_k: Number, experts: Number, ranks: Number, exponent: Number
) -> tuple[Array, Array]:
    """The same of the busiest rank, where loads have density ∝ load^-exponent up to 0.8·tokens.

    Loads of the experts of a rank add up; the largest of so many sums lies √(2·ln ranks) deviations above
    the mean, and no rank has more than a row of each token and expert. Every expert has some rows while
    there are enough, as in the published generators.

    >>> rows, touched = power_law(4096, 8, 128, 8, 1.01)
    >>> 4096 < rows < 8 * 4096, int(touched)
    (np.True_, 16)
    """
    held = experts / ranks
    variance = _variance(np.maximum(WIDEST * tokens, NARROWEST), exponent)
    excess = np.sqrt(variance * 2 * np.log(ranks) / held)
    rows = np.minimum(tokens * top_k / ranks * (1 + excess), tokens * np.minimum(top_k, held))
    rows = np.maximum(rows, 1)
    return rows, np.minimum(rows, held)


def _variance(most: Number, exponent: Number) -> Array:
    """Of a load between 1 and `most`, in squares of its mean."""

    def moment(n: int) -> Array:
        power = np.asarray(n + 1 - exponent, dtype=float)
        power = np.where(np.abs(power) < 1e-6, 1e-6, power)
        return np.asarray((most**power - 1) / power)

    return np.asarray(moment(0) * moment(2) / moment(1) ** 2 - 1)
