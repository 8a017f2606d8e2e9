"""Polynomials in symbols and atoms, with integer coefficients."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

from llmir.base.values import Immutable

if TYPE_CHECKING:
    from .atoms import Atom

Size = Union[int, "Dim"]
Factor = Union[str, "Atom"]  # a symbol's name, or a function of sizes
Monomial = tuple[Factor, ...]


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
        return _add(self, whole(other))

    def __mul__(self, other: Size) -> Size:
        return _multiply(self, whole(other))

    def __sub__(self, other: Size) -> Size:
        return _add(self, _multiply(whole(other), -1))

    def __rsub__(self, other: Size) -> Size:
        return _add(whole(other), _multiply(self, -1))

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        def term(monomial: Monomial, coefficient: int) -> str:
            factors = [str(a) for a in monomial]
            return "*".join(factors if coefficient == 1 and factors else [str(coefficient), *factors])

        return " + ".join(term(*t) for t in self.terms)

    __repr__ = __str__


B, T, C = Dim.symbol("B"), Dim.symbol("T"), Dim.symbol("C")


def whole(size: SupportsIndex | Dim) -> Size:
    """`size` if it is one; Python's own integer for numpy's, and `TypeError` for a float."""
    return size if isinstance(size, Dim) else operator.index(size)


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Dim) else (((), size),)


def divided(size: Size, by: int) -> Size | None:
    """`size / by` if that divides every coefficient."""
    terms = _terms(size)
    return _make({m: c // by for m, c in terms}) if all(c % by == 0 for _, c in terms) else None


def _make(coefficients: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in coefficients.items() if c}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    if len(kept) == 1:
        return Dim((*kept.items(),))
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
            monomial = tuple(sorted(left + right, key=str)) if left and right else left + right
            total[monomial] = total.get(monomial, 0) + x * y
    return _make(total)


def product(sizes: Iterable[Size]) -> Size:
    """The product of `sizes`; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def weighted(parts: Iterable[tuple[Size, int]]) -> Size:
    """The sum of sizes, each so many times.

    >>> print(weighted([(B * T, 2), (C + 1, 3), (B, -1)]))
    2*B*T + -1*B + 3*C + 3
    """
    total: dict[Monomial, int] = {}
    for size, times in parts:
        for monomial, coefficient in _terms(size):
            total[monomial] = total.get(monomial, 0) + times * coefficient
    return _make(total)


def monomials(sizes: Iterable[Size]) -> tuple[Dim, ...]:
    """What a binding is asked for by these sizes, each once: equal values of them give equal sizes.

    >>> monomials([3 * B * T + 2 * B, 5 * B])
    (B*T, B)
    """
    found = dict.fromkeys(monomial for size in sizes for monomial, _ in _terms(size) if monomial)
    return tuple(Dim(((monomial, 1),)) for monomial in found)


def sole(sizes: Iterable[Size]) -> Dim | None:
    """The one product of symbols that these sizes are functions of; None if they depend on more, or on none.

    >>> from llmir.ir.sizes.atoms import ceildiv
    >>> sole([3 * B * T, ceildiv(B * T + 1, 8)]), sole([B * T, B])
    (B*T, None)
    """
    found = products(sizes)
    return found.pop() if len(found) == 1 else None


def products(sizes: Iterable[Size]) -> set[Dim]:
    """The products of symbols that these sizes are functions of."""
    found: set[Dim] = set()
    open_ = list(monomials(sizes))
    while open_:
        size = open_.pop()
        first, *others = size.terms[0][0]
        if isinstance(first, str) or others:
            found.add(size)
        else:
            open_ += monomials(first.sizes)
    return found


@lru_cache(maxsize=1 << 14)
def symbols(size: Size) -> frozenset[str]:
    """The names that it is a function of.

    >>> from llmir.ir.sizes.atoms import ceildiv
    >>> sorted(symbols(3 * B * T + ceildiv(C, 8)))
    ['B', 'C', 'T']
    """
    found: set[str] = set()
    for monomial, _ in _terms(size):
        for factor in monomial:
            found |= {factor} if isinstance(factor, str) else frozenset().union(*map(symbols, factor.sizes))
    return frozenset(found)


@lru_cache(maxsize=1 << 14)
def grown(size: Size) -> Size:
    """A size of what was cached as it is after the step: with C + T in place of C.

    >>> print(grown(2 * B * C))
    2*B*C + 2*B*T
    """
    return put(size, {"C": C + T})


def put(size: Size, values: Mapping[str, Size]) -> Size:
    """A size with others in place of some of its symbols.

    >>> print(put(2 * B * C, {"C": C - 5}))
    2*B*C + -10*B
    """

    def factor(f: Factor) -> Size:
        return values.get(f, Dim.symbol(f)) if isinstance(f, str) else f.put(lambda inner: put(inner, values))

    total: Size = 0
    for monomial, coefficient in _terms(size):
        total = total + coefficient * product(map(factor, monomial))
    return total


@lru_cache(maxsize=1 << 14)
def at_most(a: Size, b: Size) -> bool:
    """Whether `a <= b` for every binding, by comparing coefficients (False may mean unknown)."""
    less, more = dict(_terms(a)), dict(_terms(b))
    return all(c <= more.get(m, 0) for m, c in less.items()) and all(
        c >= 0 for m, c in more.items() if m not in less
    )


def falls(size: Size) -> bool:
    """Whether a larger symbol may make it smaller: something that is no number is taken away, in atoms too.

    >>> from llmir.ir.sizes.atoms import ceildiv
    >>> falls(2 * B * C + 1), falls(C - 8 * T), falls(ceildiv(C - 8 * T, 2))
    (False, True, True)
    """
    terms = _terms(size)
    inner = (part for m, _ in terms for factor in m if not isinstance(factor, str) for part in factor.sizes)
    return any(c < 0 and m for m, c in terms) or any(map(falls, inner))
