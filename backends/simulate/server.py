"""One server: an engine that runs one step after another.

Steps that only decode are alike but for growing contexts, so that a run of them is simulated at once. It ends
where something else happens: a request ends or arrives, a prompt is read, or KV blocks run short.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from heapq import heapify, heappop, heappush

from .blocks import Blocks
from .capacity import Capacity, by_rank
from .course import FOREVER, Course
from .kv_blocks import PrefixCache
from .load import Array, Load
from .log import column, row, table
from .policy import Policy
from .prices import Prices


class Server:
    """An engine with its policy, capacity and prices, which serves some requests of a load.

    Requests, by number:

    - `waiting` for admission; `late` ones came when the next step was filled already.
    - `running` has the rank of each that is admitted, in that order; `on_ranks` counts them by rank.
    - `reading` has those whose prompts are not read yet, with the tokens that are cached.
    - `ends` is a heap of the others, each with the number of the step after which it ends.
    - `deadlines` is a heap of when requests are given up.

    Columns by request: `to_read` is the prompt, and after a preemption also what was generated; `cancelled`
    are tokens that are asked for and will not be generated; `final` the most blocks that it may hold;
    `last_s` when its prompt was read, or its last token before a preemption; a client waits `stays_s` from
    `since_s` on.

    The next step is number `step`. In it `decoding` sequences decode, with `kept` cached tokens in all, and
    prompts are read in `chunks`: by request, new tokens after so many cached ones. `demand` is the sum of
    `final` over all that run. Before the step `hold_until` a policy reads no prompts.
    """

    # Attributes in slots are read faster than in a dict with so many.
    __slots__ = (
        *("prices", "policy", "capacity", "load", "course", "answered", "stays_s", "since_s", "log"),
        *("prompt", "generate", "written", "cached", "cancelled", "final", "to_read", "last_s"),
        *("blocks", "sharing", "batch", "waiting", "late", "reading", "running", "ends", "deadlines"),
        *("chunks", "on_ranks", "lanes"),
        *("step", "decoding", "kept", "demand", "preempted", "hold_until", "now", "decoded_s", "until"),
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
        self.cancelled: list[int] = (load.reserved - load.written).tolist()
        self.stays_s: list[float] | None = None if load.stays_s is None else load.stays_s.tolist()
        self.since_s = course.arrival_s
        # One more where prefixes are shared: the block of the last token may be cached and be read again.
        most = load.reserved + capacity.rows - 1
        self.final: list[int] = (-(-most // capacity.block) + load.shares + capacity.state).tolist()
        self.to_read: list[int] = list(self.prompt)
        self.load, self.last_s = load, [0.0] * len(self.prompt)
        self._reset()

    def _reset(self) -> None:
        self.blocks = Blocks(self.capacity.blocks, self.capacity.block)
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.batch = self.prices.batch()  # None where the sum of contexts says what a step takes
        self.waiting: deque[int] = deque()
        self.deadlines: list[tuple[float, int]] = []
        self.late: list[int] = []
        self.reading: dict[int, int] = {}
        self.chunks: dict[int, tuple[int, int]] = {}
        self.running: dict[int, int] = {}
        self.on_ranks = [0] * self.capacity.ranks
        self.lanes = self.capacity.lanes
        self.ends: list[tuple[int, int]] = []
        self.step = self.decoding = self.kept = self.demand = self.preempted = 0
        self.hold_until: int | None = None
        self.now = self.decoded_s = self.until = 0.0
        self.log = bytearray()
        self.answered: Callable[[int], None] | None = None  # called with each request that ends

    def beside(self) -> Server:
        """Another server like this one, idle, for other requests of the load."""
        other = copy(self)
        other._reset()
        other.course = self.course.beside()
        return other

    def come(self, request: int, time_s: float) -> None:
        """A request arrives; an idle server goes on from that time.

        Where the policy fills steps `ahead`, the next step of a busy server is filled already.
        """
        busy = self.decoding or self.reading or self.late or self.now > time_s
        filled = self.policy.ahead and busy
        self.now = max(self.now, time_s)
        (self.late if filled else self.waiting).append(request)
        if self.stays_s is not None:
            heappush(self.deadlines, (self._deadline_s(request), request))

    def advance(self, until: float = FOREVER) -> None:
        """All steps that begin before that time. Whoever is told of an answer may move `until` forward."""
        policy, self.until = self.policy, until
        while self.now < self.until:
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            before, late, self.late = self.preempted, self.late, []
            if self.demand > self.blocks.total and policy.mixes and self.lacks_blocks:
                policy.relieve(self)
            if self.waiting or self.reading:
                policy.fill(self, self.preempted > before)
            else:
                self.hold_until = None
            if self.chunks:
                self._prefill_step()
            elif self.decoding:
                self._decode_steps(bool(late) or self.preempted > before)
            elif not late:
                return
            if late:
                self.waiting.extend(late)

    @property
    def begins_s(self) -> float:
        """When its next step begins, if it has one."""
        return self.now

    @property
    def busy(self) -> bool:
        """Whether it has requests."""
        return bool(self.waiting or self.late or self.running)

    @property
    def may_lack_blocks(self) -> bool:
        """Whether there are too few blocks for all that run to end without a preemption."""
        return self.demand > self.blocks.total

    @property
    def events(self) -> Array:
        """The log: a row for each run of decode steps and each other step, with the columns `LOG`."""
        return table(bytes(self.log))

    @property
    def lacks_blocks(self) -> bool:
        """Whether the next decode step takes more blocks than are free."""
        return self.blocks.due(self.step) > self.blocks.free

    @property
    def most_held(self) -> int:
        """Blocks in use at most."""
        return int(column(self.log, "blocks").max(initial=0))

    def unread(self, request: int) -> int:
        """Tokens to read of the first request that waits, if it is admitted now: those not in the cache."""
        if self.sharing is not None:
            block = self.capacity.block  # only whole blocks are found; one token at least is read
            most = (self.to_read[request] - 1) // block * block
            self.sharing.evict(self.policy.free(self))
            self.cached[request] = min(self.sharing.kept(request), most)
        return self.to_read[request] - self.cached[request]

    def blocks_needed(self, request: int, new: int) -> int:
        """Free blocks that a request takes, if it is admitted now and reads so many new tokens."""
        of, cached, state = self.blocks.of, self.cached[request], self.capacity.state
        if self.sharing is None:
            return of(cached + new) + state
        return self.sharing.needed(request, cached) + of(cached + new) - of(cached) + state

    def least_loaded_rank(self, left: Sequence[int]) -> int:
        """The rank with the fewest tokens to read beyond what is `left` of its budget, then requests."""
        unread = [-tokens for tokens in left]
        for request, done in self.reading.items():
            unread[self.running[request]] += self.to_read[request] - done
        return min(range(len(left)), key=lambda rank: (unread[rank], self.on_ranks[rank]))

    def admit(self, request: int, rank: int, new: int) -> None:
        """Admits the first request that waits; the next step reads so many of its tokens."""
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
        self.schedule_chunk(request, cached, new)

    def schedule_chunk(self, request: int, done: int, new: int) -> None:
        """The next step reads `new` tokens of a request after `done` cached ones: they take blocks now."""
        blocks, cached = self.blocks, done + new
        blocks.free -= -(-cached // blocks.size) + (-done // blocks.size)
        self.chunks[request] = new, done
        self.reading[request] = cached
        if self.sharing is not None:
            self.sharing.evict(self.policy.free(self))  # blocks that it took are no longer cached prefixes
            self.sharing.read(request, cached)

    def _release(self, request: int, tokens: int) -> None:
        """The blocks of a request with so many cached tokens are free again, and those of its states."""
        if self.sharing is not None:
            self.sharing.leave(request, tokens)
        else:
            self.blocks.free -= -tokens // self.blocks.size
        self.blocks.free += self.capacity.state

    def made(self, request: int, end: int) -> int:
        """Tokens generated so far of a request that decodes until after step `end`."""
        return self.generate[request] - self.left(request, end)

    def left(self, request: int, end: int) -> int:
        """Tokens that such a request has to come."""
        return end - self.step

    def to_come(self, most: int) -> int:
        """Tokens to come of all that decode, `most` of each at most, as if nobody cancelled."""
        return sum(min(end - self.step + self.cancelled[request], most) for end, request in self.ends)

    def preempt(self, request: int) -> None:
        """Frees the blocks of a request; its tokens are read again when it is admitted again."""
        self.preempted += 1
        self.course.preemptions[request] += 1
        if self.sharing is not None and (free := self.policy.free(self)) >= 0:
            self.sharing.evict(free)  # blocks for decodes of this step are taken before these are cached
        self._drop(request)

    def _drop(self, request: int) -> None:
        """A request runs no longer, without being answered: its blocks are free."""
        self.on_ranks[self.running.pop(request)] -= 1
        self.demand -= self.final[request]
        if request in self.reading:
            self._release(request, self.reading.pop(request))
            return
        end = next(end for end, other in self.ends if other == request)
        self.ends.remove((end, request))
        heapify(self.ends)
        context = self.written[request] - self.left(request, end)
        if context == self.to_read[request]:  # no step has decoded it since its prompt was read
            self.course.joined_s.pop(bisect_left(self.course.joined_s, self.last_s[request]))
        else:
            self.last_s[request] = self.decoded_s
        self.to_read[request] = context + 1
        self._end_decode(request, context)

    def over(self, request: int, time_s: float) -> bool:
        """Whether the client of a request has left by then."""
        return self.stays_s is not None and self._deadline_s(request) <= time_s

    def _deadline_s(self, request: int) -> float:
        assert self.stays_s is not None
        return self.since_s[request] + self.stays_s[request]

    def _give_up(self) -> None:
        """Gives up requests whose time is over; they end with the tokens that they have."""
        while self.deadlines and self.deadlines[0][0] <= self.now:
            _, request = heappop(self.deadlines)
            if self.course.end_s[request] != FOREVER:
                continue
            if request in self.running:
                self._drop(request)
            else:
                (self.waiting if request in self.waiting else self.late).remove(request)
            self.course.made[request] = self.to_read[request] - self.prompt[request]
            self.course.end_s[request] = self.now
            if self.answered:
                self.answered(request)

    def _decode_steps(self, once: bool) -> None:
        """A run of decode steps: to the next end of a request, `until` is reached, or blocks run short.

        `once` is for a single step, where the step after it may admit what this one could not.
        """
        now, step, decodes, kept = self.now, self.step, self.decoding, self.kept
        last = self.ends[0][0]
        most = 1 if once else last - step
        if self.hold_until is not None:
            most = min(most, self.hold_until - step)
        if self.demand > self.blocks.total:
            room = self.blocks.steps(step)
            if not room:
                self.policy.relieve(self)
                return
            most = min(most, room)
        if self.sharing is not None and self.waiting and self.policy.chunked:
            most = self._steps_until_eviction(self.sharing, most)
        until = min(self.until, self.deadlines[0][0]) if self.deadlines else self.until
        steps, seconds = self.prices.run(decodes, kept, self.batch, most, until - now)
        held = self.blocks.go(step, steps)
        self.log += row(now, seconds, steps, decodes, kept, 0, 0, len(self.waiting), held)
        self.now = self.decoded_s = now + seconds
        self._advance_contexts(steps)
        if last == self.step:
            self._finish_due()

    def _steps_until_eviction(self, sharing: PrefixCache, most: int) -> int:
        """Steps, `most` at most, until decodes evict cached blocks that the next to be admitted would use."""
        if len(self.running) == self.capacity.sequences:
            return most
        taken = self.blocks.taken(self.step, most)
        left = sharing.untouched(self.waiting[0], taken)
        return most if left >= taken else max(1, self.blocks.steps(self.step, self.blocks.free - left))

    def _advance_contexts(self, steps: int) -> None:
        """Counts steps of all that decode; the batch has been advanced already."""
        self.step += steps
        self.kept += steps * self.decoding

    def _prefill_step(self) -> None:
        """The step that the policy has filled: prompts, and decodes if the policy mixes both."""
        taken, self.chunks = self.chunks, {}
        chunks = [*taken.values()]
        decodes = self.decoding if self.policy.mixes else 0
        kept = self.kept if decodes else 0
        sums = (kept,) if self.batch is None or not decodes else self.batch.kept
        now, ranks = self.now, len(self.on_ranks)
        if ranks == 1:
            seconds = float(self.prices.step(decodes, sums, chunks))
        else:
            seconds = self.prices.micro_batch(decodes, sums, by_rank(taken, self.running, ranks))[0]
        held = self.blocks.go(self.step, 1 if decodes else 0)
        tokens = chunks[0][0] if len(chunks) == 1 else sum(new for new, _ in chunks)
        self.log += row(now, seconds, 1, decodes, kept, tokens, len(chunks), len(self.waiting), held)
        self.now = now + seconds
        if decodes:
            self.decoded_s = self.now
            if self.batch is not None:
                self.batch.advance()
            self._advance_contexts(1)
            if self.ends[0][0] == self.step:
                self._finish_due()
        reading, to_read = self.reading, self.to_read
        for request in taken:
            if reading[request] == to_read[request]:
                del reading[request]
                self._prefilled(request)

    def _prefilled(self, request: int) -> None:
        """A prompt is read, after a preemption with what was generated before: that makes a token."""
        now, context = self.now, self.to_read[request]
        made = context - self.prompt[request] + 1
        if made == 1:
            self.course.first_s[request] = now
        else:
            self.course.resumed_s.append(now - self.last_s[request])
        left = self.generate[request] - made
        if not left:
            self._release(request, context)
            self._finish(request)
            return
        self.course.joined_s.append(now)
        self.last_s[request] = now
        self._begin_decode(request, context, left)

    def _begin_decode(self, request: int, context: int, left: int) -> None:
        """A sequence decodes from the next step on, until it has so many more tokens."""
        heappush(self.ends, (self.step + left, request))
        self.decoding += 1
        self.kept += context
        if self.batch is not None:
            self.batch.join(context)
        self.blocks.join(context, self.step)

    def _finish_due(self) -> None:
        """Ends all requests that have their last token."""
        ends, step = self.ends, self.step
        while ends and ends[0][0] == step:
            request = heappop(ends)[1]
            self._end_decode(request, self.written[request])
            self._finish(request)

    def _end_decode(self, request: int, context: int) -> None:
        """A sequence with so many cached tokens decodes no more; its blocks are free."""
        self.decoding -= 1
        self.kept -= context
        if self.batch is not None:
            self.batch.leave(context)
        self.blocks.leave(context, self.step)
        self._release(request, context)

    def _finish(self, request: int) -> None:
        self.course.end_s[request] = self.now
        self.on_ranks[self.running.pop(request)] -= 1
        self.demand -= self.final[request]
        if self.answered:
            self.answered(request)
