"""Functions with calls as single nodes, simplified for bounded counts; and external numbers.

An `Outline` is a tape on which a called function stays a single node. `prune` returns the function without
arguments of choices that never decide while the inputs are counts up to a maximum. It computes bounds of each
call on blocks of counts, treats equal calls together, and caches the results (`_ChoiceBounds`, `pruning.py`).

An `ExternalTape` contains numbers that are set when a function runs, such as the rates of a device that a
user edits on a page; values that depend only on these numbers are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from .languages import WHOLE
from .pruning import Choices, Range
from .record import Function, KeptArguments, Operand, Symbol, Tape

# Functions with calls as nodes

FINE = 32  # number of blocks between a power of two and the next; smaller numbers are one block each
KNOWN = 1 << 12  # calls of a function with cached results
NONE = -1  # no node


class Outline(Tape):
    """A tape on which a called function stays one node."""

    def call(self, function: Function, *operands: Operand) -> Operand:
        """The function of the operands as a node; if all operands are numbers, a number."""
        if not any(isinstance(x, Symbol) for x in operands):
            return super().call(function, *operands)
        return self.node(function, tuple(map(self.number, operands)))


class GuardedFunction(NamedTuple):
    """A function that is valid only if `holds`, a function of the same inputs, is true."""

    function: Function
    holds: Function


def inline_calls(outline: Function) -> Function:
    """The function of an outline with all calls replaced by their content, on a separate tape."""
    tape, names = Tape(outline.tape.kind), outline.inputs.values()
    return Function.of(tape, names, outline.onto(tape, map(tape.symbol, names)))


def prune(outline: Function, counts: Iterable[str], most: int) -> GuardedFunction:
    """The function without branches that never decide while these inputs are counts up to `most`."""
    bounded = _ChoiceBounds(outline, frozenset(counts), most)
    tape, names = Tape(outline.tape.kind), outline.inputs.values()
    symbols = [tape.symbol(name) for name in names]
    found = outline.onto(tape, symbols, bounded.kept, bounded.calls)
    holds: Operand = True
    for root in Function(outline.tape, outline.inputs, bounded.roots).onto(tape, symbols):
        holds = holds & (root >= 1) & (root <= most)
    return GuardedFunction(*(Function.of(tape, names, outputs) for outputs in (found, [holds])))


@lru_cache(maxsize=8)
def blocks(most: int) -> Range:
    """All integers from 1 to the maximum: first single integers, and then increasing blocks that end at round
    numbers.
    """
    ends = [*range(FINE)]
    while ends[-1] < most:
        ends.append(ends[-1] + max(1, (1 << ends[-1].bit_length()) // FINE // 2))
    ends[-1] = most
    return Range(np.array(ends[:-1], dtype=float) + 1, np.array(ends[1:], dtype=float), True)


@lru_cache(maxsize=1 << 10)
def choices(function: Function) -> Choices:
    """The choices of a called function."""
    return Choices(function)


class _ChoiceBounds:
    """The arguments that decide the choices of an outline, and those of its calls."""

    def __init__(self, outline: Function, counts: frozenset[str], most: int) -> None:
        self.outline, self.nodes = outline, outline.tape.nodes
        self.choices = choices(outline)
        self.counts, self.blocks = counts, blocks(most)
        self.calls: dict[int, KeptArguments] = {}  # for each call, the retained arguments of its choices
        self._ranges: dict[int, dict[int, Range]] = {}  # by an integer node: values that depend on it only
        self._bound_calls()
        self.kept = self._bound_choices()

    @property
    def roots(self) -> tuple[int, ...]:
        """The integers that are bounded."""
        return tuple(self._ranges)

    @cached_property
    def _before(self) -> Mapping[int, int]:
        """The last node through which all paths from the inputs to a node lead (immediate dominator), for
        each node.
        """
        found = dict.fromkeys(self.outline.inputs, NONE)
        for number in self.outline.live:
            found[number] = _common(found, self.nodes[number].of)
        return found

    @cached_property
    def _whole(self) -> set[int]:
        """The nodes that are integers if the inputs are integers, and that depend only on counts."""
        found = {number for number, name in self.outline.inputs.items() if name in self.counts}
        decided = set(found)
        for number in self.outline.live:
            function, of = self.nodes[number]
            if not all(n in decided or self._is_constant(n) for n in of):
                continue
            decided.add(number)
            numbers = of[1:] if function == "where" else of
            if function in WHOLE and all(n in found or self._integer(n) for n in numbers):
                found.add(number)
        return found

    def _is_constant(self, number: int) -> bool:
        return bool(self.nodes[number].function == "constant")

    def _integer(self, number: int) -> bool:
        return self._is_constant(number) and float(self.nodes[number].of[0]).is_integer()

    def _root(self, operands: Iterable[int]) -> int:
        """The last integer node from which all of them follow, and which is not a multiple of another
        node.
        """
        found = _common(self._before, operands)
        while found != NONE:
            function, of = self.nodes[found]
            multiple = function == "multiply" and any(self.nodes[n].function == "constant" for n in of)
            if found in self._whole and not multiple:
                break
            found = self._before[found]
        return found

    def _bound_calls(self) -> None:
        """Compute bounds of the calls, in rounds: each round takes the calls whose operands have bounds."""
        roots = {n: self._root(self.nodes[n].of) for n in self.outline.live if self._is_call(n)}
        open_ = [n for n, root in roots.items() if root != NONE]
        while open_:
            ready: dict[Function, list[tuple[int, int]]] = {}
            for number in open_:
                if self._bounded(roots[number], self.nodes[number].of):
                    ready.setdefault(self.nodes[number].function, []).append((number, roots[number]))
            if not ready:
                break
            for function, calls in ready.items():
                self._decide(function, calls)
            open_ = [n for n in open_ if n not in self.calls]

    def _is_call(self, number: int) -> bool:
        return isinstance(self.nodes[number].function, Function)

    def _bounded(self, root: int, operands: Iterable[int]) -> bool:
        """Compute the bounds on which a root depends; False if this needs a call without bounds."""
        ranges = self._ranges.setdefault(root, {root: self.blocks})
        needed, open_ = set[int](), list(operands)
        while open_:
            number = open_.pop()
            if number in ranges or number in needed:
                continue
            if self._is_call(number):
                return False
            needed.add(number)
            if self.nodes[number].function != "constant":
                open_ += self.choices.operands(number)
        with np.errstate(all="ignore"):
            for number in sorted(needed):
                function, of = self.nodes[number]
                constant = function == "constant"
                ranges[number] = Range.at(of[0]) if constant else self.choices.range(number, ranges)
        return True

    def _decide(self, function: Function, calls: list[tuple[int, int]]) -> None:
        """Compute bounds of calls of one function, as a group, unless they are cached."""
        given = {
            number: tuple(self._ranges[root][n] for n in self.nodes[number].of) for number, root in calls
        }
        known = choices(function).known
        keys = {number: tuple(map(_key, ranges)) for number, ranges in given.items()}
        fresh = {keys[number]: ranges for number, ranges in given.items() if keys[number] not in known}
        if fresh:
            if len(known) + len(fresh) > KNOWN:
                known.clear()
            columns = zip(*fresh.values(), strict=True)
            inputs = dict(zip(function.inputs, map(_stacked, columns), strict=True))
            range_, kept = choices(function).deciding(inputs, len(fresh))
            size = len(fresh), *self.blocks.low.shape
            lows, highs = np.broadcast_to(range_.low, size), np.broadcast_to(range_.high, size)
            for key, low, high, keeps in zip(fresh, lows, highs, kept, strict=True):
                known[key] = Range(low, high, range_.positive), keeps
        for number, root in calls:
            self._ranges[root][number], self.calls[number] = known[keys[number]]

    def _bound_choices(self) -> KeptArguments:
        """The arguments that decide choices outside of calls."""
        found: dict[int, Any] = {}
        for number in self.choices.all:
            root = self._root(self.choices.operands(number))
            if root != NONE and self._bounded(root, self.choices.operands(number)):
                with np.errstate(all="ignore"):
                    places = self.choices.decide(number, self._ranges[root])
                found[number] = [np.any(x) for x in places]
        return {
            number: tuple(n for n, keep in zip(self.choices.all[number].of, row, strict=True) if keep)
            for number, row in found.items()
            if not all(row)
        }


def _common(before: Mapping[int, int], numbers: Iterable[int]) -> int:
    """The last node through which all paths to given nodes lead (common dominator), among nodes that depend
    on inputs.
    """
    found: int | None = None
    for number in numbers:
        if number not in before:
            continue  # a constant
        other = number
        found = other if found is None else found
        while found != other:
            if found > other:
                found = before[found]
            else:
                other = before[other]
    return NONE if found is None else found


def _key(x: Range) -> Any:
    return (x.low.tobytes(), x.high.tobytes()) if x.low.ndim else float(x.low)


def _stacked(ranges: Iterable[Range]) -> Range:
    """The ranges of an input in each call, as arrays of calls × blocks."""
    ends = zip(*((np.atleast_1d(x.low), np.atleast_1d(x.high)) for x in ranges), strict=True)
    low, high = (np.stack(np.broadcast_arrays(*each)) for each in ends)
    alike = low.shape[1] == 1 and (low == low[0]).all()  # all calls have the same number
    return Range.of(low[:1], high[:1]) if alike else Range.of(low, high)


# External numbers


class ExternalTape(Tape):
    """A tape of external numbers by name, with their typical values."""

    outside = True

    def __init__(self, scalars: Any, usual: Mapping[str, float]) -> None:
        super().__init__(scalars)
        self.usual = dict(usual)

    def value(self, symbol: Symbol) -> Any:
        """The typical value of a symbol."""
        function = Function.of(self, self.usual, [symbol])
        return function.onto(Tape(self.kind), self.usual.values())[0]


def typical_value(number: Any) -> Any:
    """The number itself, or the typical value if it is an external number."""
    return number.usual if is_external(number) else number


def is_external(number: Any) -> bool:
    """Whether a number is only known when functions run."""
    return isinstance(number, Symbol) and number.tape.outside


def external_names(symbol: Symbol) -> frozenset[str]:
    """The names of the external numbers on which a number depends."""
    nodes, found, open_ = symbol.tape.nodes, set[str](), [symbol.number]
    while open_:
        function, of = nodes[open_.pop()]
        if function == "symbol":
            found.add(of[0])
        elif function != "constant":
            open_ += of
    return frozenset(found)
