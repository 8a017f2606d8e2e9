"""Bindings: values for the symbols of sizes, as integers or NumPy arrays.

`Binding` gives all sequences of a step the same values. `MixedBinding` joins a prefill chunk with decodes in
one step, `PackedBinding` stores the counts of very many points in small integer types, and `UnevenBinding`
describes a decode step whose sequences have different context lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np

from llmir.base.array_namespace import Namespace, Number, namespace
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict, Immutable, read_only

from .polynomial import Dim, Factor, Monomial, Size

# --- Bindings ---

Array = np.ndarray[Any, np.dtype[np.float64]]
Places = np.ndarray[Any, np.dtype[np.intp]]
_MANY_VALUES = 1 << 12  # values of which it pays to find those that differ
_SPARSE = 8  # counts up to so many times as many as there are values are found in a table


class Binding(Immutable):
    """Values for the symbols: integers, or numpy arrays that broadcast together (taken as float64).

    Call it on a size to get the value: exact for integers, an array when a symbol is one. It copies arrays.
    """

    symbols: Mapping[str, Number]
    _given: Mapping[Monomial, Number]  # products whose symbols have no values of their own
    _monomials: dict[Monomial, Number]  # those that were asked for
    _places: dict[Dim, tuple[Binding, Places | None]]

    @property
    def uneven(self) -> bool:
        """Whether some sequences go on by a token after contexts that differ."""
        return False

    def __init__(self, **symbols: Number) -> None:
        self._keep({name: _figures(value) for name, value in symbols.items()}, {})

    def _keep(self, symbols: Mapping[str, Number], given: Mapping[Monomial, Number]) -> None:
        vars(self).update(symbols=FrozenDict(symbols), _given=given, _monomials={(): 1, **given}, _places={})

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound, (dict(self.symbols),)

    def __call__(self, size: Size) -> Number:
        """The value of `size`."""
        if not isinstance(size, Dim):
            return size
        known = self._monomials
        total: Number = None
        for monomial, coefficient in size.terms:
            value = known.get(monomial)
            if value is None:
                value = known[monomial] = self._product(monomial)
            if coefficient != 1:
                value = coefficient * value
            total = value if total is None else total + value
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
    def xp(self) -> Namespace:
        """The functions of its values: of numbers, of arrays, or of what records."""
        return namespace(*self.symbols.values(), *self._given.values())

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that the symbols broadcast to; `()` when all are single numbers."""
        values = (*self.symbols.values(), *self._given.values())
        arrays = [v.shape for v in values if isinstance(v, np.ndarray)]
        return np.broadcast_shapes(*arrays) if arrays else ()

    def block(self, rows: slice | Places) -> Binding:
        """The same at some of the points: `rows` of the first axis of `shape`."""
        axes = len(self.shape)
        # Pieces of what cannot be written need no copies.
        found = Binding()
        symbols = {name: broadcast_rows(value, rows, axes) for name, value in self.symbols.items()}
        found._keep(
            symbols, {monomial: broadcast_rows(value, rows, axes) for monomial, value in self._given.items()}
        )
        return found

    def apart(self, size: Dim) -> tuple[Binding, Places | None]:
        """A product of symbols alone, at each of its values once, and where the points find theirs.

        None where they are few: then it is at all points, of as many axes as it has.

        >>> from llmir.ir.sizes.polynomial import B, T
        >>> at, places = Binding(B=np.arange(9999) % 3, T=2).apart(B * T)
        >>> at(B * T), places[:5]
        (array([0., 2., 4.]), array([0, 1, 2, 0, 1]))
        """
        if size not in self._places:
            values, places = self(size), None
            if np.size(values) >= _MANY_VALUES:
                values, places = once(values)
            self._places[size] = Binding.only(size, values), places
        return self._places[size]

    @staticmethod
    def keeping(**symbols: Number) -> Binding:
        """The same, without copies of read-only arrays of float64: of ours, which nobody writes to."""
        found = object.__new__(Binding)
        found._keep({name: v if _ours(v) else _figures(v) for name, v in symbols.items()}, {})
        return found

    @staticmethod
    def only(size: Dim, value: Number) -> Binding:
        """What says of a product of symbols what it is, and of the symbols nothing."""
        found = Binding()
        found._keep({}, {size.terms[0][0]: value})
        return found


def broadcast_rows(value: Number, rows: slice | Places, axes: int) -> Number:
    """Of what broadcasts to so many axes, what broadcasts to some rows of the first."""
    whole = np.ndim(value) < axes or np.shape(value)[0] == 1
    return value if whole else value[rows]


def once(values: Array) -> tuple[Array, Places]:
    """Each value once, in ascending order, and where each is among them; counts need no sorting."""
    most = values.max()
    if values.min() >= 0 and most <= _SPARSE * values.size:
        counts = values.astype(np.intp)
        if np.array_equal(counts, values):
            seen = np.zeros(int(most) + 1, dtype=bool)
            seen[counts] = True
            table = np.cumsum(seen, dtype=np.int32) - 1
            return np.flatnonzero(seen).astype(np.float64), table.take(counts).astype(np.intp)
    found, places = np.unique(values, return_inverse=True)
    return found, places.reshape(values.shape)


def _figures(value: Any) -> Number:
    """An array or list as a read-only array of float64, a copy; anything else as it is."""
    many = isinstance(value, (np.ndarray, list, tuple))
    return read_only(np.array(value, dtype=np.float64)) if many else value


def _ours(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64 and not value.flags.writeable


def _bound(symbols: Mapping[str, Number]) -> Binding:
    return Binding(**symbols)


class MixedBinding(Binding):
    """Several bindings at once: a step in which some sequences are read and others go on by a token.

    What counts sequences, tokens or pairs of them is summed, and what does not (weights) is there once; a
    function of one such sum (the experts that all tokens touch) is of the whole sum.

    >>> from llmir.ir.sizes.polynomial import B, T
    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> at = MixedBinding([Binding(B=32, T=1), Binding(B=1, T=512)])
    >>> at(B), at(B * T), at(B * T + 1000)
    (33, 544, 1544)
    >>> at(ceildiv(B * T, 100))
    6

    `phases` may say which phase each is in.
    """

    parts: tuple[Binding, ...]
    phases: tuple[str, ...]

    def __init__(self, parts: Iterable[Binding], phases: Iterable[str] = ()) -> None:
        super().__init__()
        vars(self).update(parts=tuple(parts), phases=tuple(phases))

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedBinding, (self.parts, self.phases)

    def within(self, phase: str) -> MixedBinding:
        """Those in one phase; all where nothing is said of phases."""
        if not self.phases:
            return self
        if phase not in self._within:
            pairs = zip(self.parts, self.phases, strict=True)
            self._within[phase] = MixedBinding(part for part, its in pairs if its == phase)
        return self._within[phase]

    @cached_property
    def uneven(self) -> bool:
        """Whether one of the parts is."""
        return any(part.uneven for part in self.parts)

    @cached_property
    def _within(self) -> dict[str, MixedBinding]:
        return {}

    def _product(self, monomial: Monomial) -> Number:
        first, *others = monomial
        if not others and not isinstance(first, str):
            return first.at(self)
        values = [part._product(monomial) for part in self.parts]
        return sum(values[1:], start=values[0])

    def each(self, of: object, seconds: Callable[[Binding], Sequence[Number]]) -> list[Number]:
        """Times that are of each part, together; `of` is what they are times of."""
        return [sum(times[1:], start=times[0]) for times in zip(*map(seconds, self.parts), strict=True)]

    def apart(self, size: Dim) -> tuple[Binding, Places | None]:
        """Itself: a product of symbols says nothing of the parts."""
        return self, None

    @cached_property
    def xp(self) -> Namespace:
        """The functions of all parts' values."""
        return namespace(*(value for part in self.parts for value in part.symbols.values()))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that all parts broadcast to."""
        return np.broadcast_shapes(*(part.shape for part in self.parts))

    def block(self, rows: slice | Places) -> Binding:
        """Each part at some of the points."""
        axes = len(self.shape)
        parts = (p.block(rows) if len(p.shape) == axes else p for p in self.parts)
        return MixedBinding(parts, self.phases)


# --- Packed bindings ---

_MANY_NUMBERS = 1 << 20  # numbers from which their memory counts: 8 MiB


class PackedBinding(Binding):
    """Counts at very many points, which are held as `packed` has them.

    Blocks of it have float64. So have its `symbols`, which are made when they are asked for.
    """

    _packed: Mapping[str, Number]

    def __init__(self, **counts: Number) -> None:
        super().__init__()
        del vars(self)["symbols"]
        vars(self)["_packed"] = FrozenDict(counts)

    @cached_property
    def symbols(self) -> Mapping[str, Number]:  # type: ignore[override] # made late
        """The values in float64."""
        return Binding(**self._packed).symbols

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that they broadcast to."""
        return np.broadcast_shapes(*map(np.shape, self._packed.values()))

    def block(self, rows: slice | Places) -> Binding:
        """The values at some of the points, in float64."""
        return Binding(
            **{name: broadcast_rows(value, rows, len(self.shape)) for name, value in self._packed.items()}
        )


def pack(counts: Number) -> Number:
    """Very many counts in the smallest type that has them, read-only; anything else as it is.

    >>> pack(np.arange(2.0**20) % 300).dtype, pack(np.arange(3.0)).dtype
    (dtype('uint16'), dtype('float64'))
    """
    if not isinstance(counts, np.ndarray) or counts.size < _MANY_NUMBERS:
        return counts
    return read_only(counts.astype(np.min_scalar_type(int(counts.max()))))


def is_packed(value: Any) -> bool:
    """Whether `packed` made it."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "u"


# --- Bindings with uneven contexts ---


class UnevenBinding(Binding):
    """A binding of one new token of each sequence, of which each has its own number of cached ones.

    A size is the mean of what it would be if all had the context of each. So what grows with sequences is
    the sum over them, and what is of one sequence is what it is on average, which is not what it is at the
    mean context.

    >>> from llmir.ir.sizes.polynomial import B, C
    >>> from llmir.ir.sizes.polynomial import Min
    >>> at = UnevenBinding([10, 20, 600])
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
        return UnevenBinding, (self.contexts.tolist(), self.symbols["B"])

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
