"""Polynomials in symbols and atoms with integer coefficients, the atoms, and their text form.

An atom is a function of sizes, one class each; its fields are its arguments. A field of type `int` is
positive, a `Size` is any size, and a `Law` is a routing law. `name(arguments)` is the text of an atom.

>>> from llmir.ir.sizes.binding import Binding
>>> B, T = Dim.symbol("B"), Dim.symbol("T")
>>> print(2 * T * (B + 3))
2*B*T + 6*T
>>> Binding(B=4, T=10)(2 * T * (B + 3))
140
"""

from __future__ import annotations

import ast
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cached_property, lru_cache
from typing import Any, ClassVar, SupportsIndex, Union

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import ParseError, VerifyError
from llmir.base.names import bounded, plain
from llmir.base.readers import expression
from llmir.base.values import Immutable, Record

from .routing_laws import CHANCE, Law, law

# --- Polynomials ---

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
    """`size` if it is valid: a Python integer for a numpy integer, and `TypeError` for a float."""
    return size if isinstance(size, Dim) else operator.index(size)


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Dim) else (((), size),)


def divide(size: Size, by: int) -> Size | None:
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
    """Multiply sizes.

    Args:
        sizes: Numbers and `Dim`s.

    Returns:
        The product; 1 for no sizes.

    >>> product([2, 3, 4]), product([])
    (24, 1)
    """
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def weighted_sum(parts: Iterable[tuple[Size, int]]) -> Size:
    """The sum of sizes times integer factors.

    >>> print(weighted_sum([(B * T, 2), (C + 1, 3), (B, -1)]))
    2*B*T + -1*B + 3*C + 3
    """
    total: dict[Monomial, int] = {}
    for size, times in parts:
        for monomial, coefficient in _terms(size):
            total[monomial] = total.get(monomial, 0) + times * coefficient
    return _make(total)


def monomials(sizes: Iterable[Size]) -> tuple[Dim, ...]:
    """The distinct monomials of sizes: equal values of all of them give equal sizes.

    >>> monomials([3 * B * T + 2 * B, 5 * B])
    (B*T, B)
    """
    found = dict.fromkeys(monomial for size in sizes for monomial, _ in _terms(size) if monomial)
    return tuple(Dim(((monomial, 1),)) for monomial in found)


def sole_product(sizes: Iterable[Size]) -> Dim | None:
    """The one product of symbols that determines these sizes; None if they depend on more, or on none.

    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> sole_product([3 * B * T, ceildiv(B * T + 1, 8)]), sole_product([B * T, B])
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
    """The names of the symbols of a size.

    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> sorted(symbols(3 * B * T + ceildiv(C, 8)))
    ['B', 'C', 'T']
    """
    found: set[str] = set()
    for monomial, _ in _terms(size):
        for factor in monomial:
            found |= {factor} if isinstance(factor, str) else frozenset().union(*map(symbols, factor.sizes))
    return frozenset(found)


@lru_cache(maxsize=1 << 14)
def after_step(size: Size) -> Size:
    """The size after a step: C + T replaces C.

    >>> print(after_step(2 * B * C))
    2*B*C + 2*B*T
    """
    return put(size, {"C": C + T})


def put(size: Size, values: Mapping[str, Size]) -> Size:
    """Substitute sizes for symbols.

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


def may_decrease(size: Size) -> bool:
    """Whether a larger symbol may make the size smaller: a non-constant term is subtracted, also inside
    atoms.

    >>> from llmir.ir.sizes.polynomial import ceildiv
    >>> may_decrease(2 * B * C + 1), may_decrease(C - 8 * T), may_decrease(ceildiv(C - 8 * T, 2))
    (False, True, True)
    """
    terms = _terms(size)
    inner = (part for m, _ in terms for factor in m if not isinstance(factor, str) for part in factor.sizes)
    return any(c < 0 and m for m, c in terms) or any(map(may_decrease, inner))


# --- Atoms ---

ATOMS: dict[str, type[Atom]] = {}
Values = Callable[[Size], Number]  # a binding, which gives each size its value


@dataclass(frozen=True, eq=False)
class Atom(Record, ABC):
    """A function of sizes."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""  # the explanation for readers of a printed size
    most: ClassVar[int] = 1 << 20  # the largest integer argument; routing laws store a number per expert

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):  # a class without a name is a shared base
            ATOMS[cls.name] = cls

    @classmethod
    def of(cls, *arguments: Size | Law) -> Size:
        """The size that the atom of these arguments is; VerifyError if they do not fit."""
        kind: Any = cls  # a class is always hashable
        return _size(kind, *arguments)

    def folded(self) -> Size | None:
        """A simpler size that is equal for any binding, if there is one."""
        return None

    @abstractmethod
    def at(self, value: Values) -> Number:
        """The value, computed from the values of the arguments."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The arguments that are sizes."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.type == "Size")

    def put(self, size: Callable[[Size], Size]) -> Size:
        """The atom with a function applied to its size arguments."""
        given = ((f.type, getattr(self, f.name)) for f in fields(self))
        return self.of(*(size(value) if kind == "Size" else value for kind, value in given))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        given = [(getattr(self, f.name), f.default) for f in fields(self)]
        return f"{self.name}({', '.join(str(value) for value, usual in given if value != usual)})"


@lru_cache(maxsize=1 << 14)
def _size(kind: type[Atom], *arguments: Any) -> Size:
    stated = fields(kind)
    least = sum(f.default is MISSING for f in stated)
    if not least <= len(arguments) <= len(stated):
        takes = ", ".join(f.name for f in stated)
        raise VerifyError(f"{kind.name}: expected ({takes}), got {len(arguments)} arguments")
    given = list(zip(stated, arguments, strict=False))
    counts = [a for f, a in given if f.type == "int"]
    if not all(isinstance(n, int) and 0 < n <= kind.most for n in counts):
        rule = f"expected {bounded('integers', 1, kind.most)}"
        raise VerifyError(f"{kind.name}: {rule}, got {', '.join(map(str, counts))}")
    for field, argument in given:
        if field.type == "Law" and not isinstance(argument, Law):
            raise VerifyError(f"{kind.name}: expected a law of routing, got {argument}")
    make: Any = kind
    atom: Atom = make(*(whole(a) if f.type == "Size" else a for f, a in given))
    known = atom.folded()
    return Dim((((atom,), 1),)) if known is None else known


@dataclass(frozen=True, eq=False)
class CeilDiv(Atom):
    """`a / by` rounded up."""

    name = "ceildiv"
    most = 1 << 48

    a: Size
    by: int

    def folded(self) -> Size | None:
        """The quotient, if it needs no rounding."""
        return -(-self.a // self.by) if isinstance(self.a, int) else divide(self.a, self.by)

    def at(self, value: Values) -> Number:
        """The quotient rounded up."""
        a = value(self.a)
        return namespace(a).ceildiv(a, self.by)


@dataclass(frozen=True, eq=False)
class Min(Atom):
    """The smaller of two."""

    name = "min"

    a: Size
    b: Size

    def folded(self) -> Size | None:
        if isinstance(self.a, int) or not isinstance(self.b, int):
            return min(self.a, self.b) if isinstance(self.a, int) and isinstance(self.b, int) else None
        match self.a.terms:
            case (((Min(a=a, b=int(b)),), 1),):
                return Min.of(a, min(b, self.b))
        return None

    def at(self, value: Values) -> Number:
        """Element by element."""
        return minimum(value(self.a), value(self.b))


@dataclass(frozen=True, eq=False)
class Max(Atom):
    """The larger of two."""

    name = "max"

    a: Size
    b: Size

    def folded(self) -> Size | None:
        return max(self.a, self.b) if isinstance(self.a, int) and isinstance(self.b, int) else None

    def at(self, value: Values) -> Number:
        """Element by element."""
        return maximum(value(self.a), value(self.b))


@dataclass(frozen=True, eq=False)
class Distinct(Atom):
    """The expected number of `held` experts that are touched by `tokens`, which choose `chosen` of `experts`.

    If ranks share the experts, it is the number on the rank that touches most, out of experts/held ranks.
    """

    name = "distinct"
    about = (
        "distinct(held, k, n, E), the experts that n tokens are expected to touch: by chance "
        "E·(1 − (1 − k/E)^n) of all; where ranks share them, those of the busiest of E/held ranks"
    )

    held: int
    chosen: int
    tokens: Size
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        return self.law.distinct(self.held, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class Routed(Atom):
    """The rows of `tokens` tokens that choose `chosen` of `experts` experts each; `ragged` splits rows."""

    name = "routed"

    tokens: Size
    chosen: int
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """All rows."""
        return value(self.tokens) * self.chosen


@dataclass(frozen=True, eq=False)
class Busiest(Atom):
    """The rows of the busiest of `ranks` (`ragged`)."""

    name = "busiest"
    about = "busiest(ranks, k, n, E, law), the rows of k·n that the busiest rank is expected to have"

    ranks: int
    chosen: int
    tokens: Size
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        return self.law.busiest(self.ranks, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class Sent(Atom):
    """`tokens` that are sent once to each rank with one of the `chosen` of `experts` (`ragged`)."""

    name = "sent"
    about = "sent(n, k, E), n tokens that each go once to every rank that has one of their k experts of E"

    tokens: Size
    chosen: int
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """The value if every expert has its own rank."""
        return value(self.tokens) * self.chosen


@dataclass(frozen=True, eq=False)
class Reached(Atom):
    """The tokens on the busiest of `ranks` (`ragged`)."""

    name = "reached"
    about = "reached(ranks, k, n, E), the tokens of n of which the busiest rank is expected to have an expert"

    ranks: int
    chosen: int
    tokens: Size
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        return self.law.reached(self.ranks, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class OfPhase(Atom):
    """The size for the sequences of one phase of a step only."""

    phase: ClassVar[str]

    a: Size

    def folded(self) -> Size | None:
        """A constant belongs to no sequence."""
        return self.a if isinstance(self.a, int) else None

    def at(self, value: Values) -> Number:
        """The value for the sequences in this phase, or for all if the binding has no phases."""
        within = getattr(value, "within", None)
        return within(self.phase)(self.a) if within else value(self.a)


@dataclass(frozen=True, eq=False)
class OfPrefill(OfPhase):
    """The argument for sequences in prefill."""

    name = "of_prefill"
    phase = "prefill"


@dataclass(frozen=True, eq=False)
class OfDecode(OfPhase):
    """The argument for decoding sequences."""

    name = "of_decode"
    phase = "decode"


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two values, element by element if one is an array."""
    return namespace(a, b).minimum(a, b)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two values, element by element if one is an array."""
    return namespace(a, b).maximum(a, b)


def ceildiv(a: Size, by: int) -> Size:
    """Divide a size and round up.

    Args:
        a: The size, a number or a `Dim`.
        by: The divisor, above 0.

    Returns:
        A number, or a `Dim` with an atom.

    >>> ceildiv(7, 2), str(ceildiv(Dim.symbol("T"), 16))
    (4, 'ceildiv(T, 16)')
    """
    return CeilDiv.of(a, by)


def distinct(held: int, chosen: int, tokens: Size, experts: int | None = None, by: Law = CHANCE) -> Size:
    """The expected number of touched experts on a rank.

    For uniform routing and one rank with all experts it is E·(1 − (1 − k/E)^n), where n tokens choose k of E
    experts (`Distinct`).

    Args:
        held: Number of experts of the rank.
        chosen: Number of experts that a token chooses.
        tokens: Number of tokens.
        experts: Number of experts of all ranks. The default is `held`.
        by: The routing law. The default is uniform routing.

    Returns:
        The number of experts as a size.

    >>> from llmir.ir.sizes.binding import Binding
    >>> round(Binding(T=1)(distinct(8, 2, Dim.symbol("T"))), 6)
    2.0
    """
    return Distinct.of(held, chosen, tokens, experts or held, by)


# --- Text form ---


def parse(text: str) -> Size:
    """The size of a text; `ParseError` for another text.

    >>> print(parse("T*B*2 + ceildiv(B, 8)"))
    2*B*T + ceildiv(B, 8)
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(text)
        return _build(expression(text))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, KeyError, VerifyError):
        allowed = f"integers, symbols, +, -, * and {', '.join(ATOMS)}"
        raise ParseError(f"size {plain(text, 60)!r}: expected {allowed}") from None


# A size of a real program has a few terms of a few factors. A larger expansion is an error.
_LONGEST = 2_000
_TERMS, _FACTORS, _DIGITS = 200, 16, 30

_OPERATORS: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _build(node: ast.expr) -> Size:
    size = _built(node)
    terms = size.terms if isinstance(size, Dim) else (((), size),)
    if len(terms) > _TERMS or any(len(m) > _FACTORS or abs(c) >= 10**_DIGITS for m, c in terms):
        raise ValueError("too large")
    return size


def _built(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return Dim.symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -1 * _build(operand)
        case ast.BinOp(left=left, op=how, right=right):
            return _OPERATORS[type(how)](_build(left), _build(right))
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            kinds = [f.type for f in fields(ATOMS[function])]
            if len(arguments) > len(kinds):
                raise ValueError(function)
            return ATOMS[function].of(*map(_argument, arguments, kinds))
    raise ValueError(ast.dump(node))


def _argument(node: ast.expr, kind: object) -> Size | Law:
    return law(ast.unparse(node)) if kind == "Law" else _build(node)
