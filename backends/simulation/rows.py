"""Values at contexts, or at other counts: computed for many of them at once when one is asked for."""

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

Row = tuple[int, int, list[float]]  # the first context, the end of those that are known, and their values
NONE: Row = (0, 0, [])


class Rows(Generic[K]):
    """A row for each key, such as a number of sequences, by what gives its values at an array of contexts."""

    def __init__(self, values: Callable[[K, Array], Array]) -> None:
        self.values = values
        self.known: dict[K, Row] = {}

    def __call__(self, key: K, least: int, most: int) -> Row:
        """That of a key, over these contexts at least."""
        row = self.known.get(key, NONE)
        return row if row[0] <= least and most < row[1] else self.longer(key, least, most)

    def longer(self, key: K, least: int, most: int) -> Row:
        """The same where what is `known` does not go as far."""
        first, end, _ = self.known.get(key, NONE)
        before = max(least - max(least // PART, MARGIN), min(least, 1))
        first = min(first, before) if first < end else before
        end = max(end, most + max(most // PART, MARGIN))
        known = self.known[key] = first, end, self.values(key, np.arange(first, end)).tolist()
        return known


class Counts(dict[float, V]):
    """A value for each count, such as a number of tokens, by what gives those of an array of counts.

    >>> squares = Counts(lambda counts: (counts**2).tolist(), 4)
    >>> squares[6], squares
    (36, {5: 25, 6: 36, 7: 49, 8: 64})
    """

    def __init__(self, values: Callable[[Array], Iterable[V]], size: int) -> None:
        """Of so many counts together."""
        super().__init__()
        self.values_at, self.size = values, size

    def __missing__(self, count: float) -> V:
        counts = count - (ceil(count) - 1) % self.size + np.arange(self.size)
        self.update(zip(counts.tolist(), self.values_at(counts), strict=True))
        return self[count]
