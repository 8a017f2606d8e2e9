"""Values at contexts, or at other counts: computed for many of them at once when one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from .load import Array

K = TypeVar("K", bound=Hashable)
MARGIN = 4  # the part of a context by which a row goes further than it is asked to
_NONE: tuple[int, int, list[float]] = (0, 0, [])

Row = tuple[int, list[float]]  # the first context, and the values from it on


class Rows(Generic[K]):
    """A row for each key, such as a number of sequences, by what gives its values at an array of contexts."""

    def __init__(self, values: Callable[[K, Array], Array]) -> None:
        self.values = values
        self._known: dict[K, tuple[int, int, list[float]]] = {}

    def __call__(self, key: K, least: int, most: int) -> Row:
        """That of a key, over these contexts at least."""
        first, end, values = self._known.get(key, _NONE)
        if least < first or most >= end:
            known, before = range(first, end), least - least // MARGIN
            first = min(first, before) if known else before
            end = max(end, most + most // MARGIN + MARGIN)
            values = self.values(key, np.arange(first, end)).tolist()
            self._known[key] = first, end, values
        return first, values
