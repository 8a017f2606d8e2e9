"""One server: an engine that goes from step to step, and from one event to the next.

Between events nothing changes but the lengths of what decodes, so that a run of steps is one event. An event
is that a prompt is read, a request ends, one comes, or blocks run short.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from struct import Struct

import numpy as np

from .blocks import Blocks
from .capacity import Capacity, placed
from .course import FOREVER, Course
from .load import Array, Load
from .policy import Policy
from .prefix_cache import PrefixCache
from .prices import Prices

# What a log holds of each event: when it begins, how long it takes, its steps, sequences that decode in each,
# their tokens cached at the first, tokens of prompts that are read and of how many, requests that wait, and
# blocks in use at its end.
LOG = ("start_s", "time_s", "steps", "decodes", "kept", "new", "reads", "waiting", "blocks")
NOBODY: Sequence[int] = ()
row = Struct(f"{len(LOG)}d").pack


class Server:
    """An engine by its policy, capacity and prices, which serves some requests of a load.

    `decoding` sequences have `kept` tokens cached together before step number `step`; of each `ends` says
    after which it ends. Those in `reading` have so many tokens of their prompts in the cache. `demand` is
    how many blocks all that run will have when they end, if they are not preempted. A policy fills the next
    step with `chunks`, by request, of new tokens and those cached before.
    """

    # SpeculativeBlocks are read faster than the entries of a dict with so many.
    __slots__ = (
        *("prices", "policy", "capacity", "load", "course", "answered", "stays_s", "since_s", "log"),
        *("prompt", "generate", "written", "cached", "more", "final", "to_read", "last_s"),
        *("blocks", "sharing", "batch", "waiting", "late", "reading", "running", "ends", "deadlines"),
        *("chunks", "on_ranks", "lanes"),
        *("step", "decoding", "kept", "demand", "preempted", "held", "now", "decoded_s", "until"),
    )

    def __init__(
        self, prices: Prices, policy: Policy, capacity: Capacity, load: Load, course: Course
    ) -> None:
        self.prices, self.policy, self.capacity, self.course = prices, policy, capacity, course
        self.prompt: list[int] = load.prompt.tolist()
        self.generate: list[int] = load.generate.tolist()
        course.made = list(self.generate)
        self.written: list[int] = load.written.tolist()
        self.cached: list[int] = load.cached.tolist()
        self.more: list[int] = (load.reserved - load.written).tolist()  # asked for, and not generated
        self.stays_s: list[float] | None = None if load.stays_s is None else load.stays_s.tolist()
        self.since_s = course.arrival_s  # from when on that counts
        # Blocks when it ends, at most: one of a prefix may be there and be read again.
        most = load.reserved + capacity.rows - 1
        self.final: list[int] = (-(-most // capacity.block) + load.shares + capacity.state).tolist()
        self.to_read: list[int] = list(self.prompt)  # after a preemption also what was generated
        self.last_s = [0.0] * len(self.prompt)  # when it was read, or had its last token before a preemption
        self.load = load
        self._idle()

    def _idle(self) -> None:
        self.blocks = Blocks(self.capacity.blocks, self.capacity.block)
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.batch = self.prices.batch()  # what decodes, if it matters what each keeps
        self.waiting: deque[int] = deque()
        self.deadlines: list[tuple[float, int]] = []  # a heap of when requests are given up
        self.late: list[int] = []  # came when the next step was filled already
        self.reading: dict[int, int] = {}
        self.chunks: dict[int, tuple[int, int]] = {}
        self.running: dict[int, int] = {}  # the rank of each, in the order of admission
        self.on_ranks = [0] * self.capacity.ranks  # how many of those each has
        self.lanes = self.capacity.lanes
        self.ends: list[tuple[int, int]] = []  # a heap
        self.step = self.decoding = self.kept = self.demand = self.preempted = 0
        self.held: int | None = None  # the step before which a policy reads none of those that wait
        self.now = self.decoded_s = self.until = 0.0
        self.log = bytearray()
        self.answered: Callable[[int], None] | None = None  # told of each request that ends

    def beside(self) -> Server:
        """Another server like this one, idle, for other requests of the load."""
        other = copy(self)
        other._idle()
        other.course = self.course.beside()
        return other

    def come(self, request: int, time_s: float) -> None:
        """A request comes; what was idle goes on from then.

        A policy that goes `ahead` has filled the next step by then, if there is one.
        """
        busy = self.decoding or self.reading or self.late or self.now > time_s
        filled = self.policy.ahead and busy
        self.now = max(self.now, time_s)
        (self.late if filled else self.waiting).append(request)
        if self.stays_s is not None:
            heappush(self.deadlines, (self._deadline_s(request), request))

    def advance(self, until: float = FOREVER) -> None:
        """All steps that begin before that time; who is told of an answer may bring `until` forward."""
        policy, self.until = self.policy, until
        while self.now < self.until:
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            before, late = self.preempted, NOBODY
            if self.late:
                late, self.late = self.late, []
            if self.demand > self.blocks.total and policy.mixes and self.short:
                policy.relieve(self)
            if self.waiting or self.reading:
                policy.fill(self, self.preempted > before)
            else:
                self.held = None
            if self.chunks:
                self._read()
            elif self.decoding:
                self._decode(bool(late) or self.preempted > before)
            elif not late:
                return
            if late:
                self.waiting.extend(late)

    @property
    def begins_s(self) -> float:
        """When it goes on, if nothing comes before."""
        return self.now

    @property
    def busy(self) -> bool:
        """Whether it has requests."""
        return bool(self.waiting or self.late or self.running)

    @property
    def tight(self) -> bool:
        """Whether blocks may run short before those that run have ended."""
        return self.demand > self.blocks.total

    @property
    def events(self) -> Array:
        """A row for each event, of columns `LOG`."""
        return np.frombuffer(bytes(self.log)).reshape(-1, len(LOG))

    @property
    def short(self) -> bool:
        """Whether the next step of those that decode takes more blocks than are free."""
        return self.blocks.due(self.step) > self.blocks.free

    @property
    def most_held(self) -> int:
        """Blocks in use at most."""
        return int(np.frombuffer(self.log)[LOG.index("blocks") :: len(LOG)].max(initial=0))

    def unread(self, request: int) -> int:
        """Tokens that are to be read of the first that waits, if it is admitted now."""
        if self.sharing is not None:
            block = self.capacity.block  # whole ones are found, and a token is left to read
            most = (self.to_read[request] - 1) // block * block
            self.sharing.evict(self.policy.free(self))
            self.cached[request] = min(self.sharing.kept(request), most)
        return self.to_read[request] - self.cached[request]

    def needs(self, request: int, new: int) -> int:
        """Free blocks that it takes, if it is admitted now and reads so many new tokens."""
        of, cached, state = self.blocks.of, self.cached[request], self.capacity.state
        if self.sharing is None:
            return of(cached + new) + state
        return self.sharing.needed(request, cached) + of(cached + new) - of(cached) + state

    def emptiest(self, left: Sequence[int]) -> int:
        """The rank with least to read, of equals with fewest requests; so many tokens are `left` of each."""
        unread = [-tokens for tokens in left]
        for request, done in self.reading.items():
            unread[self.running[request]] += self.to_read[request] - done
        return min(range(len(left)), key=lambda rank: (unread[rank], self.on_ranks[rank]))

    def admit(self, request: int, rank: int, new: int) -> None:
        """The first that waits runs from now on; the next step reads so many tokens after what is cached."""
        cached = self.cached[request]
        if self.sharing is not None:
            self.sharing.admit(request, cached)
        elif cached:
            self.blocks.free -= self.blocks.of(cached)
        self.blocks.free -= self.capacity.state
        self.waiting.popleft()
        self.running[request] = rank
        self.on_ranks[rank] += 1
        self.demand += self.final[request]
        if self.course.start_s[request] == FOREVER:
            self.course.start_s[request] = self.now
        self.take(request, cached, new)

    def take(self, request: int, done: int, new: int) -> None:
        """Blocks for so many tokens after those that are done, which the next step reads."""
        blocks, cached = self.blocks, done + new
        blocks.free -= -(-cached // blocks.size) + (-done // blocks.size)
        self.chunks[request] = new, done
        self.reading[request] = cached
        if self.sharing is not None:
            self.sharing.evict(self.policy.free(self))  # what it took is found no more, by itself neither
            self.sharing.read(request, cached)

    def _give(self, request: int, tokens: int) -> None:
        """What is cached of a request is given back, and then its states."""
        if self.sharing is not None:
            self.sharing.leave(request, tokens)
        else:
            self.blocks.free -= -tokens // self.blocks.size
        self.blocks.free += self.capacity.state

    def made(self, request: int, end: int) -> int:
        """Tokens that a request has, which decodes until after step `end`."""
        return self.generate[request] - self.left(request, end)

    def left(self, request: int, end: int) -> int:
        """Tokens that it has to come."""
        return end - self.step

    def to_come(self, most: int) -> int:
        """Those that all that decode have, as far as is known: no more than so many count of each."""
        return sum(min(end - self.step + self.more[request], most) for end, request in self.ends)

    def preempt(self, request: int) -> None:
        """Its blocks are given back, and what it was is read again when it is admitted again."""
        self.preempted += 1
        self.course.preemptions[request] += 1
        if self.sharing is not None and (free := self.policy.free(self)) >= 0:
            self.sharing.evict(free)  # decodes of this step come first, if there is room for them
        self._stop(request)

    def _stop(self, request: int) -> None:
        """One that runs is no longer: its blocks are given back."""
        self.on_ranks[self.running.pop(request)] -= 1
        self.demand -= self.final[request]
        if request in self.reading:
            self._give(request, self.reading.pop(request))
            return
        end = next(end for end, other in self.ends if other == request)
        self.ends.remove((end, request))
        heapify(self.ends)
        context = self.written[request] - self.left(request, end)
        if context == self.to_read[request]:  # it has not decoded
            self.course.joined_s.pop(bisect_left(self.course.joined_s, self.last_s[request]))
        else:
            self.last_s[request] = self.decoded_s
        self.to_read[request] = context + 1
        self._leave(request, context)

    def over(self, request: int, time_s: float) -> bool:
        """Whether it has left by then."""
        return self.stays_s is not None and self._deadline_s(request) <= time_s

    def _deadline_s(self, request: int) -> float:
        assert self.stays_s is not None
        return self.since_s[request] + self.stays_s[request]

    def _give_up(self) -> None:
        """Those whose time is over leave with the tokens that they have."""
        while self.deadlines and self.deadlines[0][0] <= self.now:
            _, request = heappop(self.deadlines)
            if self.course.end_s[request] != FOREVER:
                continue
            if request in self.running:
                self._stop(request)
            else:
                (self.waiting if request in self.waiting else self.late).remove(request)
            self.course.made[request] = self.to_read[request] - self.prompt[request]
            self.course.end_s[request] = self.now
            if self.answered:
                self.answered(request)

    def _decode(self, once: bool) -> None:
        """Steps that only decode, up to the next end, the last before `until`, or the last with blocks.

        Only `once` where the step after it may admit what this one may not.
        """
        now, step, decodes, kept = self.now, self.step, self.decoding, self.kept
        last = self.ends[0][0]
        most = 1 if once else last - step
        if self.held is not None:
            most = min(most, self.held - step)
        if self.demand > self.blocks.total:
            room = self.blocks.steps(step)
            if not room:
                self.policy.relieve(self)
                return
            most = min(most, room)
        if self.sharing is not None and self.waiting and self.policy.chunked:
            most = self._unevicted(self.sharing, most)
        until = min(self.until, self.deadlines[0][0]) if self.deadlines else self.until
        steps, seconds = self.prices.run(decodes, kept, self.batch, most, until - now)
        held = self.blocks.go(step, steps)
        self.log += row(now, seconds, steps, decodes, kept, 0, 0, len(self.waiting), held)
        self.now = self.decoded_s = now + seconds
        self._go(steps)
        if last == self.step:
            self._end()

    def _unevicted(self, sharing: PrefixCache, most: int) -> int:
        """Steps after which the first that waits finds what it finds now; with less, its chunk may fit."""
        if len(self.running) == self.capacity.sequences:
            return most
        taken = self.blocks.taken(self.step, most)
        left = sharing.untouched(self.waiting[0], taken)
        return most if left >= taken else max(1, self.blocks.steps(self.step, self.blocks.free - left))

    def _go(self, steps: int) -> None:
        """What decodes is so many steps further, as its batch is."""
        self.step += steps
        self.kept += steps * self.decoding

    def _read(self) -> None:
        """The step that a policy has filled, with what decodes if the policy mixes both."""
        taken, self.chunks = self.chunks, {}
        chunks = [*taken.values()]
        decodes = self.decoding if self.policy.mixes else 0
        kept = self.kept if decodes else 0
        sums = (kept,) if self.batch is None or not decodes else self.batch.kept
        now, ranks = self.now, len(self.on_ranks)
        if ranks == 1:
            seconds = float(self.prices.step(decodes, sums, chunks))
        else:
            seconds = self.prices.micro_batch(decodes, sums, placed(taken, self.running, ranks))[0]
        held = self.blocks.go(self.step, 1 if decodes else 0)
        tokens = chunks[0][0] if len(chunks) == 1 else sum(new for new, _ in chunks)
        self.log += row(now, seconds, 1, decodes, kept, tokens, len(chunks), len(self.waiting), held)
        self.now = now + seconds
        if decodes:
            self.decoded_s = self.now
            if self.batch is not None:
                self.batch.advance()
            self._go(1)
            if self.ends[0][0] == self.step:
                self._end()
        reading, to_read = self.reading, self.to_read
        for request in taken:
            if reading[request] == to_read[request]:
                del reading[request]
                self._join(request)

    def _join(self, request: int) -> None:
        """The prompt is read, and what was generated of it if it was preempted: there is a next token."""
        now, context = self.now, self.to_read[request]
        made = context - self.prompt[request] + 1
        if made == 1:
            self.course.first_s[request] = now
        else:
            self.course.resumed_s.append(now - self.last_s[request])
        left = self.generate[request] - made
        if not left:
            self._give(request, context)
            self._answer(request)
            return
        self.course.joined_s.append(now)
        self.last_s[request] = now
        self._begin(request, context, left)

    def _begin(self, request: int, context: int, left: int) -> None:
        """It decodes from the next step on, until it has so many more tokens."""
        heappush(self.ends, (self.step + left, request))
        self.decoding += 1
        self.kept += context
        if self.batch is not None:
            self.batch.join(context)
        self.blocks.join(context, self.step)

    def _end(self) -> None:
        """All requests end that have their last token."""
        ends, step = self.ends, self.step
        while ends and ends[0][0] == step:
            request = heappop(ends)[1]
            self._leave(request, self.written[request])
            self._answer(request)

    def _leave(self, request: int, context: int) -> None:
        """It decodes no more, with so many tokens cached."""
        self.decoding -= 1
        self.kept -= context
        if self.batch is not None:
            self.batch.leave(context)
        self.blocks.leave(context, self.step)
        self._give(request, context)

    def _answer(self, request: int) -> None:
        self.course.end_s[request] = self.now
        self.on_ranks[self.running.pop(request)] -= 1
        self.demand -= self.final[request]
        if self.answered:
            self.answered(request)
