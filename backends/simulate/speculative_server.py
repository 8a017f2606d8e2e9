"""A server with speculative decoding: each step verifies drafts, and yields one or more tokens of a sequence.

How many tokens each step yields of a request is drawn when it begins to decode. So its last step is known
then, and so are its context and its blocks before each step. A calendar of the steps to come has the sums
over all sequences: the tokens that a step yields, and the blocks that it takes.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappush
from typing import NamedTuple

import numpy as np

from llmir.backends.step.batch import Batch

from .blocks import Blocks
from .kv_blocks import PrefixCache
from .load import Array
from .server import Server

STEPS = 1 << 10  # of a calendar at first


class Calendar:
    """A whole number for each step to come, 0 at first."""

    def __init__(self) -> None:
        self._first, self._values = 0, np.zeros(STEPS, dtype=np.int64)

    def add(self, step: int, values: Array) -> None:
        """Adds values to the steps from this one on; earlier steps are over and forgotten."""
        place = step - self._first
        if place + len(values) > len(self._values):
            kept = self._values[place:]
            self._values = np.zeros(2 * max(len(kept), len(values), STEPS), dtype=np.int64)
            self._values[: len(kept)] = kept
            self._first, place = step, 0
        self._values[place : place + len(values)] += values

    def of(self, step: int, steps: int) -> Array:
        """The values of so many steps, from this one on."""
        place = step - self._first
        return self._values[place : place + steps]


class SpeculativeBatch(Batch):
    """The tokens that all sequences have cached together, which grow by what each step yields."""

    def __init__(self) -> None:
        super().__init__(())
        self._now = self._total = 0
        self._yields = Calendar()

    @property
    def kept(self) -> tuple[int, ...]:
        """Their sum."""
        return (self._total,)

    def begin(self, context: int, yields: Array) -> None:
        """A sequence begins to decode; each of its steps yields so many tokens."""
        self._total += context
        self._yields.add(self._now, yields)

    def stop(self, context: int, rest: Array) -> None:
        """A sequence decodes no more; the rest of its tokens does not come."""
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
    """Blocks of sequences that take slots for all drafts of a step, those that turn out wrong too."""

    __slots__ = ("_due",)

    def __init__(self, total: int, size: int) -> None:
        super().__init__(total, size)
        self._due = Calendar()

    def begin(self, step: int, more: Array) -> None:
        """A sequence decodes from this step on, and takes so many blocks in each of its steps."""
        self._due.add(step, more)

    def stop(self, step: int, rest: Array) -> None:
        """A sequence decodes no more; it would have taken the rest from this step on."""
        self._due.add(step, -rest)

    def due(self, step: int) -> int:
        """Blocks that the decodes of a step take."""
        return int(self._due.of(step, 1).sum())

    def taken(self, step: int, steps: int) -> int:
        """Blocks that so many decode steps take, from this one on."""
        return int(self._due.of(step, steps).sum())

    def steps(self, step: int, spare: int = 0) -> int:
        """How many decode steps, from this one on, have enough free blocks, with some to `spare`."""
        taken = np.cumsum(self._due.of(step, len(self._due._values)))
        return int(np.searchsorted(taken, self.free - spare, side="right"))


class Schedule(NamedTuple):
    """The steps of a sequence, from `step` on with `context` tokens cached.

    `made` are the tokens that it has made after each step, `held` the blocks that it holds in each.
    """

    step: int
    context: int
    made: Array
    held: Array


class SpeculativeServer(Server):
    """A server with speculative decoding.

    `schedules` are those of sequences that decode. `used` counts the decode steps of each before, if it was
    preempted: its draws go on after them.
    """

    def _reset(self) -> None:
        super()._reset()
        self.batch: SpeculativeBatch = SpeculativeBatch()
        self.blocks: SpeculativeBlocks = SpeculativeBlocks(self.capacity.blocks, self.capacity.block)
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.schedules: dict[int, Schedule] = {}
        self.used: Counter[int] = Counter()

    def left(self, request: int, end: int) -> int:
        """Tokens that a sequence has to come."""
        schedule = self.schedules[request]
        done = self.step - schedule.step
        return int(schedule.made[-1]) - (int(schedule.made[done - 1]) if done else 0)

    def to_come(self, most: int) -> int:
        """Tokens to come of all that decode, `most` of each at most, as if nobody cancelled."""
        return sum(min(self.left(request, end) + self.cancelled[request], most) for end, request in self.ends)

    def _advance_contexts(self, steps: int) -> None:
        """Counts steps of all that decode; the batch has been advanced already."""
        self.step += steps
        self.kept = self.batch.kept[0]

    def _begin_decode(self, request: int, context: int, left: int) -> None:
        """A sequence decodes from the next step on, until it has so many more tokens: draws its steps."""
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

    def _end_decode(self, request: int, context: int) -> None:
        """A sequence decodes no more; the slots of wrong drafts are free, too."""
        schedule = self.schedules.pop(request)
        done = self.step - schedule.step
        first = self.blocks.of(schedule.context)
        self.used[request] += done
        self.decoding -= 1
        self.kept -= context
        self.batch.stop(context, np.diff(schedule.made, prepend=0)[done:])
        self.blocks.stop(self.step, np.diff(schedule.held, prepend=first)[done:])
        self._release(request, context)
        self.blocks.free += (int(schedule.held[done - 1]) if done else first) - self.blocks.of(context)
