"""Values for symbols, under which a size is a number or an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, reduce
from typing import Any

import numpy as np

from ..errors import InputError
from ..frozen import FrozenDict, Immutable, read_only
from ..routing import Number
from .polynomial import Dim, Factor, Monomial, Size


class Binding(Immutable):
    """Values for the symbols: integers, or numpy arrays that broadcast together (taken as float64).

    Call it on a size to get the value: exact for integers, an array when a symbol is one. It copies arrays.
    """

    symbols: Mapping[str, Number]
    _monomials: dict[Monomial, Number]  # those that were asked for

    def __init__(self, **symbols: Number) -> None:
        self._keep({name: _figures(value) for name, value in symbols.items()})

    def _keep(self, symbols: Mapping[str, Number]) -> None:
        vars(self).update(symbols=FrozenDict(symbols), _monomials={(): 1})

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound, (dict(self.symbols),)

    def __call__(self, size: Size) -> Number:
        """The value of `size`."""
        if not isinstance(size, Dim):
            return size
        known = self._monomials
        total: Number = 0
        for monomial, coefficient in size.terms:
            value = known.get(monomial)
            if value is None:
                value = known[monomial] = self._product(monomial)
            total = total + coefficient * value
        return total

    def _product(self, monomial: Monomial) -> Number:
        return reduce(
            lambda value, factor: value * self._factor(factor), monomial[1:], self._factor(monomial[0])
        )

    def _factor(self, factor: Factor) -> Number:
        if not isinstance(factor, str):
            return factor.at(self)
        if factor not in self.symbols:
            bound = ", ".join(self.symbols) or "none"
            raise InputError(f"symbol {factor!r} has no value; bound are {bound}")
        return self.symbols[factor]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that the symbols broadcast to; `()` when all are single numbers."""
        arrays = [v.shape for v in self.symbols.values() if isinstance(v, np.ndarray)]
        return np.broadcast_shapes(*arrays) if arrays else ()

    def block(self, rows: slice) -> Binding:
        """The same at some of the points: `rows` of the first axis of `shape`."""
        axes = len(self.shape)

        def part(value: Number) -> Number:
            whole = np.ndim(value) < axes or np.shape(value)[0] == 1
            return value if whole else value[rows]

        # Pieces of what cannot be written need no copies.
        found = Binding()
        found._keep({name: part(value) for name, value in self.symbols.items()})
        return found


def _figures(value: Any) -> Number:
    """An array or list as a read-only array of float64, a copy; anything else as it is."""
    many = isinstance(value, (np.ndarray, list, tuple))
    return read_only(np.array(value, dtype=np.float64)) if many else value


def _bound(symbols: Mapping[str, Number]) -> Binding:
    return Binding(**symbols)


class Mixed(Binding):
    """Several bindings at once: a step in which some sequences are read and others go on by a token.

    What counts sequences, tokens or pairs of them is summed, and what does not (weights) is there once; a
    function of one such sum (the experts that all tokens touch) is of the whole sum.

    >>> from llmir.dim import B, T, ceildiv
    >>> at = Mixed([Binding(B=32, T=1), Binding(B=1, T=512)])
    >>> at(B), at(B * T), at(B * T + 1000)
    (33, 544, 1544)
    >>> at(ceildiv(B * T, 100))
    6
    """

    parts: tuple[Binding, ...]

    def __init__(self, parts: Iterable[Binding]) -> None:
        super().__init__()
        vars(self)["parts"] = tuple(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mixed, (self.parts,)

    def _product(self, monomial: Monomial) -> Number:
        first, *others = monomial
        if not others and not isinstance(first, str):
            return first.at(self)
        values = [part._product(monomial) for part in self.parts]
        return sum(values[1:], start=values[0])

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that all parts broadcast to."""
        return np.broadcast_shapes(*(part.shape for part in self.parts))

    def block(self, rows: slice) -> Binding:
        """Each part at some of the points."""
        axes = len(self.shape)
        return Mixed(p.block(rows) if len(p.shape) == axes else p for p in self.parts)
