"""Tables of values by context, or by another count, which grow by many values at once when one is missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import ceil
from typing import Generic, TypeVar

import numpy as np

from .load import Array

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# By how many contexts a row goes further than it is asked to, or by what part of them if that is more.
MARGIN, PART = 256, 16

Row = tuple[int, int, list[float]]  # the first context, the one after the last, and the values
NONE: Row = (0, 0, [])


class Rows(Generic[K]):
    """A row of values by context for each key, such as a number of sequences.

    `values` computes those of a key at an array of contexts.
    """

    def __init__(self, values: Callable[[K, Array], Array]) -> None:
        self.values = values
        self.known: dict[K, Row] = {}

    def __call__(self, key: K, least: int, most: int) -> Row:
        """The row of a key, which has these contexts at least."""
        row = self.known.get(key, NONE)
        return row if row[0] <= least and most < row[1] else self.longer(key, least, most)

    def longer(self, key: K, least: int, most: int) -> Row:
        """The row of a key, made longer."""
        first, end, _ = self.known.get(key, NONE)
        before = max(least - max(least // PART, MARGIN), min(least, 1))
        first = min(first, before) if first < end else before
        end = max(end, most + max(most // PART, MARGIN))
        known = self.known[key] = first, end, self.values(key, np.arange(first, end)).tolist()
        return known


class Counts(dict[float, V]):
    """A value for each count, such as a number of tokens; `values` computes those of an array of counts.

    >>> squares = Counts(lambda counts: (counts**2).tolist(), 4)
    >>> squares[6], squares
    (36, {5: 25, 6: 36, 7: 49, 8: 64})
    """

    def __init__(self, values: Callable[[Array], Iterable[V]], size: int) -> None:
        """`size` counts are computed at once."""
        super().__init__()
        self.values_at, self.size = values, size

    def __missing__(self, count: float) -> V:
        counts = count - (ceil(count) - 1) % self.size + np.arange(self.size)
        self.update(zip(counts.tolist(), self.values_at(counts), strict=True))
        return self[count]
