"""Which arguments of the choices of a function ever decide it: the others are dropped, and it stays equal.

A choice is a minimum or a maximum of several, or a `where`. Arguments are bounded on blocks of inputs. One
that is above the upper bound of another on a block is no minimum there; a choice that itself decides nothing
on a block needs none of its arguments there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .bounds import BOUNDS, Range
from .record import NOTHING, Function, Kept

Array = np.ndarray[Any, np.dtype[Any]]
Masks = Mapping[int, Any]  # of choices, by call and argument, whether it may decide
Places = Any  # an array of bool over calls and blocks, or True


class Choice(NamedTuple):
    """The arguments of a minimum or a maximum, those of the same within it too, or the two of a `where`."""

    kind: str
    of: tuple[int, ...]


class Choices:
    """The choices of a function, and what decides them where its inputs lie in ranges."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.nodes = function.tape.nodes
        self.known: dict[Any, tuple[Range, Kept]] = {}  # by the ranges of inputs

    @cached_property
    def all(self) -> Mapping[int, Choice]:
        """By number, those that no other of their kind contains."""
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
                found[number] = Choice(kind, of[1:])
            elif kind in ("minimum", "maximum") and number not in self._within:
                found[number] = Choice(kind, tuple(arguments(number, kind)))
        return found

    @cached_property
    def _within(self) -> set[int]:
        return set()

    @cached_property
    def _order(self) -> tuple[int, ...]:
        """The nodes to bound, without choices within choices."""
        every = self.all
        return tuple(n for n in self.function.live if n not in self._within or n in every)

    @cached_property
    def _decided(self) -> frozenset[int]:
        """Choices, and what has one among its operands or theirs."""
        found = set(self.all)
        for number in self._order:
            if not found.isdisjoint(self.operands(number)):
                found.add(number)
        return frozenset(found)

    def operands(self, number: int) -> tuple[int, ...]:
        choice = self.all.get(number)
        if choice is None:
            return self.nodes[number].of
        return (self.nodes[number].of[0], *choice.of) if choice.kind == "where" else choice.of

    def deciding(self, inputs: Mapping[int, Range], calls: int) -> tuple[Range, list[Kept]]:
        """The range of the one output, and of each of several calls what its choices keep.

        Ranges of inputs are arrays of calls × blocks.
        """
        ranges = self.ranges(inputs)
        relevant = self._relevant(ranges, everywhere=False)
        kept = self._kept(relevant, calls)
        # What is dropped where it decides nothing may come to decide what it did not before.
        wrong = self._wrong(self.ranges(inputs, kept), relevant, kept, calls)
        if wrong.any():
            safe = self._kept(self._relevant(ranges, everywhere=True), calls)
            kept = {n: np.where(wrong[:, None], safe[n], kept[n]) for n in kept}
        (output,) = self.function.outputs
        return ranges[output], [self.named(kept, call) for call in range(calls)]

    def named(self, kept: Mapping[int, Array], call: int = 0) -> Kept:
        """Of choices that one call does not keep whole, the arguments that it keeps."""
        some = ((number, mask[call]) for number, mask in kept.items() if not mask[call].all())
        return {
            number: tuple(n for n, keep in zip(self.all[number].of, row, strict=True) if keep)
            for number, row in some
        }

    def ranges(
        self, inputs: Mapping[int, Range], kept: Masks = NOTHING
    ) -> dict[int, Range]:
        """Those of all nodes; of `kept` arguments of choices alone."""
        ranges, nodes = dict(inputs), self.nodes
        with np.errstate(all="ignore"):
            for number in self._order:
                for n in self.operands(number):
                    if n not in ranges:
                        ranges[n] = Range.at(nodes[n].of[0])
                ranges[number] = self.range(number, ranges, kept)
            for n in self.function.outputs:
                if n not in ranges:
                    ranges[n] = Range.at(nodes[n].of[0])
        return ranges

    def range(self, number: int, ranges: Mapping[int, Range], kept: Masks = NOTHING) -> Range:
        """That of a node, by those of its operands."""
        choice = self.all.get(number)
        if choice is None:
            function, of = self.nodes[number]
            return BOUNDS[function](*(ranges[n] for n in of))
        given = [ranges[n] for n in choice.of]
        if choice.kind == "where":
            condition = ranges[self.nodes[number].of[0]]
            if number in kept:
                first, second = (kept[number][:, i, None] for i in range(2))
                low, high = np.where(second, condition.low, 1), np.where(first, condition.high, 0)
                condition = Range(low, high, True)
            return BOUNDS["where"](condition, *given)
        if number in kept:
            none = np.inf if choice.kind == "minimum" else -np.inf
            masks = [kept[number][:, i, None] for i in range(len(given))]
            given = [
                x
                if mask.all()
                else Range(np.where(mask, x.low, none), np.where(mask, x.high, none), x.positive)
                for mask, x in zip(masks, given, strict=True)
            ]
        found = given[0]
        for other in given[1:]:
            found = BOUNDS[choice.kind](found, other)
        return found

    def _relevant(self, ranges: Mapping[int, Range], everywhere: bool) -> dict[int, list[Places]]:
        """Of each choice, where it counts, and where each of its arguments may decide it.

        A choice counts where a choice that it is an argument of needs it, or `everywhere`.
        """
        where: dict[int, Places] = dict.fromkeys(self.function.outputs, True)
        found: dict[int, list[Places]] = {}
        for number in reversed(self._order):
            here = True if everywhere else where.pop(number, None)
            if here is None or number not in self._decided:
                continue
            choice = self.all.get(number)
            operands = [(n, here) for n in self.nodes[number].of]
            if choice is not None:
                deciding = [here & places for places in self.decide(number, ranges)]
                found[number] = [here, *deciding]
                operands = [*operands[:1]] if choice.kind == "where" else []
                operands += zip(choice.of, deciding, strict=True)
            for n, places in operands:
                if n in self._decided:
                    before = where.get(n)
                    both = before is True or places is True
                    where[n] = True if both else places if before is None else before | places
        return found

    def decide(self, number: int, ranges: Mapping[int, Range]) -> list[Any]:
        """Where each argument may be the choice."""
        choice = self.all[number]
        given = [ranges[n] for n in choice.of]
        if choice.kind == "where":
            condition = ranges[self.nodes[number].of[0]]
            return [condition.high > 0, ~(condition.low > 0)]
        if choice.kind == "maximum":
            given = [Range(-x.high, -x.low, False) for x in given]
        highs = np.stack(np.broadcast_arrays(*(x.high for x in given)))
        highs = np.where(np.isnan(highs), np.inf, highs)
        witness, least = highs.argmin(axis=0), highs.min(axis=0)
        return [~(x.low >= least) | (witness == i) for i, x in enumerate(given)]

    def _kept(self, relevant: Mapping[int, list[Places]], calls: int) -> dict[int, Array]:
        """Whether each argument of each choice decides anywhere, by call."""

        def anywhere(places: Places) -> Array:
            found = np.asarray(places)
            return np.broadcast_to(found.any(axis=-1) if found.ndim else found, calls)

        return {n: np.stack([anywhere(x) for x in places[1:]], axis=1) for n, places in relevant.items()}

    def _wrong(
        self,
        ranges: Mapping[int, Range],
        relevant: Mapping[int, list[Places]],
        kept: Mapping[int, Array],
        calls: int,
    ) -> Array:
        """The calls in which an argument that did not decide may do so, by what the others are now."""
        found = np.zeros(calls, dtype=bool)
        for number, (here, *deciding) in relevant.items():
            choice = self.all[number]
            if choice.kind == "where":
                continue  # the condition is relevant wherever the choice is, and as it was
            sign = 1 if choice.kind == "minimum" else -1
            lows, highs = (
                [sign * (x.low if (end == "low") == (sign > 0) else x.high) for x in map(ranges.get, choice.of)]
                for end in ("low", "high")
            )
            pairs = zip(highs, deciding, strict=True)
            least = np.minimum.reduce(np.broadcast_arrays(*(np.where(w, h, np.inf) for h, w in pairs)))
            for i, (low, where) in enumerate(zip(lows, deciding, strict=True)):
                some = kept[number][:, i, None] & here & ~np.asarray(where) & ~(low >= least)
                found |= np.broadcast_to(some.any(axis=-1), calls)
        return found
