"""Between which values a function lies where its operands lie between some: interval arithmetic, of arrays.

Rounding keeps the order of numbers, so that a sum at the least of its operands, rounded, bounds all others as
they are rounded. Functions of a library may be off by a last digit, and get two more on either side. What is
not known, as of infinity less infinity, is no number, and comparisons with it say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

LAST = 4.5e-16  # two last digits of a float64


class Range(NamedTuple):
    """All from `low` to `high`, arrays that broadcast together; none is negative where `positive` says so.

    Of a truth 0 or 1.
    """

    low: Any
    high: Any
    positive: bool

    @classmethod
    def of(cls, low: Any, high: Any) -> Range:
        """By its ends."""
        return cls(low, high, bool(low.min() >= 0))

    @classmethod
    def at(cls, value: Any) -> Range:
        """One value, at each place of an array."""
        found = np.asarray(value, dtype=np.float64)
        return cls.of(found, found)


def _rising(function: Callable[..., Any], wide: float = 0.0) -> Callable[[Range], Range]:
    def bounds(x: Range) -> Range:
        return _wider(Range(function(x.low), function(x.high), x.positive), wide)

    return bounds


def _wider(x: Range, by: float) -> Range:
    if not by:
        return x
    return Range(x.low - abs(x.low) * by, x.high + abs(x.high) * by, x.positive)


def _corners(function: Callable[..., Any], a: Range, b: Range) -> tuple[Any, Any]:
    """The least and the most of what rises or falls with each operand."""
    ends = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return reduce(np.minimum, ends), reduce(np.maximum, ends)


def _add(a: Range, b: Range) -> Range:
    low, high = a.low + b.low, a.high + b.high
    return Range(low, high, True) if a.positive and b.positive else Range.of(low, high)


def _subtract(a: Range, b: Range) -> Range:
    return Range.of(a.low - b.high, a.high - b.low)


def _multiply(a: Range, b: Range) -> Range:
    if a.positive and b.positive:
        return Range(a.low * b.low, a.high * b.high, True)
    if a.positive and a.low is a.high:  # one value
        return Range.of(a.low * b.low, a.low * b.high)
    return Range.of(*_corners(np.multiply, a, b))


def _divide(a: Range, b: Range) -> Range:
    if b.positive and a.positive:
        return Range(a.low / b.high, a.high / b.low, True)
    low, high = _corners(np.divide, a, b)
    known = (b.low > 0) | (b.high < 0)
    return Range.of(np.where(known, low, -np.inf), np.where(known, high, np.inf))


def _power(a: Range, b: Range) -> Range:
    low, high = _corners(np.power, a, b)
    known = a.low > 0
    return _wider(Range.of(np.where(known, low, -np.inf), np.where(known, high, np.inf)), 2 * LAST)


def _rounded(function: Callable[..., Any], quotient: Range) -> Range:
    return Range(function(quotient.low), function(quotient.high), quotient.positive)


def _absolute(a: Range) -> Range:
    low = np.where((a.low <= 0) & (a.high >= 0), 0.0, np.minimum(abs(a.low), abs(a.high)))
    return Range(low, np.maximum(abs(a.low), abs(a.high)), True)


def _hypot(a: Range, b: Range) -> Range:
    x, y = _absolute(a), _absolute(b)
    return _wider(Range(np.hypot(x.low, y.low), np.hypot(x.high, y.high), True), LAST)


def _minimum(a: Range, b: Range) -> Range:
    return Range(np.minimum(a.low, b.low), np.minimum(a.high, b.high), a.positive and b.positive)


def _maximum(a: Range, b: Range) -> Range:
    return Range(np.maximum(a.low, b.low), np.maximum(a.high, b.high), a.positive or b.positive)


def _where(condition: Range, a: Range, b: Range) -> Range:
    always, never = condition.low > 0, ~(condition.high > 0)
    either = _minimum(a, b).low, _maximum(a, b).high
    low = np.where(always, a.low, np.where(never, b.low, either[0]))
    high = np.where(always, a.high, np.where(never, b.high, either[1]))
    return Range(low, high, a.positive and b.positive)


def _truth(certain: Any, impossible: Any) -> Range:
    return Range(np.asarray(certain, np.float64), np.asarray(~impossible, np.float64), True)


def _equal(a: Range, b: Range) -> Range:
    same = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _truth(same, (a.high < b.low) | (b.high < a.low))


def _not(a: Range) -> Range:
    return Range(1 - a.high, 1 - a.low, True)


def _either(a: Range, b: Range) -> Range:
    """One of two truths, and not both."""
    return _minimum(_maximum(a, b), _not(_minimum(a, b)))


BOUNDS: dict[str, Callable[..., Range]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "floor_divide": lambda a, b: _rounded(np.floor, _divide(a, b)),
    "ceildiv": lambda a, b: _rounded(np.ceil, _divide(a, b)),
    "negative": lambda a: Range.of(-a.high, -a.low),
    "absolute": _absolute,
    "ceil": _rising(np.ceil),
    "floor": _rising(np.floor),
    "sqrt": _rising(np.sqrt),
    "cbrt": _rising(np.cbrt, LAST),
    "expm1": _rising(np.expm1, LAST),
    "hypot": _hypot,
    "minimum": _minimum,
    "maximum": _maximum,
    "where": _where,
    "less": lambda a, b: _truth(a.high < b.low, a.low >= b.high),
    "less_equal": lambda a, b: _truth(a.high <= b.low, a.low > b.high),
    "equal": _equal,
    "not_equal": lambda a, b: _not(_equal(a, b)),
    "logical_and": _minimum,
    "logical_or": _maximum,
    "logical_xor": _either,
}
