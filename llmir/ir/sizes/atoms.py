"""What a size may hold besides symbols: functions of sizes, one class each.

The fields of an atom are its arguments: an `int` must be positive, a `Size` is any size, and a `Law` of
`routing` says how tokens choose experts. `name(arguments)` is its text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import bounded
from llmir.base.values import Record

from .polynomial import Dim, Size, divided, whole
from .routing import CHANCE
from .routing_laws import Law

ATOMS: dict[str, type[Atom]] = {}
Values = Callable[[Size], Number]  # a binding, which gives each size its value


@dataclass(frozen=True, eq=False)
class Atom(Record, ABC):
    """A function of sizes."""

    name: ClassVar[str] = ""
    about: ClassVar[str] = ""  # what a reader of a printed size is told
    most: ClassVar[int] = 1 << 20  # of its integers: laws of routing hold a number for each expert

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):  # one that has none is what several share
            ATOMS[cls.name] = cls

    @classmethod
    def of(cls, *arguments: Size | Law) -> Size:
        """The size that the atom of these arguments is; VerifyError if they do not fit."""
        kind: Any = cls  # a class is hashable, whatever its instances are
        return _size(kind, *arguments)

    def folded(self) -> Size | None:
        """The simpler size that it is for any binding, if it is one."""
        return None

    @abstractmethod
    def at(self, value: Values) -> Number:
        """Its value, by those of its arguments."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Those of its arguments that are sizes."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.type == "Size")

    def put(self, size: Callable[[Size], Size]) -> Size:
        """The same of other sizes."""
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
        """The quotient, where nothing has to be rounded."""
        return -(-self.a // self.by) if isinstance(self.a, int) else divided(self.a, self.by)

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
        """Of two numbers, or of a number and the smaller of one and another size."""
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
        """Of two numbers."""
        return max(self.a, self.b) if isinstance(self.a, int) and isinstance(self.b, int) else None

    def at(self, value: Values) -> Number:
        """Element by element."""
        return maximum(value(self.a), value(self.b))


@dataclass(frozen=True, eq=False)
class Distinct(Atom):
    """How many of `held` experts are expected to be touched by `tokens` that choose `chosen` of `experts`.

    Where ranks hold a part of them each, it is what the rank touches that touches most, one of experts/held.
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
        """As the law says."""
        return self.law.distinct(self.held, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class Routed(Atom):
    """The rows of `tokens` that choose `chosen` of `experts` each, to be split by expert (`ragged`)."""

    name = "routed"

    tokens: Size
    chosen: int
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """All of them."""
        return value(self.tokens) * self.chosen


@dataclass(frozen=True, eq=False)
class Busiest(Atom):
    """How many of those rows the busiest of `ranks` has (`ragged`)."""

    name = "busiest"
    about = "busiest(ranks, k, n, E, law), the rows of k·n that the busiest rank is expected to have"

    ranks: int
    chosen: int
    tokens: Size
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """As the law says."""
        return self.law.busiest(self.ranks, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class Sent(Atom):
    """`tokens` that go once to each rank that has one of the `chosen` of `experts` (`ragged`)."""

    name = "sent"
    about = "sent(n, k, E), n tokens that each go once to every rank that has one of their k experts of E"

    tokens: Size
    chosen: int
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """Where every expert has a rank of its own."""
        return value(self.tokens) * self.chosen


@dataclass(frozen=True, eq=False)
class Reached(Atom):
    """How many of those tokens the busiest of `ranks` has (`ragged`)."""

    name = "reached"
    about = "reached(ranks, k, n, E), the tokens of n of which the busiest rank is expected to have an expert"

    ranks: int
    chosen: int
    tokens: Size
    experts: int
    law: Law = CHANCE

    def at(self, value: Values) -> Number:
        """As the law says."""
        return self.law.reached(self.ranks, self.chosen, value(self.tokens), self.experts)


@dataclass(frozen=True, eq=False)
class OfPhase(Atom):
    """A size of those sequences of a step alone that are in one phase."""

    phase: ClassVar[str]

    a: Size

    def folded(self) -> Size | None:
        """A number is of no sequences."""
        return self.a if isinstance(self.a, int) else None

    def at(self, value: Values) -> Number:
        """Of the sequences that the binding says are in it; of all where it says nothing."""
        within = getattr(value, "within", None)
        return within(self.phase)(self.a) if within else value(self.a)


@dataclass(frozen=True, eq=False)
class OfPrefill(OfPhase):
    """Of the sequences that are read."""

    name = "of_prefill"
    phase = "prefill"


@dataclass(frozen=True, eq=False)
class OfDecode(OfPhase):
    """Of the sequences that go on by a token."""

    name = "of_decode"
    phase = "decode"


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two values, element by element if one is an array."""
    return namespace(a, b).minimum(a, b)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two values, element by element if one is an array."""
    return namespace(a, b).maximum(a, b)


def ceildiv(a: Size, by: int) -> Size:
    """`a / by` rounded up."""
    return CeilDiv.of(a, by)


def distinct(held: int, chosen: int, tokens: Size, experts: int | None = None, by: Law = CHANCE) -> Size:
    """How many of `held` experts are expected to be touched: E·(1−(1−k/E)^n) of all, or as another law says.

    n tokens choose k of E `experts`; by default all of them are held (`Distinct`).
    """
    return Distinct.of(held, chosen, tokens, experts or held, by)
