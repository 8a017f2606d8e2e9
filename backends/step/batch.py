"""Sequences that decode together, for who goes step by step: what they keep, without asking each of them.

What a sequence keeps grows from step to step by a rate that changes at few contexts: where a window is full,
and at each start of a chunk. So does the sum. A step adds the rates, and for each such context what its
sequences change; they are known by how far they are apart, which no step changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from llmir.base.arguments import integer
from llmir.base.errors import InputError
from llmir.ir.sizes.atoms import CeilDiv
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim

from .keeps import atoms

Array = np.ndarray[Any, np.dtype[Any]]
FAR = 1 << 22  # tokens that no context passes
_FIRST = 1 << 10


class Course(NamedTuple):
    """How a function of contexts goes: its first values, then every `period` tokens the same and `more`.

    Its rate, from a context to the next, changes after each of the contexts `once` and after all that leave
    the rests `again`, by so much.
    """

    values: tuple[int, ...]
    period: int
    more: int
    once: Mapping[int, int]
    again: Mapping[int, int]

    def at(self, context: int) -> int:
        """The value there."""
        over = max(0, context - len(self.values) + self.period) // self.period
        return self.values[context - over * self.period] + over * self.more


@lru_cache(maxsize=1 << 8)
def course(function: Dim) -> Course:
    """That of a function, from its values."""
    period, length = lcm(*(a.by for a in atoms([function]) if isinstance(a, CeilDiv))), _FIRST
    while True:
        length = min(2 * length + 4 * period, FAR)
        contexts = np.arange(length + period, dtype=float)
        values = np.broadcast_to(Binding(C=contexts)(function), contexts.shape)
        changes = np.diff(values.astype(np.int64), 2)
        differ = np.flatnonzero(changes[:-period] != changes[period:])
        start = int(differ[-1]) + 1 if len(differ) else 0
        if length == FAR or (start < length // 2 and _goes_on(function, length, period)):
            break
    turn = {c % period: int(changes[c]) for c in range(start, start + period) if changes[c]}
    once = {c: n for c in range(start) if (n := int(changes[c]) - turn.get(c % period, 0))}
    first = tuple(map(int, values[: start + 2 * period]))
    return Course(first, period, first[-1] - first[-1 - period], once, turn)


def _goes_on(function: Dim, length: int, period: int) -> bool:
    """Whether far contexts see as much more every period."""
    far = np.array([length, *(1 << n for n in range(length.bit_length(), FAR.bit_length()))], dtype=float)
    more = np.broadcast_to(Binding(C=far + period)(function) - Binding(C=far)(function), far.shape)
    return bool(np.all(more == more[0]))


class Batch:
    """Sequences that go on by a token each at every step; others join and leave between steps.

    `kept` is the sum over them of each of a surface's functions; a join, a leave and a step take as long with
    any number of them.
    """

    def __init__(self, functions: Sequence[Dim], contexts: Iterable[int] = ()) -> None:
        self._courses = tuple(map(course, functions))
        self._step = self._length = 0
        self._sums, self._rates = [0] * len(functions), [0] * len(functions)
        self._at: Counter[int] = Counter()  # sequences by their context before the first step
        periods = {each.period for each in self._courses if each.again}
        self._rests: dict[int, Counter[int]] = {period: Counter() for period in periods}
        for context in contexts:
            self.join(context)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        """The contexts."""
        return (start + self._step for start in self._at.elements())

    def __repr__(self) -> str:
        return f"<Batch of {self._length:,} sequences that keep {self.kept}>"

    @property
    def kept(self) -> tuple[int, ...]:
        """What they keep together."""
        return tuple(self._sums)

    def join(self, context: int) -> None:
        """One more, with so many cached tokens; InputError for what is no number of them."""
        self._put(integer("context", context, most=FAR), 1)

    def leave(self, context: int) -> None:
        """One of that context less; InputError if there is none."""
        context = integer("context", context, most=FAR)
        if self._at[context - self._step] < 1:
            raise InputError(f"context: no sequence of the batch has {context:,} cached tokens")
        self._put(context, -1)

    def _put(self, context: int, count: int) -> None:
        start = context - self._step
        self._length += count
        self._at[start] += count
        if not self._at[start]:
            del self._at[start]
        for period, rests in self._rests.items():
            rests[start % period] += count
        for i, each in enumerate(self._courses):
            here = each.at(context)
            self._sums[i] += count * here
            self._rates[i] += count * (each.at(context + 1) - here)

    def advance(self, steps: int = 1) -> None:
        """So many steps: each has as many tokens more."""
        for i, each in enumerate(self._courses):
            self._sums[i] += self._rates[i] * steps
            for after, change in self._changes(each, steps):
                self._sums[i] += change * (steps - 1 - after)
                self._rates[i] += change
        self._step += steps

    def ahead(self, steps: int) -> list[Array]:
        """What they keep together before each of the next steps."""
        found, later = [], np.arange(steps)
        for i, each in enumerate(self._courses):
            sums = self._sums[i] + self._rates[i] * later
            for after, change in self._changes(each, steps):
                sums[after + 1 :] += change * later[: steps - 1 - after]
            found.append(sums)
        return found

    def _changes(self, each: Course, steps: int) -> Iterator[tuple[int, int]]:
        """How rates change in the next steps: after which of them, and by how much."""
        now, at = self._step, self._at
        for context, change in each.once.items():
            if steps <= len(at):
                within = ((n, at.get(context - now - n, 0)) for n in range(steps))
            else:
                within = ((context - now - start, count) for start, count in at.items())
            yield from ((n, change * count) for n, count in within if count and 0 <= n < steps)
        if each.again:
            for rest, count in self._rests[each.period].items():
                for turn, change in each.again.items():
                    for n in range((turn - rest - now) % each.period, steps, each.period):
                        yield n, change * count
