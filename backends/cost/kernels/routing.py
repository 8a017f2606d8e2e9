"""Which experts tokens go to, and what of it falls to the rank that has most to do."""

from __future__ import annotations

import numpy as np

from llmir import routing
from llmir.dim import Number

from .base import Array

NARROWEST = 200.0  # least ratio of the busiest expert's load to the idlest's under a power law
QUANTILES = 64  # of a density of loads
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

    Tokens choose by popularities of that density, and what falls to one rank follows as in `llmir.routing`.

    >>> rows, touched = power_law(4096, 8, 128, 8, 1.01)
    >>> 4096 < rows < 8 * 4096, round(float(touched), 1)
    (np.True_, 16.0)
    """
    each = _quantiles(np.maximum(WIDEST * tokens, NARROWEST), exponent)
    scale = np.asarray(top_k / experts)[..., None] / each.mean(-1, keepdims=True)
    p = np.minimum(each * scale, 1)
    rows = np.maximum(routing.most_rows(p, top_k, experts, ranks, tokens), 1)
    touched = experts * routing.touching(p, np.asarray(tokens)[..., None]).mean(-1)
    return rows, np.minimum(np.maximum(routing.most_touched(touched, experts, ranks), 1), rows)


def _quantiles(most: Number, exponent: Number) -> Array:
    """Loads between 1 and `most` of that density, at equal steps of their share along a last axis."""
    power = np.asarray(1 - exponent, dtype=float)[..., None]
    power = np.where(np.abs(power) < 1e-6, 1e-6, power)
    u = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return np.asarray((1 + u * (np.asarray(most)[..., None] ** power - 1)) ** (1 / power))
