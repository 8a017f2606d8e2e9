"""A server whose steps verify drafts: each yields some tokens of a sequence, and not always as many.

How many each step of a request yields is drawn when it begins to decode, so that the step after which it ends
is known then, as are its context and its blocks before each. What all that decode yield in a step, and the
blocks that they take, stand in a calendar of the steps to come.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappush
from typing import NamedTuple

import numpy as np

from llmir.backends.analysis.batch import Batch

from .blocks import Blocks
from .load import Array
from .prefix_cache import PrefixCache
from .server import Server

SOON = 1 << 10  # steps of a calendar at first


class Calendar:
    """Whole numbers of steps to come, 0 where nothing is said."""

    def __init__(self) -> None:
        self._first, self._values = 0, np.zeros(SOON, dtype=np.int64)

    def add(self, step: int, values: Array) -> None:
        """More in the steps from this one on, before which nobody looks again."""
        place = step - self._first
        if place + len(values) > len(self._values):
            kept = self._values[place:]
            self._values = np.zeros(2 * max(len(kept), len(values), SOON), dtype=np.int64)
            self._values[: len(kept)] = kept
            self._first, place = step, 0
        self._values[place : place + len(values)] += values

    def of(self, step: int, steps: int) -> Array:
        """Those of so many steps."""
        place = step - self._first
        return self._values[place : place + steps]


class SpeculativeBatch(Batch):
    """The tokens that all sequences keep together, which grow by what each step yields."""

    def __init__(self) -> None:
        super().__init__(())
        self._now = self._total = 0
        self._yields = Calendar()

    @property
    def kept(self) -> tuple[int, ...]:
        """Their sum."""
        return (self._total,)

    def begin(self, context: int, yields: Array) -> None:
        """A sequence decodes that has so many, and gets more in each of the next steps."""
        self._total += context
        self._yields.add(self._now, yields)

    def stop(self, context: int, rest: Array) -> None:
        """One decodes no more, and gets none of the rest."""
        self._total -= context
        self._yields.add(self._now, -rest)

    def advance(self, steps: int = 1) -> None:
        """So many steps."""
        self._total += int(self._yields.of(self._now, steps).sum())
        self._now += steps

    def ahead(self, steps: int) -> list[Array]:
        """The sum before each of the next steps."""
        found = np.full(steps, self._total)
        more = np.cumsum(self._yields.of(self._now, steps - 1))
        found[1 : len(more) + 1] += more
        return [found]


class SpeculativeBlocks(Blocks):
    """Blocks of sequences that take slots for all rows of a step, those of drafts that turn out wrong too."""

    __slots__ = ("_due",)

    def __init__(self, total: int, size: int) -> None:
        super().__init__(total, size)
        self._due = Calendar()

    def begin(self, step: int, more: Array) -> None:
        """A sequence decodes from this step on, and takes more blocks in each."""
        self._due.add(step, more)

    def stop(self, step: int, rest: Array) -> None:
        """It would have taken the rest from this step on."""
        self._due.add(step, -rest)

    def due(self, step: int) -> int:
        """Blocks that a step takes."""
        return int(self._due.of(step, 1).sum())

    def taken(self, step: int, steps: int) -> int:
        """Blocks that so many steps take, from this one on."""
        return int(self._due.of(step, steps).sum())

    def steps(self, step: int, spare: int = 0) -> int:
        """How many steps, from this one on, find the blocks that they take, and leave so many."""
        taken = np.cumsum(self._due.of(step, len(self._due._values)))
        return int(np.searchsorted(taken, self.free - spare, side="right"))


class Schedule(NamedTuple):
    """How a sequence decodes from a step on, at a context: tokens made after each, blocks held in each."""

    step: int
    context: int
    made: Array
    held: Array


class SpeculativeServer(Server):
    """Such an engine; `walks` are those of sequences that decode, `used` the steps of each before them."""

    def _idle(self) -> None:
        super()._idle()
        self.batch: SpeculativeBatch = SpeculativeBatch()
        self.blocks: SpeculativeBlocks = SpeculativeBlocks(self.capacity.blocks, self.capacity.block)
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.schedules: dict[int, Schedule] = {}
        self.used: Counter[int] = Counter()

    def left(self, request: int, end: int) -> int:
        """Tokens that one that decodes has to come."""
        schedule = self.schedules[request]
        done = self.step - schedule.step
        return int(schedule.made[-1]) - (int(schedule.made[done - 1]) if done else 0)

    def to_come(self, most: int) -> int:
        """Those that all that decode have, as far as is known."""
        return sum(min(self.left(request, end) + self.more[request], most) for end, request in self.ends)

    def _go(self, steps: int) -> None:
        """What decodes is so many steps further, as its batch is."""
        self.step += steps
        self.kept = self.batch.kept[0]

    def _begin(self, request: int, context: int, left: int) -> None:
        """It decodes from the next step on, until it has so many more tokens: its steps are drawn."""
        assert self.load.yields is not None
        drawn, size = self.load.yields(request)[self.used[request] :], self.blocks.size
        made = np.cumsum(drawn)
        steps = int(np.searchsorted(made, left)) + 1
        made = made[:steps]
        made[-1] = left  # no more than it asked for
        yields = np.diff(made, prepend=0)
        held = -(-(context + made - yields + self.capacity.rows) // size)
        self.schedules[request] = Schedule(self.step, context, made, held)
        self.batch.begin(context, yields)
        self.blocks.begin(self.step, np.diff(held, prepend=self.blocks.of(context)))
        heappush(self.ends, (self.step + steps, request))
        self.decoding += 1
        self.kept += context

    def _leave(self, request: int, context: int) -> None:
        """It decodes no more, and gives back the slots of its last step too."""
        schedule = self.schedules.pop(request)
        done = self.step - schedule.step
        first = self.blocks.of(schedule.context)
        self.used[request] += done
        self.decoding -= 1
        self.kept -= context
        self.batch.stop(context, np.diff(schedule.made, prepend=0)[done:])
        self.blocks.stop(self.step, np.diff(schedule.held, prepend=first)[done:])
        self._give(request, context)
        self.blocks.free += (int(schedule.held[done - 1]) if done else first) - self.blocks.of(context)
