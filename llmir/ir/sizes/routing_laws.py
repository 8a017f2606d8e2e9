"""A law: what is said of how tokens choose experts; the rows of a rank and what they touch follow."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import bounded
from llmir.base.reading import expression

Array = np.ndarray[Any, np.dtype[np.float64]]

LAWS: dict[str, type[Law]] = {}
_LONGEST = 80  # characters of a law's text; the longest that means something has some 30
_TINY = 1e-12
_STEP = 0.05  # probabilities that differ by less are taken together; the sum over them is off by under 0.1%


@dataclass(frozen=True)
class Law(ABC):
    """How the tokens of a step choose `chosen` of `experts` experts each, those of a rank lying together.

    Where ranks do not divide the experts, all count as having as many as the fullest.

    Its fields are its parameters; `word(parameters)` is its text, of which `law` makes it again.
    """

    word: ClassVar[str] = ""
    alone: ClassVar[bool] = False  # it is of one rank, so that experts cannot be laid over several

    def __init_subclass__(cls) -> None:
        LAWS[cls.word] = cls

    @property
    @abstractmethod
    def about(self) -> str:
        """What a report says of it."""

    def popularity(self, chosen: int, experts: int) -> Array:
        """The probability that a token chooses each expert; VerifyError of a law that does not say it."""
        fact = "says how busy ranks are, but not with which experts; expected chance, even or zipf:skew"
        raise VerifyError(f"copies of experts: {self.word} {fact}")

    def noise(self, chances: Array) -> Array:
        """The variance of the rows that a token brings experts of such chances."""
        return chances * (1 - chances)

    def touched(self, chance: float, tokens: Number) -> Number:
        """The probability that one of so many tokens chooses an expert of that chance."""
        return -namespace(tokens).expm1(tokens * math.log1p(-min(chance, 1 - _TINY)))

    def places(self, experts: int) -> int:
        """In how many places they lie."""
        return experts

    def instead(self, by: Law) -> Law:
        """Another law of how tokens choose, for experts that lie as they did."""
        return by

    def short(self, lengths: dict[int, int]) -> Law:
        """The law of a model whose lengths are others."""
        return self

    @abstractmethod
    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many of all tokens·chosen rows the busiest of `ranks` has; whole."""

    @abstractmethod
    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many of the `held` experts of that rank these rows touch; an expected number."""

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many tokens have an expert on the busiest of `ranks`; whole.

        Its rows fall to tokens as if each had so many chances as it can have rows there.
        """
        chances = min(chosen, fullest(self.places(experts), ranks))
        xp = namespace(tokens)
        share = self.busiest(ranks, chosen, tokens, experts) / xp.maximum(tokens * chances, 1)
        return whole(tokens * (1 - (1 - xp.minimum(share, 1)) ** chances))

    def __str__(self) -> str:
        given = ", ".join(_text(getattr(self, f.name)) for f in fields(self))
        return f"{self.word}({given})" if given else self.word


def fullest(experts: int, ranks: int) -> int:
    """The experts of a rank that has most of them: where ranks do not divide them, some have one less."""
    return -(-experts // ranks)


def parameter(law: Law, name: str, value: object, most: float) -> None:
    """VerifyError unless a parameter is a number from 0 to `most`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value <= most):  # type: ignore[operator]
        shown = f"{value:g}" if number else repr(value)
        raise VerifyError(f"{law.word}: {name} is {shown}, expected {bounded('a number', 0, most)}")


def whole(rows: Number) -> Number:
    """`rows` rounded up, but for what rounding has added; an integer of a number."""
    return namespace(rows).ceil(rows * (1 - _TINY))


def between(least: Number, rows: Number, most: Number) -> Number:
    """`rows`, `least` at least, and `most` at most."""
    xp = namespace(least, rows, most)
    return xp.minimum(xp.maximum(rows, least), most)


def alike(chosen: int, experts: int) -> Array:
    """The probability that a token chooses each of experts that are as popular."""
    return np.full(experts, min(chosen / experts, 1.0))


def levels(chances: Array) -> tuple[tuple[float, int], ...]:
    """Probabilities with how many experts have them, those that are almost alike together."""
    p = chances[chances > 0]
    _, which, counts = np.unique(np.round(np.log(p) / _STEP), return_inverse=True, return_counts=True)
    means = np.bincount(which, p) / counts
    return tuple((float(mean), int(count)) for mean, count in zip(means, counts, strict=True))


@lru_cache(maxsize=256)
def law(text: str) -> Law:
    """The law that prints as `text`; its one parameter may follow a colon. VerifyError if none does.

    >>> law("zipf(0.5)") == law("zipf:0.5"), str(law("arrived(8, even)"))
    (True, 'arrived(8, even)')
    """
    try:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise TypeError(text)
        word, colon, one = text.partition(":")
        return _build(expression(f"{word}({one})" if colon else text))
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        known = ", ".join(_form(known) for known in LAWS.values())
        raise VerifyError(f"routing {str(text)[:_LONGEST]!r}: expected one of {known}") from None


def _build(node: ast.expr) -> Law:
    match node:
        case ast.Name(id=word):
            return LAWS[word]()
        case ast.Call(func=ast.Name(id=word), args=[_, *_] as arguments, keywords=[]):
            return LAWS[word](*map(_argument, arguments))
    raise ValueError(ast.dump(node))


def _argument(node: ast.expr) -> Law | int | float:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else _build(node)


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _form(kind: type[Law]) -> str:
    """As it is written, `zipf:skew`."""
    names = [f.name for f in fields(kind)]
    if len(names) == 1:
        return f"{kind.word}:{names[0]}"
    return f"{kind.word}({', '.join(names)})" if names else kind.word
