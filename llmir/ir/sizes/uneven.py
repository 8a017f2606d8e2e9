"""Sequences that go on by a token each, after contexts of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from llmir.base.array_namespace import Number
from llmir.base.values import read_only

from .binding import Binding
from .polynomial import Monomial, Size


class Uneven(Binding):
    """A binding of one new token of each sequence, of which each has its own number of cached ones.

    A size is the mean of what it would be if all had the context of each. So what grows with sequences is
    the sum over them, and what is of one sequence is what it is on average, which is not what it is at the
    mean context.

    >>> from llmir.ir.sizes.polynomial import B, C
    >>> from llmir.ir.sizes.atoms import Min
    >>> at = Uneven([10, 20, 600])
    >>> at(B * C), at(B * Min.of(C, 127)), at(Min.of(C, 30))
    (630, 157, 20)
    """

    contexts: Any  # read-only, of float64
    _each: Binding

    def __init__(self, contexts: Iterable[int], sequences: int | None = None) -> None:
        """`sequences` are how many there are of these contexts, by default as many as contexts."""
        found = read_only(np.array(list(contexts), dtype=np.float64))
        count = len(found) if sequences is None else sequences
        super().__init__(B=count, T=1, C=_mean(found))
        vars(self).update(contexts=found, _each=Binding(B=count, T=1, C=found))

    def __reduce__(self) -> tuple[Any, ...]:
        return Uneven, (self.contexts.tolist(), self.symbols["B"])

    @property
    def uneven(self) -> bool:
        """They do."""
        return True

    def _product(self, monomial: Monomial) -> Number:
        return _mean(self._each._product(monomial))

    def capped(self, size: Size, most: float) -> Number:
        """The mean of a size of one sequence, where that is no more than `most` of any."""
        return _mean(np.minimum(self._each(size), most))


def _mean(values: Number) -> Number:
    """Of an array, an integer where it is one; a number as it is."""
    if not isinstance(values, np.ndarray):
        return values
    mean = float(values.sum()) / len(values)
    return int(mean) if mean.is_integer() else mean
