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
_MANY_VALUES = 1 << 12  # number of values from which it is faster to evaluate distinct values only
_SPARSE = (
    8  # distinct counts are found in a table if the largest is at most this many times the number of values
)


class Binding(Immutable):
    """Values for the symbols: integers, or numpy arrays that broadcast together (taken as float64).

    Call it on a size to get the value: exact for integers, an array when a symbol is one. Arrays are copied.
    """

    symbols: Mapping[str, Number]
    _given: Mapping[Monomial, Number]  # products with values although their symbols have no values
    _monomials: dict[Monomial, Number]  # the products evaluated so far
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
        """The functions for the kind of its values: numbers, arrays or recorded symbols."""
        return namespace(*self.symbols.values(), *self._given.values())

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape that the symbols broadcast to; `()` when all are single numbers."""
        values = (*self.symbols.values(), *self._given.values())
        arrays = [v.shape for v in values if isinstance(v, np.ndarray)]
        return np.broadcast_shapes(*arrays) if arrays else ()

    def block(self, rows: slice | Places) -> Binding:
        """The binding at some of the points: `rows` of the first axis of `shape`."""
        axes = len(self.shape)
        # Pieces of a read-only array need no copies.
        found = Binding()
        symbols = {name: broadcast_rows(value, rows, axes) for name, value in self.symbols.items()}
        found._keep(
            symbols, {monomial: broadcast_rows(value, rows, axes) for monomial, value in self._given.items()}
        )
        return found

    def apart(self, size: Dim) -> tuple[Binding, Places | None]:
        """Evaluate a product of symbols once for each distinct value, with the index of each point's value.

        For few values the result is the values at all points, with None.

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
        """Build a binding without copies of read-only float64 arrays that llmir owns."""
        found = object.__new__(Binding)
        found._keep({name: v if _ours(v) else _figures(v) for name, v in symbols.items()}, {})
        return found

    @staticmethod
    def only(size: Dim, value: Number) -> Binding:
        """A binding of one product of symbols, without values of the symbols."""
        found = Binding()
        found._keep({}, {size.terms[0][0]: value})
        return found


def broadcast_rows(value: Number, rows: slice | Places, axes: int) -> Number:
    """Select some rows of a value that broadcasts to `axes` axes."""
    whole = np.ndim(value) < axes or np.shape(value)[0] == 1
    return value if whole else value[rows]


def once(values: Array) -> tuple[Array, Places]:
    """The distinct values in ascending order, and the index of each value; counts need no sorting."""
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
    """An array or list as a read-only copy in float64; other values are unchanged."""
    many = isinstance(value, (np.ndarray, list, tuple))
    return read_only(np.array(value, dtype=np.float64)) if many else value


def _ours(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64 and not value.flags.writeable


def _bound(symbols: Mapping[str, Number]) -> Binding:
    return Binding(**symbols)


class MixedBinding(Binding):
    """Several bindings together: a step in which some sequences are in prefill and others decode.

    Sizes that count sequences, tokens or pairs are summed; constants (weights) count once. A function of a
    sum, such as the experts that all tokens touch, is evaluated at the total.

    >>> from llmir.ir.sizes.polynomial import B, T
    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> at = MixedBinding([Binding(B=32, T=1), Binding(B=1, T=512)])
    >>> at(B), at(B * T), at(B * T + 1000)
    (33, 544, 1544)
    >>> at(ceildiv(B * T, 100))
    6

    `phases` may contain the phase of each.
    """

    parts: tuple[Binding, ...]
    phases: tuple[str, ...]

    def __init__(self, parts: Iterable[Binding], phases: Iterable[str] = ()) -> None:
        super().__init__()
        vars(self).update(parts=tuple(parts), phases=tuple(phases))

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedBinding, (self.parts, self.phases)

    def within(self, phase: str) -> MixedBinding:
        """The parts in one phase; all parts if phases are not set."""
        if not self.phases:
            return self
        if phase not in self._within:
            pairs = zip(self.parts, self.phases, strict=True)
            self._within[phase] = MixedBinding(part for part, its in pairs if its == phase)
        return self._within[phase]

    @cached_property
    def uneven(self) -> bool:
        """Whether one of the parts is uneven."""
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
        """Add up times that are separate for each part; `of` is the timed object."""
        return [sum(times[1:], start=times[0]) for times in zip(*map(seconds, self.parts), strict=True)]

    def apart(self, size: Dim) -> tuple[Binding, Places | None]:
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

_MANY_NUMBERS = 1 << 20  # number of values from which memory matters (8 MiB)


class PackedBinding(Binding):
    """Counts at very many points, stored as by `pack`.

    Blocks of it are float64, and so are its `symbols`, which are built on access.
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
    """Store very many counts in the smallest integer type, read-only; other values are unchanged.

    >>> pack(np.arange(2.0**20) % 300).dtype, pack(np.arange(3.0)).dtype
    (dtype('uint16'), dtype('float64'))
    """
    if not isinstance(counts, np.ndarray) or counts.size < _MANY_NUMBERS:
        return counts
    return read_only(counts.astype(np.min_scalar_type(int(counts.max()))))


def is_packed(value: Any) -> bool:
    """Whether the binding was created by `packed`."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "u"


# --- Bindings with uneven contexts ---


class UnevenBinding(Binding):
    """A binding for one new token per sequence, where each sequence has its own context length.

    A size is the mean over the contexts of the size with equal contexts. Sizes that are proportional to the
    number of sequences are therefore sums over the sequences, and sizes per sequence are averages. The
    average differs from the size at the mean context.

    >>> from llmir.ir.sizes.polynomial import B, C
    >>> from llmir.ir.sizes.polynomial import Min
    >>> at = UnevenBinding([10, 20, 600])
    >>> at(B * C), at(B * Min.of(C, 127)), at(Min.of(C, 30))
    (630, 157, 20)
    """

    contexts: Any  # read-only, of float64
    _each: Binding

    def __init__(self, contexts: Iterable[int], sequences: int | None = None) -> None:
        """Bind `sequences` sequences with these contexts. The default is one sequence per context."""
        found = read_only(np.array(list(contexts), dtype=np.float64))
        count = len(found) if sequences is None else sequences
        super().__init__(B=count, T=1, C=_mean(found))
        vars(self).update(contexts=found, _each=Binding(B=count, T=1, C=found))

    def __reduce__(self) -> tuple[Any, ...]:
        return UnevenBinding, (self.contexts.tolist(), self.symbols["B"])

    @property
    def uneven(self) -> bool:
        """True: packed sequences are uneven."""
        return True

    def _product(self, monomial: Monomial) -> Number:
        return _mean(self._each._product(monomial))

    def capped(self, size: Size, most: float) -> Number:
        """The mean of a size over sequences, if it is at most `most` for each."""
        return _mean(np.minimum(self._each(size), most))


def _mean(values: Number) -> Number:
    """The mean of an array, as an integer if it is integral; numbers are unchanged."""
    if not isinstance(values, np.ndarray):
        return values
    mean = float(values.sum()) / len(values)
    return int(mean) if mean.is_integer() else mean
