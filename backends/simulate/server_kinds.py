"""Servers with pipeline stages, servers with speculative decoding, and decode servers.

`PipelinedServer`: a step is a micro-batch, and m of them are in the pipeline at once. Micro-batch k begins
when the first stage is free and k − m is done, and leaves stage s at F(k, s) = max(F(k − 1, s), F(k, s − 1))
+ t(k, s), as in a flow shop (Johnson 1954). A micro-batch prefills its own prompts and decodes an equal share
of the sequences.

`SpeculativeServer`: a step verifies drafts and yields one or more tokens of a sequence. The number of tokens
of each step is drawn when a request begins to decode, so its last step, contexts and blocks are known then. A
`StepCalendar` stores the sums over all sequences. `server_of` and `decode_server_of` choose the class; a
`DecodeServer` serves requests whose prompts are cached.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush
from math import ceil
from typing import NamedTuple

import numpy as np

from llmir.backends.memory.caches import CacheGroup
from llmir.backends.step.composition import DecodeBatch

from .kv_blocks import BlockPool, PrefixCache
from .load import Array, Load
from .server import FOREVER, Capacity, Policy, RequestTimeline, Server, chunks_by_rank, row
from .step_times import StepTimes

# Pipeline stages


class PipelinedServer(Server):
    """A server with pipeline stages; `now` is the earliest start of the next micro-batch.

    `turn` is the number of micro-batches of the round that have begun. `passing` contains the prompts whose
    last chunk is in the pipeline, with the time at which each leaves it; these prompts cannot be preempted.
    Until `clear_s`, micro-batches with prefill are in the pipeline, and each micro-batch is simulated
    separately. After that, all micro-batches only decode, and all rounds are equal.
    """

    def _reset(self) -> None:
        super()._reset()
        self.turn = 0
        self.free_s: list[float] = []  # when each stage is free
        self.done_s: deque[float] = deque()  # when the last m − 1 micro-batches are through
        self.passing: deque[tuple[float, int]] = deque()
        self.clear_s = 0.0
        self.waits = False  # waits for a prompt in the pipeline, because nothing else can run

    @property
    def begins_s(self) -> float:
        """When its next micro-batch begins, if it has one; or when a prompt leaves the pipeline, if that is
        earlier.
        """
        if self.passing and (self.waits or self.passing[0][0] < self.now):
            return self.passing[0][0]
        return self.now

    def come(self, request: int, time_s: float) -> None:
        """A request arrives; its prefill may start while the server waits for a prompt in the pipeline."""
        self.waits = False
        super().come(request, time_s)

    def advance(self, until: float = FOREVER) -> None:
        """Run all micro-batches that begin before a time."""
        policy, self.until = self.policy, until
        self._take_arrived()
        while self.now < self.until:
            before, self.waits = self.preempted, False
            self._take_arrived()
            if self.now >= self.until:  # a request completed, and a following one arrives first
                return
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            late = self._receive()
            short = self.may_lack_blocks and self.lacks_blocks
            if short and policy.mixes and not self.passing:
                policy.relieve(self)
                short = False
            if (self.waiting or self.reading) and not (short and policy.mixes):
                policy.fill(self, self.preempted > before)
            else:
                self.hold_until = None
            if self.chunks:
                self._prefill_step()
            elif self.decoding and not (short and self.passing):
                self._decode_steps(bool(late) or self.preempted > before)
            elif self.passing and not late:  # they can be preempted after they leave the pipeline
                self.now, self.waits = min(self.passing[0][0], self.until), True
            elif not late:
                return
            self.waiting.extend(late)

    @property
    def busy(self) -> bool:
        """Whether the server has requests."""
        return super().busy or bool(self.passing)

    def to_come(self, most: int) -> int:
        """Remaining output tokens, including those of prompts in the pipeline."""
        passing = [request for _, request in self.passing]
        ends = [self.prompt[one] + self.generate[one] + self.cancelled[one] for one in passing]
        rest = (end - self.to_read[one] for one, end in zip(passing, ends, strict=True))
        return super().to_come(most) + sum(min(tokens, most) for tokens in rest)

    def _take_arrived(self) -> None:
        """Give the next token to prompts that have left the pipeline by now, and before `until`."""
        now = self.now
        while self.passing and self.passing[0][0] <= now and self.passing[0][0] < self.until:
            self.now, request = self.passing.popleft()
            self.turn = self.turn if self.decoding else 0
            self._prefilled(request)
        self.now = now

    def _prefill_step(self) -> None:
        """The micro-batch that the policy has filled, with its share of the decodes."""
        chunks, self.chunks = self.chunks, {}
        ranks = chunks_by_rank(chunks, self.running, len(self.on_ranks))
        self._through(ranks, bool(self.policy.mixes and self.decoding))
        self.received = self.step
        self._land()
        self.clear_s = done_s = self.free_s[-1]
        for request in chunks:
            if self.reading[request] == self.to_read[request]:
                del self.reading[request]
                self.passing.append((done_s, request))

    def _decode_steps(self, once: bool) -> None:
        """Run micro-batches that only decode: whole rounds, and then a part of a round.

        The micro-batches of a part of a round count as equally long, and their tokens come at the end of the
        round.
        """
        if self.may_lack_blocks and self.lacks_blocks:
            self.policy.relieve(self)
            return
        if self.now < self.clear_s:
            self._through([[]], True)
            return
        stop = min(self.until, self.deadlines[0][0]) if self.deadlines else self.until
        round_s, most = self._round_s(), self.capacity.micro_batches
        self.free_s, self.done_s = [], deque()
        if not self.turn and not once and stop - self.now > round_s:
            until, self.until = self.until, stop - round_s  # rounds that end by then
            super()._decode_steps(False)
            self.until = until if self.until == stop - round_s else min(self.until, until)
            return
        each = round_s / most
        count = 1 if once else min(most - self.turn, ceil(min((stop - self.now) / each, most)))
        self._count_micro_batches(count, count * each, [[]])

    def _round_s(self) -> float:
        """Seconds of a round of micro-batches that only decode."""
        sums = (self.kept,) if self.batch is None else self.batch.kept
        return float(self.prices.step(self.decoding, sums, ()))

    def _through(self, ranks: list[list[tuple[int, int]]], decodes: bool) -> None:
        """Send one micro-batch through the stages; `ranks` contains the prefill chunks of each rank."""
        parts = min(self.capacity.micro_batches, self.decoding) if decodes else 1
        sums = ((self.kept,) if self.batch is None else self.batch.kept) if decodes else (0,)
        count = self.decoding / parts if decodes else 0
        _, *stages = self.prices.micro_batch(count, [total / parts for total in sums], ranks)
        time_s, free_s = self.now, self.free_s or [self.now] * len(stages)
        for i, seconds in enumerate(stages):
            time_s = free_s[i] = max(time_s, free_s[i]) + seconds
        self.free_s = free_s
        self.done_s.append(time_s)
        full = len(self.done_s) == self.capacity.micro_batches
        begin = max(free_s[0], self.done_s.popleft()) if full else free_s[0]
        self._count_micro_batches(int(decodes), begin - self.now, ranks)

    def _count_micro_batches(self, count: int, seconds: float, ranks: list[list[tuple[int, int]]]) -> None:
        """Count micro-batches that have begun; at the end of a round, all decoding sequences get a token."""
        self.turn += count
        whole = bool(self.decoding) and self.turn >= self.capacity.micro_batches
        decodes, kept = (self.decoding, self.kept) if whole else (0, 0)
        held = self.blocks.go(self.step, int(whole))
        news, waiting = [new for chunks in ranks for new, _ in chunks], len(self.waiting)
        self.log += row(self.now, seconds, 1, decodes, kept, sum(news), len(news), waiting, held)
        self.now += seconds
        if not whole:
            return
        self.turn, self.decoded_s = 0, self.now
        self.step += 1
        self.kept += decodes
        if self.batch is not None:
            self.batch.advance()
        if self.ends[0][0] == self.step:
            self._finish_due()

    def _drop(self, request: int) -> None:
        """Stop a request, even if its prompt is in the pipeline."""
        mine = next((one for one in self.passing if one[1] == request), None)
        if mine is not None:
            self.passing.remove(mine)
            self.reading[request] = self.to_read[request]
        super()._drop(request)


# Speculative decoding

STEPS = 1 << 10  # the initial length of a calendar


class StepCalendar:
    """A number for each future step, initially 0."""

    def __init__(self) -> None:
        self._first, self._values = 0, np.zeros(STEPS, dtype=np.int64)

    def add(self, step: int, values: Array) -> None:
        """Add values to the steps starting with this one; earlier steps are removed."""
        place = step - self._first
        if place + len(values) > len(self._values):
            kept = self._values[place:]
            self._values = np.zeros(2 * max(len(kept), len(values), STEPS), dtype=np.int64)
            self._values[: len(kept)] = kept
            self._first, place = step, 0
        self._values[place : place + len(values)] += values

    def of(self, step: int, steps: int) -> Array:
        """The values of `steps` steps, starting with this one."""
        place = step - self._first
        return self._values[place : place + steps]


class SpeculativeDecodeBatch(DecodeBatch):
    """The total number of cached tokens of all sequences, which grows by the tokens of each step."""

    def __init__(self) -> None:
        super().__init__(())
        self._now = self._total = 0
        self._yields = StepCalendar()

    @property
    def kept(self) -> tuple[int, ...]:
        """Their sum."""
        return (self._total,)

    def begin(self, context: int, yields: Array) -> None:
        """Add a sequence that begins to decode, with the number of tokens of each of its steps."""
        self._total += context
        self._yields.add(self._now, yields)

    def stop(self, context: int, rest: Array) -> None:
        """Remove a sequence that stops decoding; its remaining tokens are not generated."""
        self._total -= context
        self._yields.add(self._now, -rest)

    def advance(self, steps: int = 1) -> None:
        self._total += int(self._yields.of(self._now, steps).sum())
        self._now += steps

    def ahead(self, steps: int) -> list[Array]:
        """The sum before each of the next steps."""
        found = np.full(steps, self._total)
        more = np.cumsum(self._yields.of(self._now, steps - 1))
        found[1 : len(more) + 1] += more
        return [found]


class SpeculativeBlockPool(BlockPool):
    """The number of blocks of sequences that allocate slots for all drafts of a step, including drafts that
    are rejected later.
    """

    __slots__ = ("_due",)

    def __init__(
        self, total: int, size: int, groups: Sequence[CacheGroup] = (), in_flight: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(total, size, groups, in_flight)
        self._due = StepCalendar()

    def begin(self, step: int, more: Array) -> None:
        """Add a sequence that begins to decode in this step, with the number of blocks that each of its steps
        allocates.
        """
        self._due.add(step, more)

    def stop(self, step: int, rest: Array) -> None:
        """Remove a sequence that stops decoding; blocks from this step on are not allocated."""
        self._due.add(step, -rest)

    def due(self, step: int) -> int:
        """The number of blocks that the decodes of a step take."""
        return int(self._due.of(step, 1).sum())

    def taken(self, step: int, steps: int) -> int:
        return int(self._due.of(step, steps).sum())

    def steps(self, step: int, spare: int = 0) -> int:
        taken = np.cumsum(self._due.of(step, len(self._due._values)))
        return int(np.searchsorted(taken, self.free - spare, side="right"))


class SequenceSchedule(NamedTuple):
    """The steps of a sequence, from `step` on with `context` tokens cached.

    `made` contains the number of output tokens after each step, and `held` the number of blocks in each step.
    """

    step: int
    context: int
    made: Array
    held: Array


class SpeculativeServer(Server):
    """A server with speculative decoding.

    `schedules` contains the schedules of decoding sequences. `used` counts the earlier decode steps of each
    preempted request; its random draws continue after them.
    """

    def _pool(self) -> SpeculativeBlockPool:
        return self.capacity.pool(SpeculativeBlockPool, SpeculativeBlockPool)

    def _reset(self) -> None:
        super()._reset()
        self.batch: SpeculativeDecodeBatch = SpeculativeDecodeBatch()
        self.blocks: SpeculativeBlockPool = self._pool()
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.schedules: dict[int, SequenceSchedule] = {}
        self.used: Counter[int] = Counter()

    def left(self, request: int, end: int) -> int:
        """The remaining output tokens of a sequence."""
        schedule = self.schedules[request]
        done = self.step - schedule.step
        return int(schedule.made[-1]) - (int(schedule.made[done - 1]) if done else 0)

    def _advance_contexts(self, steps: int) -> None:
        """Count steps of all decoding sequences; the batch has been advanced already."""
        self.step += steps
        self.kept = self.batch.kept[0]

    def _begin_decode(self, request: int, context: int, left: int) -> None:
        """Draw the steps of a sequence that decodes `left` more tokens, starting with the next step."""
        assert self.load.yields is not None
        drawn = self.load.yields(request)[self.used[request] :]
        made = np.cumsum(drawn)
        steps = int(np.searchsorted(made, left)) + 1
        made = made[:steps]
        made[-1] = left  # no more than requested
        yields = np.diff(made, prepend=0)
        held = self.blocks.of_each(context + made - yields + self.capacity.rows)
        self.schedules[request] = SequenceSchedule(self.step, context, made, held)
        self.batch.begin(context, yields)
        self.blocks.begin(self.step, np.diff(held, prepend=self.blocks.of(context)))
        heappush(self.ends, (self.step + steps, request))
        self.decoding += 1
        self.changes += 1
        self.kept += context

    def _end_decode(self, request: int, context: int) -> None:
        """Remove a sequence that stops decoding; slots of rejected drafts become free, too."""
        schedule = self.schedules.pop(request)
        done = self.step - schedule.step
        first = self.blocks.of(schedule.context)
        self.used[request] += done
        self.decoding -= 1
        self.changes += 1
        self.kept -= context
        self.batch.stop(context, np.diff(schedule.made, prepend=0)[done:])
        self.blocks.stop(self.step, np.diff(schedule.held, prepend=first)[done:])
        self._release(request, context)
        self.blocks.free += (int(schedule.held[done - 1]) if done else first) - self.blocks.of(context)


# Decode servers, and the choice of a class

LATER = 1 << 32  # added to a seed: decode servers draw other drafts than prefill servers


def decode_load(load: Load) -> Load:
    """The load of decode servers: requests with cached prompts and their first token.

    This token is not cached yet, so it counts as the last token of the prompt; its prefill yields the second
    token.
    """
    rest = np.maximum(load.generate - 1, 1)
    asked = None if load.asked is None else np.maximum(load.asked - 1, 1)
    limit = None if load.limit is None else max(load.limit - 1, 1)
    known = replace(load, prompt=load.prompt + 1, generate=rest, cached=load.prompt, asked=asked, limit=limit)
    seed = load.seed + LATER
    return replace(known, users=None, hashes=(), sessions=None, think_s=None, seed=seed)


class DecodeServer(Server):
    """A server for a `decoded` load. If a request is preempted, it loses its cache, and its prefill is
    repeated.
    """

    def preempt(self, request: int) -> None:
        """After this, nothing of the sequence is in the cache."""
        super().preempt(request)
        self.cached[request] = 0


class PipelinedDecodeServer(DecodeServer, PipelinedServer):
    """A decode server with pipeline stages."""


class SpeculativeDecodeServer(DecodeServer, SpeculativeServer):
    """A decode server that verifies drafts, except in the step after the first token."""


def server_of(
    prices: StepTimes, policy: Policy, capacity: Capacity, load: Load, course: RequestTimeline
) -> Server:
    """A server for prefill and decode."""
    plain = Server if load.drafts is None else SpeculativeServer
    kind = PipelinedServer if capacity.micro_batches > 1 else plain
    return kind(prices, policy, capacity, load, course)


def decode_server_of(
    prices: StepTimes, policy: Policy, capacity: Capacity, load: Load, course: RequestTimeline
) -> Server:
    """A server for a `decoded` load."""
    plain = DecodeServer if load.drafts is None else SpeculativeDecodeServer
    kind = PipelinedDecodeServer if capacity.micro_batches > 1 else plain
    return kind(prices, policy, capacity, load, course)
