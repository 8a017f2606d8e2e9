"""Sizes: integers, or polynomials in named symbols whose value is asked for last.

The symbols of a language model are `B` sequences, `T` new tokens per sequence and `C` tokens already
cached. All symbols are non-negative. Besides symbols, a polynomial may hold the atoms
`ceildiv(a, b)`, `min(a, b)`, `max(a, b)` and `distinct(held, k, n, E)`, how many of `held` experts are
expected to be touched by `n` tokens that each choose `k` of `E` at random. Under another law of `routing`,
the last argument, there are `distinct(held, k, n, E, law)`, and `routed` and `busiest` for rows (`ragged`).

>>> B, T = Dim.symbol("B"), Dim.symbol("T")
>>> print(2 * T * (B + 3))
2*B*T + 6*T
>>> Binding(B=4, T=10)(2 * T * (B + 3))
140
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import Any, SupportsIndex, Union

import numpy as np

from . import routing
from .errors import InputError, VerifyError
from .frozen import FrozenDict, Immutable, read_only
from .routing import CHANCE, Law

Size = Union[int, "Dim"]
Argument = Union[int, Law, "Dim"]
Atom = Union[str, "Call"]
Monomial = tuple[Atom, ...]
Number = routing.Number  # an int, a float, or a float64 array


def _ceildiv(a: Number, b: Number) -> Number:
    return -(-a // b)


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two values, element by element if one is an array."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two values, element by element if one is an array."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def _distinct(held: int, chosen: int, tokens: Number, experts: int, by: Law = CHANCE) -> Number:
    return by.distinct(held, chosen, tokens, experts)


def _busiest(ranks: int, chosen: int, tokens: Number, experts: int, by: Law) -> Number:
    return by.busiest(ranks, chosen, tokens, experts)


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "ceildiv": _ceildiv,
    "min": minimum,
    "max": maximum,
    "distinct": _distinct,
    "routed": lambda tokens, chosen, experts, by: tokens * chosen,
    "busiest": _busiest,
}
ARITY = {"distinct": (4, 5), "routed": (4,), "busiest": (5,)}  # of others 2
_POSITIVE = {"ceildiv": (1,), "distinct": (0, 1, 3), "routed": (1, 2), "busiest": (0, 1, 3)}
MOST_EXPERTS = 1 << 20  # a hundred times those of any model; laws of routing hold a number for each
LAW = {"distinct": 4, "routed": 3, "busiest": 4}  # the argument that is no size, but a law of routing


class Call(Immutable):
    """An atom that is not a symbol: one of `FUNCTIONS` applied to sizes."""

    __slots__ = ("_hash", "arguments", "function")

    function: str
    arguments: tuple[Argument, ...]
    _hash: int

    def __init__(self, function: str, arguments: tuple[Argument, ...]) -> None:
        put = object.__setattr__
        put(self, "function", function)
        put(self, "arguments", arguments)
        put(self, "_hash", hash((function, arguments)))

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The arguments that are sizes."""
        return tuple(a for a in self.arguments if not isinstance(a, Law))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return False
        return (self.function, self.arguments) == (other.function, other.arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.function, self.arguments)

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


class Dim(Immutable):
    """A polynomial with integer coefficients, hashable and in one canonical order."""

    __slots__ = ("_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        put = object.__setattr__
        put(self, "terms", terms)
        put(self, "_hash", hash(terms))

    @staticmethod
    def symbol(name: str) -> Dim:
        """The size called `name`."""
        return Dim((((name,), 1),))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (self.terms,)

    def __add__(self, other: Size) -> Size:
        return _add(self, _whole(other))

    def __mul__(self, other: Size) -> Size:
        return _multiply(self, _whole(other))

    def __sub__(self, other: Size) -> Size:
        return _add(self, _multiply(_whole(other), -1))

    def __rsub__(self, other: Size) -> Size:
        return _add(_whole(other), _multiply(self, -1))

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        def term(monomial: Monomial, coefficient: int) -> str:
            factors = [str(a) for a in monomial]
            return "*".join(factors if coefficient == 1 and factors else [str(coefficient), *factors])

        return " + ".join(term(*t) for t in self.terms)

    __repr__ = __str__


B, T, C = Dim.symbol("B"), Dim.symbol("T"), Dim.symbol("C")


def _whole(size: SupportsIndex | Dim) -> Size:
    """`size` if it is one; Python's own integer for numpy's, and `TypeError` for a float."""
    return size if type(size) is int or isinstance(size, Dim) else operator.index(size)


def _size(argument: Argument) -> Size:
    if isinstance(argument, Law):
        raise TypeError(f"a size is no law of routing, got {argument}")
    return _whole(argument)


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Dim) else (((), size),)


def _make(coefficients: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in coefficients.items() if c}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    # Highest degree first, then by name; the constant comes last.
    return Dim(tuple(sorted(kept.items(), key=lambda t: (-len(t[0]), [str(a) for a in t[0]]))))


@lru_cache(maxsize=1 << 16)
def _add(a: Size, b: Size) -> Size:
    total: dict[Monomial, int] = dict(_terms(a))
    for monomial, coefficient in _terms(b):
        total[monomial] = total.get(monomial, 0) + coefficient
    return _make(total)


@lru_cache(maxsize=1 << 16)
def _multiply(a: Size, b: Size) -> Size:
    total: dict[Monomial, int] = {}
    for left, x in _terms(a):
        for right, y in _terms(b):
            monomial = tuple(sorted(left + right, key=str))
            total[monomial] = total.get(monomial, 0) + x * y
    return _make(total)


def product(sizes: Iterable[Size]) -> Size:
    """The product of `sizes`; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


@lru_cache(maxsize=1 << 14)
def call(function: str, *arguments: Argument) -> Size:
    """An atom of `FUNCTIONS`, folded when its arguments are integers (those with a law stay symbolic)."""
    divisors = [arguments[i] for i in _POSITIVE.get(function, ())]
    if not all(isinstance(d, int) and d > 0 for d in divisors):
        raise VerifyError(f"{function}: expected positive integers, got {', '.join(map(str, divisors))}")
    if function != "ceildiv" and any(isinstance(d, int) and d > MOST_EXPERTS for d in divisors):
        raise VerifyError(f"{function}: expected numbers up to {MOST_EXPERTS:,}, got {divisors}")
    place = LAW.get(function, len(arguments))
    sizes, laws = [_size(a) for a in arguments[:place]], arguments[place:]
    if not all(isinstance(by, Law) for by in laws):
        raise VerifyError(f"{function}: expected a law of routing, got {laws[0]}")
    arguments = (*sizes, *laws)
    if function == "ceildiv" and isinstance(by := sizes[1], int):
        terms = _terms(sizes[0])
        if all(c % by == 0 for _, c in terms):
            return _make({m: c // by for m, c in terms})
    if function not in LAW and all(isinstance(s, int) for s in sizes):
        return int(FUNCTIONS[function](*arguments))
    return Dim((((Call(function, arguments),), 1),))


def ceildiv(a: Size, b: Size) -> Size:
    """`a / b` rounded up."""
    return call("ceildiv", a, b)


def distinct(held: int, chosen: int, tokens: Size, experts: int | None = None, by: Law = CHANCE) -> Size:
    """How many of `held` experts are expected to be touched: held·(1−(1−k/E)^n), or as another law says.

    n tokens choose k of E `experts`; by default all of them are held. Under another law than chance it is
    what the rank that the law speaks of touches, one of E/held.
    """
    return call("distinct", held, chosen, tokens, experts or held, *([] if by == CHANCE else [by]))


@lru_cache(maxsize=1 << 14)
def at_most(a: Size, b: Size) -> bool:
    """Whether `a <= b` for every binding, by comparing coefficients (False may mean unknown)."""
    return all(c >= 0 for _, c in _terms(b - a))


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

    def __call__(self, size: Argument) -> Number:
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
        return reduce(lambda value, atom: value * self._atom(atom), monomial[1:], self._atom(monomial[0]))

    def _atom(self, atom: Atom) -> Number:
        if isinstance(atom, str):
            if atom not in self.symbols:
                bound = ", ".join(self.symbols) or "none"
                raise InputError(f"symbol {atom!r} has no value; bound are {bound}")
            return self.symbols[atom]
        return FUNCTIONS[atom.function](*map(self, atom.arguments))

    @property
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

    >>> B, T = Dim.symbol("B"), Dim.symbol("T")
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
            return FUNCTIONS[first.function](*map(self, first.arguments))
        values = [part._product(monomial) for part in self.parts]
        return sum(values[1:], start=values[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all parts broadcast to."""
        return np.broadcast_shapes(*(part.shape for part in self.parts))

    def block(self, rows: slice) -> Binding:
        """Each part at some of the points."""
        axes = len(self.shape)
        return Mixed(p.block(rows) if len(p.shape) == axes and p.shape[0] > 1 else p for p in self.parts)
