"""Interval arithmetic on arrays, which finds the arguments that can decide a choice.

A choice is a minimum, a maximum or a `where`. Its arguments have bounds on blocks of the inputs. If the lower
bound of a minimum's argument exceeds another argument's upper bound, it never decides there. Such arguments
are discarded, with the nodes that only they need. The results of the pruned function equal the original
results bit for bit.

`Range` contains bounds, and `BOUNDS` computes them for each operation. Rounding is monotonic, so a rounded
sum of lower bounds is a lower bound; for library functions, two units in the last place are added as a margin
on each side. An undefined bound (infinity minus infinity) is NaN; comparisons with it exclude nothing.
`Choices` finds the choices and their ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .record import NOTHING, Function, KeptArguments

# Interval arithmetic

LAST = 4.5e-16  # two units in the last place of a float64


class Range(NamedTuple):
    """An interval from `low` to `high`, which are arrays that broadcast together; `positive` means that it
    contains no negative number.

    A boolean is 0 or 1.
    """

    low: Any
    high: Any
    positive: bool

    @classmethod
    def of(cls, low: Any, high: Any) -> Range:
        """A range from its ends."""
        return cls(low, high, bool(low.min() >= 0))

    @classmethod
    def at(cls, value: Any) -> Range:
        """One value, at each place of an array."""
        found = np.asarray(value, dtype=np.float64)
        return cls.of(found, found)


def _monotonic(function: Callable[..., Any], wide: float = 0.0) -> Callable[[Range], Range]:
    def bounds(x: Range) -> Range:
        return _wider(Range(function(x.low), function(x.high), x.positive), wide)

    return bounds


def _wider(x: Range, by: float) -> Range:
    if not by:
        return x
    return Range(x.low - abs(x.low) * by, x.high + abs(x.high) * by, x.positive)


def _corners(function: Callable[..., Any], a: Range, b: Range) -> tuple[Any, Any]:
    """The minimum and maximum of a function that is monotonic in each operand."""
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


def _where_range(condition: Range, a: Range, b: Range) -> Range:
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
    """Whether exactly one of two conditions is true."""
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
    "ceil": _monotonic(np.ceil),
    "floor": _monotonic(np.floor),
    "sqrt": _monotonic(np.sqrt),
    "cbrt": _monotonic(np.cbrt, LAST),
    "expm1": _monotonic(np.expm1, LAST),
    "hypot": _hypot,
    "minimum": _minimum,
    "maximum": _maximum,
    "where": _where_range,
    "less": lambda a, b: _truth(a.high < b.low, a.low >= b.high),
    "less_equal": lambda a, b: _truth(a.high <= b.low, a.low > b.high),
    "equal": _equal,
    "not_equal": lambda a, b: _not(_equal(a, b)),
    "logical_and": _minimum,
    "logical_or": _maximum,
    "logical_xor": _either,
}


# Choices

Array = np.ndarray[Any, np.dtype[Any]]
Places = Any  # an array of bool with calls × blocks, or True for all
Masks = Mapping[int, Array]  # by choice: whether each argument may decide, by call and argument


class Choice(NamedTuple):
    """The arguments of a minimum or a maximum, including nested ones of the same kind, or of a `where`."""

    kind: str
    of: tuple[int, ...]
    condition: tuple[int, ...] = ()  # for a `where` with two arguments

    @property
    def operands(self) -> tuple[int, ...]:
        """All nodes that it reads."""
        return self.condition + self.of


class Choices:
    """The choices of a function, and the arguments that decide them in given ranges."""

    def __init__(self, function: Function) -> None:
        self.function, self.nodes = function, function.tape.nodes
        self._within: set[int] = set()
        self.all = self._found()
        self.order = tuple(number for number in function.live if number not in self._within)
        # Choices, and nodes with a choice among their operands or indirect operands.
        self._decided = set(self.all)
        for number in self.order:
            if not self._decided.isdisjoint(self.operands(number)):
                self._decided.add(number)
        self.known: dict[Any, tuple[Range, KeptArguments]] = {}  # by the ranges of inputs

    def _found(self) -> Mapping[int, Choice]:
        """The outermost choices of each kind, by number."""
        function, nodes = self.function, self.nodes
        uses = Counter(n for number in function.live for n in nodes[number].of)
        uses.update(function.outputs)
        found: dict[int, Choice] = {}

        def arguments(number: int, kind: str) -> Iterable[int]:
            for n in nodes[number].of:
                if nodes[n].function == kind and uses[n] == 1 and n not in function.inputs:
                    self._within.add(n)
                    yield from arguments(n, kind)
                else:
                    yield n

        for number in reversed(function.live):
            kind, of = nodes[number]
            if kind == "where":
                found[number] = Choice(kind, of[1:], of[:1])
            elif kind in ("minimum", "maximum") and number not in self._within:
                found[number] = Choice(kind, tuple(arguments(number, kind)))
        return found

    def operands(self, number: int) -> tuple[int, ...]:
        """The operands of a node."""
        choice = self.all.get(number)
        return self.nodes[number].of if choice is None else choice.operands

    def deciding(self, inputs: Mapping[int, Range], calls: int) -> tuple[Range, tuple[KeptArguments, ...]]:
        """The range of the only output, and the arguments that choices keep in each of several calls.

        Ranges of inputs are arrays of calls × blocks.
        """
        ranges = self.ranges(inputs)
        relevant = self._relevant(ranges)
        masks = _masks(relevant, calls)
        # Removing arguments that never decide may let others decide that did not before.
        wrong = self._wrong(self.ranges(inputs, masks), relevant, masks)
        if wrong.any():
            wrong = np.broadcast_to(wrong, calls)
            safe = _masks(self._relevant(ranges, everywhere=True), calls)
            masks = {n: np.where(wrong[:, None], mask, masks.get(n, mask)) for n, mask in safe.items()}
        (output,) = self.function.outputs
        return ranges[output], tuple(self._named(masks, call) for call in range(calls))

    def _named(self, masks: Masks, call: int) -> KeptArguments:
        """The retained arguments of the choices that a call reduces."""
        some = {number: mask[call] for number, mask in masks.items()}
        return {
            number: tuple(n for n, keep in zip(self.all[number].of, row, strict=True) if keep)
            for number, row in some.items()
            if not row.all()
        }

    def ranges(self, inputs: Mapping[int, Range], masks: Masks = NOTHING) -> dict[int, Range]:
        """The ranges of all nodes; the range of a choice is that of the arguments that it keeps."""
        ranges, nodes = dict(inputs), self.nodes
        read = {n for number in self.order for n in self.operands(number)}
        for n in read.union(self.function.outputs):
            if nodes[n].function == "constant":
                ranges[n] = Range.at(nodes[n].of[0])
        with np.errstate(all="ignore"):
            for number in self.order:
                ranges[number] = self.range(number, ranges, masks)
        return ranges

    def range(self, number: int, ranges: Mapping[int, Range], masks: Masks = NOTHING) -> Range:
        """The range of a node, from those of its operands."""
        choice = self.all.get(number)
        given = [ranges[n] for n in self.operands(number)]
        if choice is None:
            return BOUNDS[self.nodes[number].function](*given)
        if number in masks:
            keep = [masks[number][:, i, None] for i in range(len(choice.of))]
            if choice.condition:
                first, second = keep
                low, high = np.where(second, given[0].low, 1), np.where(first, given[0].high, 0)
                given[0] = Range(low, high, True)
            else:
                none = np.inf if choice.kind == "minimum" else -np.inf
                given = [_only(x, mask, none) for x, mask in zip(given, keep, strict=True)]
        return BOUNDS["where"](*given) if choice.condition else reduce(BOUNDS[choice.kind], given)

    def _relevant(
        self, ranges: Mapping[int, Range], everywhere: bool = False
    ) -> dict[int, tuple[Places, list[Places]]]:
        """For each choice, the points where its value matters, and the points where each of its arguments may
        decide.

        It matters where a choice that contains it may select it, or `everywhere`.
        """
        where: dict[int, Places] = dict.fromkeys(self.function.outputs, True)
        found: dict[int, tuple[Places, list[Places]]] = {}
        for number in reversed(self.order):
            if number not in self._decided:
                continue
            here, choice = True if everywhere else where.pop(number), self.all.get(number)
            operands: Iterable[tuple[int, Places]] = ((n, here) for n in self.operands(number))
            if choice is not None:
                deciding = [here & places for places in self.decide(number, ranges)]
                found[number] = here, deciding
                operands = [*((n, here) for n in choice.condition), *zip(choice.of, deciding, strict=True)]
            for n, places in operands:
                if n in self._decided:
                    before = where.get(n, False)
                    where[n] = True if before is True or places is True else before | places
        return found

    def decide(self, number: int, ranges: Mapping[int, Range]) -> list[Any]:
        """The points where each argument may be chosen; if arguments are equal, the first one is."""
        choice = self.all[number]
        given = [ranges[n] for n in choice.of]
        if choice.condition:
            (condition,) = choice.condition
            return [ranges[condition].high > 0, ~(ranges[condition].low > 0)]
        if len(given) == 1:
            return [True]
        lows, highs = _range_ends(choice.kind, given)
        if len(given) == 2:
            first = highs[0] <= highs[1]
            return [first | ~(lows[0] >= highs[1]), ~(first & (lows[1] >= highs[0]))]
        least, taken = reduce(np.fmin, highs), np.False_
        found = []
        for low, high in zip(lows, highs, strict=True):
            witness = (high == least) & ~taken
            found.append(witness | ~(low >= least))
            taken = taken | witness
        return found

    def _wrong(
        self,
        ranges: Mapping[int, Range],
        relevant: Mapping[int, tuple[Places, list[Places]]],
        masks: Masks,
    ) -> Array:
        """The calls in which a discarded argument may decide after all, given the new ranges of the other
        arguments.

        A condition matters wherever its `where` matters, and stays the same.
        """
        found = np.zeros(1, dtype=bool)
        for number, (here, deciding) in relevant.items():
            choice, mask = self.all[number], masks[number]
            if choice.condition or number not in ranges:
                continue
            kept = [i for i in range(len(deciding)) if mask[:, i].any()]
            if len(kept) < 2:
                continue
            lows, highs = _range_ends(choice.kind, [ranges[choice.of[i]] for i in kept])
            places = [deciding[i] for i in kept]
            least = reduce(np.minimum, map(_infinite_elsewhere, places, highs))
            for i, low, where in zip(kept, lows, places, strict=True):
                some = mask[:, i, None] & (here & ~(where | (low >= least)))
                found = found | some.any(axis=-1)
        return found


def _range_ends(kind: str, given: list[Range]) -> tuple[list[Any], list[Any]]:
    """Lower and upper ends, so that the smallest is chosen."""
    if kind == "minimum":
        return [x.low for x in given], [x.high for x in given]
    return [-x.high for x in given], [-x.low for x in given]


def _infinite_elsewhere(places: Places, high: Any) -> Any:
    return np.where(places, high, np.inf)


def _only(x: Range, mask: Array, none: float) -> Range:
    """The range in the calls that keep it, and a range that never decides in the other calls."""
    if mask.all():
        return x
    return Range(np.where(mask, x.low, none), np.where(mask, x.high, none), x.positive)


def _masks(relevant: Mapping[int, tuple[Places, list[Places]]], calls: int) -> Masks:
    """Whether each argument of each choice decides at any point, in each call."""

    def anywhere(places: Places) -> Array:
        found = np.asarray(places)
        return np.broadcast_to(found.any(axis=-1) if found.ndim else found, calls)

    return {n: np.stack([anywhere(x) for x in places], axis=1) for n, (_, places) in relevant.items()}
