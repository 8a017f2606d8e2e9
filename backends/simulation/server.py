"""One server: an engine that goes from step to step, and from one event to the next.

Between events nothing changes but the lengths of what decodes, so that a run of steps is one event. An event
is that a prompt is read, a request ends, one comes, or blocks run short.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from .blocks import Blocks
from .load import Load
from .policy import Chunk, Policy, Reading
from .prefixes import Prefixes
from .prices import Prices

FOREVER = float("inf")
# What a log holds of each event: when it begins, how long it takes, its steps, sequences that decode in each,
# their tokens cached at the first, tokens of prompts that are read and of how many, and requests that wait.
LOG = ("start_s", "time_s", "steps", "decodes", "kept", "new", "reads", "waiting")


class Capacity(NamedTuple):
    """What an engine takes: blocks of so many tokens; and in a step, tokens and sequences."""

    blocks: int
    block: int
    tokens: int
    sequences: int


class Course:
    """When each request comes, is first read, has its first token and ends; and how often it is preempted."""

    def __init__(self, arrival_s: list[float]) -> None:
        self.arrival_s = arrival_s
        self.start_s, self.first_s, self.end_s = ([FOREVER] * len(arrival_s) for _ in range(3))
        self.preemptions = [0] * len(arrival_s)
        # When requests begin to decode; and the times between two tokens around a preemption.
        self.joined_s, self.resumed_s = array("d"), array("d")


class Server:
    """An engine by its policy, capacity and prices, which serves some requests of a load.

    `decoding` sequences have `kept` tokens cached together before step number `step`; of each `ends` says
    after which it ends. Those in `reading` have a part of their prompt in the cache. `demand` is how many
    blocks all that run will have when they end, if they are not preempted.
    """

    def __init__(
        self, prices: Prices, policy: Policy, capacity: Capacity, load: Load, course: Course
    ) -> None:
        self.prices, self.policy, self.capacity, self.course = prices, policy, capacity, course
        self.prompt: list[int] = load.prompt.tolist()
        self.generate: list[int] = load.generate.tolist()
        self.written: list[int] = load.written.tolist()
        self.cached: list[int] = load.cached.tolist()
        self.final: list[int] = (-(-load.written // capacity.block)).tolist()  # blocks when it ends
        self.to_read: list[int] = list(self.prompt)  # after a preemption also what was generated
        self.last_s = [0.0] * len(self.prompt)  # when it was read, or had its last token before a preemption
        self.blocks = Blocks(capacity.blocks, capacity.block)
        self.prefixes = Prefixes(load.hashes, capacity.blocks * capacity.block) if load.hashes else None
        self.waiting: deque[int] = deque()
        self.reading: list[Reading] = []
        self.running: dict[int, None] = {}  # in the order of admission
        self.ends: list[tuple[int, int]] = []  # a heap
        self.step = self.decoding = self.kept = self.demand = self.preempted = 0
        self.most_held = 0  # blocks in use at most
        self.now = self.decoded_s = 0.0
        self.log = array("d")
        self.answered: Callable[[int], None] | None = None  # told of each request that ends

    def come(self, request: int, time_s: float) -> None:
        """A request comes; what was idle goes on from then."""
        self.now = max(self.now, time_s)
        self.waiting.append(request)

    def advance(self, until: float = FOREVER) -> None:
        """All steps that begin before that time."""
        policy = self.policy
        while self.now < until:
            before = self.preempted
            if policy.mixes and self.demand > self.blocks.total and self.short:
                policy.relieve(self)
            if self.waiting or self.reading:
                chunks = policy.chunks(self, self.preempted > before)
                if chunks:
                    self._read(chunks)
                    continue
            if not self.decoding:
                return
            self._decode(until, self.preempted > before)

    @property
    def tight(self) -> bool:
        """Whether blocks may run short before those that run have ended."""
        return self.demand > self.blocks.total

    @property
    def short(self) -> bool:
        """Whether the next step of those that decode takes more blocks than are free."""
        return self.tight and self.blocks.due(self.step) > self.free

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        read = sum(self.blocks.of(one.done) for one in self.reading)
        return self.blocks.total - read - self.blocks.held(self.kept, self.step)

    def taken(self, chunks: Iterable[Chunk]) -> int:
        """Blocks that so many tokens more of some that are read take."""
        of = self.blocks.of
        return sum(of(one.done + new) - of(one.done) for one, new in chunks)

    def unread(self, request: int) -> int:
        """Tokens that are to be read of the first that waits, if it is admitted now."""
        if self.prefixes:
            block = self.capacity.block  # whole ones are found, and a token is left to read
            most = (self.to_read[request] - 1) // block * block
            self.cached[request] = min(self.prefixes.kept(request) // block * block, most)
        return self.to_read[request] - self.cached[request]

    def admit(self, request: int) -> Reading:
        """The first that waits runs from now on: its prompt is read after what is cached of it."""
        if self.prefixes:
            self.prefixes.use(request)
        self.waiting.popleft()
        self.running[request] = None
        self.demand += self.final[request]
        if self.course.start_s[request] == FOREVER:
            self.course.start_s[request] = self.now
        reading = Reading(request, self.cached[request], self.to_read[request])
        self.reading.append(reading)
        return reading

    def made(self, request: int, end: int) -> int:
        """Tokens that a request has, which decodes until after step `end`."""
        return self.generate[request] - (end - self.step)

    def preempt(self, request: int) -> None:
        """Its blocks are given back, and what it was is read again when it is admitted again."""
        self.preempted += 1
        self.course.preemptions[request] += 1
        del self.running[request]
        self.demand -= self.final[request]
        end = next((end for end, other in self.ends if other == request), None)
        if end is None:
            self.reading = [one for one in self.reading if one.request != request]
            return
        self.ends.remove((end, request))
        heapify(self.ends)
        context = self.written[request] - (end - self.step)
        if context == self.to_read[request]:  # it has not decoded
            self.course.joined_s.pop(bisect_left(self.course.joined_s, self.last_s[request]))
        else:
            self.last_s[request] = self.decoded_s
        self.to_read[request] = context + 1
        self._leave(context)

    def _leave(self, context: int) -> None:
        self.decoding -= 1
        self.kept -= context
        self.blocks.leave(context, self.step)

    def _decode(self, until: float, once: bool) -> None:
        """Steps that only decode, up to the next end, the last before `until`, or the last with blocks.

        Only `once` where the step after it may admit what this one may not.
        """
        most = 1 if once else self.ends[0][0] - self.step
        if self.demand > self.blocks.total:
            room = self.blocks.steps(self.free, self.step)
            if not room:
                self.policy.relieve(self)
                return
            most = min(most, room)
        decodes, kept = self.decoding, self.kept
        steps, seconds = self.prices.run(decodes, kept, most, until - self.now)
        self.log.extend((self.now, seconds, steps, decodes, kept, 0, 0, len(self.waiting)))
        self.now = self.decoded_s = self.now + seconds
        self.step += steps
        self.kept += steps * decodes
        self._hold()
        if self.ends[0][0] == self.step:
            self._end()

    def _read(self, chunks: list[Chunk]) -> None:
        """A step that reads so many tokens of each, beside what decodes if the policy mixes both."""
        decodes = self.decoding if self.policy.mixes else 0
        kept = self.kept if decodes else 0
        sizes, tokens = [], 0
        for reading, new in chunks:
            sizes.append((new, reading.done))
            tokens += new
            reading.done += new
        seconds = float(self.prices.step(decodes, kept, sizes))
        self.log.extend((self.now, seconds, 1, decodes, kept, tokens, len(chunks), len(self.waiting)))
        self.now += seconds
        if decodes:
            self.decoded_s = self.now
            self.step += 1
            self.kept += decodes
        self._hold()
        if decodes and self.ends[0][0] == self.step:
            self._end()
        for reading, _ in chunks:
            if reading.done == reading.tokens:
                self.reading.remove(reading)
                self._join(reading.request)

    def _hold(self) -> None:
        """Count the blocks in use, before some are given back, where they may be more than ever."""
        tokens = self.kept + sum(one.done for one in self.reading) if self.reading else self.kept
        others = (self.decoding + len(self.reading)) * (self.blocks.size - 1)
        if tokens + others > self.most_held * self.blocks.size:
            self.most_held = max(self.most_held, self.blocks.total - self.free)

    def _join(self, request: int) -> None:
        """The prompt is read, and what was generated of it if it was preempted: there is a next token."""
        context = self.to_read[request]
        made = context - self.prompt[request] + 1
        if made == 1:
            self.course.first_s[request] = self.now
        else:
            self.course.resumed_s.append(self.now - self.last_s[request])
        left = self.generate[request] - made
        if not left:
            self._answer(request)
            return
        self.course.joined_s.append(self.now)
        self.last_s[request] = self.now
        heappush(self.ends, (self.step + left, request))
        self.decoding += 1
        self.kept += context
        self.blocks.join(context, self.step)

    def _end(self) -> None:
        """All requests end that have their last token."""
        ends, step = self.ends, self.step
        while ends and ends[0][0] == step:
            _, request = heappop(ends)
            self._leave(self.written[request])
            self._answer(request)

    def _answer(self, request: int) -> None:
        self.course.end_s[request] = self.now
        del self.running[request]
        self.demand -= self.final[request]
        if self.answered:
            self.answered(request)
