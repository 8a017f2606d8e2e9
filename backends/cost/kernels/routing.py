"""Which experts tokens go to, and what of it falls to the rank that has most to do."""

from __future__ import annotations

import numpy as np

from llmir.dim import Number

from .base import Array

# As AIConfigurator draws its loads (ai-dynamo/aiconfigurator, collector/helper.py).
NARROWEST = 200.0  # ratio of the busiest expert's load to the idlest's where few tokens follow a power law
WIDEST = 0.8  # share of the tokens that the busiest expert may get


def balanced(tokens: Number, top_k: Number, experts: Number, ranks: Number) -> tuple[Array, Array]:
    """Routed rows of a rank and experts that they touch, where loads are as even as they can be.

    >>> [int(x) for x in balanced(4, 8, 128, 8)], [int(x) for x in balanced(4096, 8, 128, 8)]
    ([4, 4], [4096, 16])
    """
    rows = np.maximum(np.ceil(tokens * top_k / ranks), 1)
    return np.asarray(rows), np.asarray(np.minimum(rows, experts / ranks))


def limited(tokens: Number, top_k: Number, experts: Number, ranks: Number) -> tuple[Array, Array]:
    """The same of the first rank, where a router that keeps to half of the groups sees loads that are even.

    All groups are worth as much then, so it takes the first half. There each token finds half of its experts;
    for the other half no expert is worth anything, and all tokens take the first ones.

    >>> [int(x) for x in limited(4096, 8, 256, 8)], [int(x) for x in limited(4096, 8, 256, 1)]
    ([20480, 32], [32768, 128])
    """
    held = np.minimum(experts / ranks, experts / 2)
    found = tokens * top_k * held / experts
    fill = np.minimum(top_k / 2, held)
    rows = np.maximum(found + tokens * fill, 1)
    return np.asarray(np.minimum(rows, tokens * held)), np.asarray(np.minimum(found + fill, held))


def power_law(
    tokens: Number, top_k: Number, experts: Number, ranks: Number, exponent: Number
) -> tuple[Array, Array]:
    """The same of the busiest rank, where loads have density ∝ load^-exponent.

    The widest loads are 0.8·tokens of the least, 200 where there is less than a row for each expert, as in
    the published generators; for the busiest rank 200 at least, so that its rows never fall with more
    tokens. Loads of the experts of a rank add up to nearly a gamma distribution, whose largest of so many is
    by Wilson and Hilferty (1931) at Blom's score (1958); no rank has more than a row of each token and
    expert. Less than half a row is none, and rows that are lost by that go to experts without any.

    >>> rows, touched = power_law(4096, 8, 128, 8, 1.01)  # of 60 draws 6828 and 16 on average
    >>> int(rows), int(touched)
    (6913, 16)
    """
    held = experts / ranks
    variance = _variance(np.maximum(WIDEST * tokens, NARROWEST), exponent)
    part = np.minimum(variance / held / 9, (_score(ranks) / 2) ** 2)  # beyond, their formula falls again
    above = np.maximum(1 - part + _score(ranks) * np.sqrt(part), 0)
    rows = np.where(ranks > 1, above * above * above, 1) * tokens * top_k / ranks
    rows = np.maximum(np.minimum(rows, tokens * np.minimum(top_k, held)), 1)
    widest = np.where(tokens * top_k > experts, np.maximum(WIDEST * tokens, 1 + 1e-6), NARROWEST)
    least = rows / held / (_moment(widest, exponent, 1) / _moment(widest, exponent, 0))
    half = np.clip(0.5 / least, 1, widest)
    few, lost = (_moment(half, exponent, n) / _moment(widest, exponent, n) for n in (0, 1))
    return rows, np.clip((1 - few) * held + lost * rows, 1, rows)


def _score(ranks: Number) -> Array:
    """Standard deviations by which the largest of so many normal values exceeds their mean, on average.

    Blom's (n - 3/8)/(n + 1/4) by Tukey's approximation of the normal distribution's quantile.
    """
    below = (np.asarray(ranks) - 0.375) / (np.asarray(ranks) + 0.25)
    return np.asarray((below**0.135 - (1 - below) ** 0.135) / 0.1975)


def _variance(most: Number, exponent: Number) -> Array:
    """Of a load between 1 and `most`, in squares of its mean."""
    zeroth, first, second = (_moment(most, exponent, n) for n in range(3))
    return np.asarray(zeroth * second / (first * first) - 1)


def _moment(most: Number, exponent: Number, n: int) -> Array:
    """∫ load^(n - exponent) from 1 to `most`."""
    power = np.asarray(n + 1 - exponent, dtype=float)
    power = np.where(np.abs(power) < 1e-6, 1e-6, power)
    return np.asarray((most**power - 1) / power)
