"""One server: an engine that runs one step after another under a scheduling policy.

Order of the file: `Capacity` (the limits of an engine), `RequestTimeline` (the times of each request), the
log of steps, `Policy` (which prompts a step prefills, and which requests it preempts when blocks run short),
`Server`, and `fast_loop`.

Consecutive decode-only steps differ only in their growing contexts, so the simulator computes a series of
them at once. A series ends when a request ends or arrives, a prompt is prefilled, or KV blocks run short. A
row of the log describes a series: start, seconds and number of steps; decoding sequences and their cached
tokens before the first step; new tokens and prompts; waiting requests; KV blocks in use at its end.

`fast_loop` is a fast event loop for a server that never runs out of KV-cache blocks: no request is preempted,
and at most one prompt is partly prefilled. It is a single loop, because function calls would take as much
time as the work itself. Its results are exactly those of `Server.advance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from llmir.backends.memory.caches import CacheGroup, pages_needed
from llmir.backends.memory.kv_capacity import largest_fit
from llmir.base.dataclass import dataclass
from llmir.base.registry import Kind

from .kv_blocks import BlockPool, GroupedBlockPool, PrefixCache
from .load import Array, Load
from .step_times import StepTimes

# Capacity

SomePool = TypeVar("SomePool", bound=BlockPool)


class Capacity(NamedTuple):
    """The limits of an engine.

    `blocks` of the KV cache, of `block` tokens each, and concurrent `sequences` are totals over all
    data-parallel `ranks`. `tokens` is the budget of each rank in a step, or in each of the `micro_batches`
    that are in a pipeline at once. A decoding sequence takes `rows` tokens of the budget: one, plus one for
    each draft. The states of a running sequence take `state` blocks, whatever its length. If layers differ,
    each of the `groups` takes blocks by its own rule, and windows retain the tokens of `overlap` steps in
    flight.
    """

    blocks: int
    block: int
    tokens: int
    sequences: int
    ranks: int = 1
    micro_batches: int = 1
    rows: int = 1
    state: int = 0
    groups: tuple[CacheGroup, ...] = ()
    overlap: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON-compatible values."""
        return {**self._asdict(), "groups": [group._asdict() for group in self.groups]}

    def pool(self, kind: type[SomePool], grouped: type[SomePool]) -> SomePool:
        """A pool in which all blocks are free."""
        if not self.groups:
            return kind(self.blocks, self.block)
        return grouped(self.blocks, self.block, self.groups, (self.tokens, self.overlap))

    def requests(self, prompt: int, length: int) -> int:
        """The number of requests that reach `length` tokens without preemption, whenever they start."""
        groups, of = self.groups or (CacheGroup(self.block),), (prompt, length, self.overlap * self.tokens)
        most = self.blocks // self.ranks
        found = largest_fit(lambda n: pages_needed(groups, self.state, n, *of) <= most)
        return min(found * self.ranks, self.sequences)

    @property
    def ahead_blocks(self) -> int:
        """The number of blocks that windows may need for tokens in flight, of a prompt that is admitted and
        of other requests.
        """
        flying = self.overlap * self.tokens
        windows = [group for group in self.groups if group.kept is not None] if flying else []
        return 2 * sum(group.pages * (-(-flying // group.tokens) + 1) for group in windows)

    @property
    def lanes(self) -> int:
        """Ranks times micro-batches, over which decoding sequences are distributed evenly."""
        return self.ranks * self.micro_batches


def chunks_by_rank(
    chunks: Mapping[int, tuple[int, int]], running: Mapping[int, int], ranks: int
) -> list[list[tuple[int, int]]]:
    """The chunks that each rank prefills, given chunks by request; `running` contains the rank of each
    request.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for request, chunk in chunks.items():
        found[running[request]].append(chunk)
    return found


# Times of requests

FOREVER = float("inf")


class RequestTimeline:
    """The times of each request: arrival, start of prefill, first token, end; preemptions and output tokens.

    Events that have not happened have an infinite time. Not ordered by request: `joined_s`, the times at
    which requests begin to decode, and `resumed_s`, the seconds between two tokens around a preemption.
    """

    def __init__(self, arrival_s: list[float]) -> None:
        self.arrival_s = arrival_s
        self.start_s, self.first_s, self.end_s = (array("d", [FOREVER]) * len(arrival_s) for _ in range(3))
        self.preemptions = [0] * len(arrival_s)
        self.made: list[int] = []
        self._own()

    def _own(self) -> None:
        self.joined_s, self.resumed_s = array("d"), array("d")

    def beside(self) -> RequestTimeline:
        """For another server of the same requests; columns by request are shared."""
        other = copy(self)
        other._own()
        return other


# Log of steps

LOG = ("start_s", "time_s", "steps", "decodes", "kept", "new", "reads", "waiting", "blocks")
row = Struct(f"{len(LOG)}d").pack


def log_table(rows: bytes) -> Array:
    """Packed rows as an array with the columns `LOG`."""
    return np.frombuffer(rows).reshape(-1, len(LOG))


def log_column(rows: bytearray, name: str) -> Array:
    """One column of packed rows."""
    return np.frombuffer(rows)[LOG.index(name) :: len(LOG)]


def token_gaps(log: Array, joined_s: Array, resumed_s: Array) -> tuple[Array, Array]:
    """Seconds between consecutive tokens of requests, and how often each gap occurs.

    All gaps in a series of decode steps count as equal, except those before its first step. For sequences of
    the previous step with decodes, this gap begins at that step; for sequences that have joined since, at
    `joined_s`, the end of their prefill. `resumed_s` contains the gaps around preemptions.
    """
    columns = ("start_s", "time_s", "steps", "decodes")
    start, time, steps, decodes = (log[:, LOG.index(name)].copy() for name in columns)
    if not decodes.all():
        start, time, steps, decodes = (column[decodes > 0] for column in (start, time, steps, decodes))
    each, before = time / steps, np.concatenate([[-np.inf], (start + time)[:-1]])
    joined, pauses = np.sort(joined_s), np.flatnonzero(start > before)  # sequences join in pauses alone
    first = np.searchsorted(joined, before[pauses], side="right")
    new = np.searchsorted(joined, start[pauses], side="right") - first  # sequences that joined, by pause
    rows = np.repeat(pauses, new)
    own = joined[np.repeat(first - np.cumsum(new) + new, new) + np.arange(len(rows))]
    older, one = decodes.copy(), np.ones(len(own) + len(resumed_s))
    older[pauses] -= new
    some = older > 0
    waited = (start - before + each)[some], start[rows] - own + each[rows], resumed_s
    seconds = np.concatenate([each, *waited])
    return seconds, np.concatenate([decodes * (steps - 1), older[some], one])


# Scheduling policy

POLICIES: Kind[type[Policy]] = Kind("policy", "llmir.backends.simulate.policies")


@dataclass(frozen=True)
class Policy(ABC):
    """The scheduling policy of an engine.

    - `chunked`: Prompts are prefilled in chunks; otherwise whole.
    - `mixes`: Prefill and decodes share steps; otherwise, they have separate steps.
    - `ahead`: A step is filled while the previous one runs, so requests that arrive meanwhile start one step
      later.
    - `cautious`: A prompt is admitted when there are blocks for all of it; otherwise when there are blocks
      for its first chunk.
    - `receive_interval`: Above 1, the policy looks for new requests only after this number of decode steps
      and after each prefill step; otherwise before every step.

    All policies admit requests in the order of arrival.
    """

    name: ClassVar[str]
    chunked: bool = True
    mixes: bool = True
    ahead: bool = False
    cautious: bool = False
    receive_interval: int = 1

    @abstractmethod
    def admits(self, server: Server, request: int, new: int) -> bool:
        """Whether the first waiting request is admitted, so that this step prefills `new` of its tokens."""

    @abstractmethod
    def relieve(self, server: Server) -> None:
        """Preempt requests until the other decoding requests have blocks for the next step."""

    def longest(self, prompt: Array, written: Array) -> Array:
        """The largest number of tokens of a request in one step without chunks; after a preemption, this can
        be all its tokens.
        """
        return written

    def spare(self, blocks: int) -> int:
        """The number of blocks that an admission leaves free."""
        return 0

    def roomy(self, capacity: Capacity) -> int | None:
        """The number of spare blocks with which an admission never fails for lack of blocks; None if this is
        not known.

        The number of spare blocks has to exceed the final blocks of all running requests, including the next
        one.
        """
        return None

    def fill(self, server: Server, preempted: bool) -> None:
        """Fill the next step with prompts, up to its tokens, sequences and blocks.

        Partly prefilled prompts come first. If one of them lacks blocks, the last one is preempted, which may
        be the same one. After that, requests are admitted, unless a request was `preempted` for this step. A
        request runs on one rank: the rank with the fewest prefill tokens at its admission.
        """
        capacity, waiting, running = server.capacity, server.waiting, server.running
        decodes = capacity.rows * -(-server.decoding // server.lanes) if self.mixes else 0
        left, blocks = [capacity.tokens - decodes] * capacity.ranks, server.blocks
        for request, done in list(server.reading.items()) if server.reading else ():
            if request not in server.reading:  # the request was preempted so that an earlier request can run
                break
            rank = running[request]
            new = min(left[rank], server.to_read[request] - done)
            while server.may_lack_blocks and blocks.chunk(done, new) - blocks.of(done) > self.free(server):
                last = next(reversed(server.reading))
                server.preempt(last)
                waiting.appendleft(last)
                preempted = True
                if last == request:
                    break
            else:
                if new:
                    server.schedule_chunk(request, done, new)
                    left[rank] -= new
        while waiting and not preempted and len(running) < capacity.sequences:
            rank = server.least_loaded_rank(left) if len(left) > 1 else 0
            if not (most := left[rank]):
                return
            request = waiting[0]
            unread = server.unread(request)
            new = unread if unread < most else most
            if (new < unread and not self.chunked) or not self.admits(server, request, new):
                return
            server.admit(request, rank, new)
            left[rank] -= new

    def free(self, server: Server) -> int:
        """The number of free blocks, minus the blocks that the decodes of this step will need."""
        return server.blocks.free - (server.blocks.due(server.step) if self.mixes else 0)


# Server


class Server:
    """An engine with its policy, capacity and step times, which serves requests of a load.

    Requests, by number:

    - `waiting` requests wait for admission; `late` requests arrived when the next step was already filled.
    - `running` maps admitted requests, in order, to their ranks; `on_ranks` counts them for each rank.
    - `reading` contains the requests in prefill, with their cached tokens.
    - `ends` is a heap of the decoding requests, each with the step after which it ends.
    - `deadlines` is a heap of the times at which requests are given up.

    Columns by request: `to_read` is the number of tokens to prefill, which includes generated tokens after a
    preemption. `cancelled` is the number of requested tokens that will not be generated. `final` is the
    largest number of its blocks. `last_s` is the end of prefill, or the last token before a preemption. A
    client waits for `stays_s` from `since_s` on.

    The number of the next step is `step`. In this step, `decoding` sequences decode, with `kept` cached
    tokens in total. `chunks` are its prefill chunks: request, new tokens and cached tokens. `demand` is the
    sum of `final` over running requests. The policy runs no prefill before the step `hold_until`. The policy
    last looked for new requests before the step `received`. `retraction` is SGLang's last retraction: its
    step, and the share of future tokens that admissions reserve after it. `flying` blocks contain tokens in
    flight that leave the windows after the step.
    """

    # Access to slots is faster than to a dict with this many entries.
    __slots__ = (
        *("prices", "policy", "capacity", "load", "course", "answered", "stays_s", "since_s", "log"),
        *("prompt", "generate", "written", "cached", "cancelled", "final", "to_read", "last_s"),
        *("blocks", "sharing", "batch", "waiting", "late", "reading", "running", "ends", "deadlines"),
        *("chunks", "on_ranks", "lanes", "prefix_tokens", "flying", "ahead"),
        *("step", "decoding", "kept", "demand", "preempted", "hold_until", "received", "now", "decoded_s"),
        *("until", "changes", "retraction", "_to_come"),
    )

    def __init__(
        self, prices: StepTimes, policy: Policy, capacity: Capacity, load: Load, course: RequestTimeline
    ) -> None:
        self.prices, self.policy, self.capacity, self.course = prices, policy, capacity, course
        self.prompt: list[int] = load.prompt.tolist()
        self.generate: list[int] = load.generate.tolist()
        course.made = list(self.generate)
        self.written: list[int] = load.written.tolist()
        self.cached: list[int] = load.cached.tolist()
        # The cached tokens of each prompt at first admission; `cached` includes outputs later.
        self.prefix_tokens = [0] * len(load.prompt) if load.shares else list(self.cached)
        self.cancelled: list[int] = (load.reserved - load.written).tolist()
        self.stays_s: list[float] | None = None if load.stays_s is None else load.stays_s.tolist()
        self.since_s = course.arrival_s
        # One more token with shared prefixes: the block of the last token may be cached and processed again.
        most = load.reserved + capacity.rows - 1
        shared = self._pool().pages_of_block * load.shares
        self.final: list[int] = (self._pool().of_each(most) + shared + capacity.state).tolist()
        self.to_read: list[int] = list(self.prompt)
        self.load, self.last_s = load, [0.0] * len(self.prompt)
        self.ahead = capacity.ahead_blocks
        self._reset()

    def _pool(self) -> BlockPool:
        """The pool with all blocks free."""
        return self.capacity.pool(BlockPool, GroupedBlockPool)

    def _reset(self) -> None:
        self.blocks = self._pool()
        self.sharing = PrefixCache(self.load, self.blocks) if self.load.shares else None
        self.batch = self.prices.batch()  # None if the sum of contexts determines step times
        self.waiting: deque[int] = deque()
        self.deadlines: list[tuple[float, int]] = []
        self.late: list[int] = []
        self.reading: dict[int, int] = {}
        self.chunks: dict[int, tuple[int, int]] = {}
        self.running: dict[int, int] = {}
        self.on_ranks = [0] * self.capacity.ranks
        self.lanes = self.capacity.lanes
        self.ends: list[tuple[int, int]] = []
        self.step = self.decoding = self.kept = self.demand = self.preempted = self.flying = 0
        self.received = 0
        self.changes = 0  # how often a sequence has begun or stopped to decode
        self._to_come = (0, 0, 0), 0
        self.retraction = 0, 0.0
        self.hold_until: int | None = None
        self.now = self.decoded_s = self.until = 0.0
        self.log = bytearray()
        self.answered: Callable[[int], None] | None = None  # called with each request that ends

    def beside(self) -> Server:
        """Another idle server like this one, for other requests of the load."""
        other = copy(self)
        other._reset()
        other.course = self.course.beside()
        return other

    def come(self, request: int, time_s: float) -> None:
        """A request arrives; an idle server continues from this time.

        If the policy fills steps `ahead`, the next step of a busy server is already filled. With a
        `receive_interval`, the policy looks for the requests of a busy server later.
        """
        busy = self.decoding or self.reading or self.late or self.now > time_s
        filled = busy and (self.policy.ahead or self.policy.receive_interval > 1)
        if not busy:
            self.received = self.step
        self.now = max(self.now, time_s)
        (self.late if filled else self.waiting).append(request)
        if self.stays_s is not None:
            heappush(self.deadlines, (self._deadline_s(request), request))

    def advance(self, until: float = FOREVER) -> None:
        """Run all steps that begin before a time. A response may cause an earlier event, which moves `until`
        forward.
        """
        policy, self.until = self.policy, until
        while self.now < self.until:
            if self.deadlines and self.deadlines[0][0] <= self.now:
                self._give_up()
                continue
            before, late = self.preempted, self._receive()
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

    def _receive(self) -> list[int]:
        """The requests that wait after the next step; requests that the policy will consider only later stay
        `late`.
        """
        late, running = self.late, self.decoding or self.reading or self.waiting
        if not late or (self.policy.receive_interval > 1 and running and self._steps_until_receive()):
            return []
        self.late = []
        if self.policy.receive_interval > 1:
            self.received = self.step
            self.waiting.extend(late)
            return []
        return late

    def _steps_until_receive(self) -> int:
        """The number of decode steps until the policy looks for new requests."""
        return (self.received - self.step) % self.policy.receive_interval

    @property
    def begins_s(self) -> float:
        """The start of the server's next step, if it has one."""
        return self.now

    @property
    def busy(self) -> bool:
        """Whether the server has requests."""
        return bool(self.waiting or self.late or self.running)

    @property
    def may_lack_blocks(self) -> bool:
        """Whether the blocks may be too few for all running requests to end without a preemption."""
        return self.demand + self.ahead > self.blocks.total

    @property
    def events(self) -> Array:
        """The log: a row for each series of decode steps and for each other step, with the columns `LOG`."""
        return log_table(bytes(self.log))

    @property
    def lacks_blocks(self) -> bool:
        """Whether the next decode step needs more blocks than are free."""
        return self.blocks.due(self.step) > self.blocks.free

    @property
    def most_held(self) -> int:
        """The largest number of blocks in use."""
        return int(log_column(self.log, "blocks").max(initial=0))

    def unread(self, request: int) -> int:
        """The number of prefill tokens of the first waiting request if it is admitted now: its tokens that
        are not cached.
        """
        if self.sharing is not None:
            block = self.capacity.block  # only full blocks are found; at least one token is prefilled
            most = (self.to_read[request] - 1) // block * block
            self.sharing.evict(self.policy.free(self))
            self.cached[request] = min(self.sharing.kept(request), most)
        return self.to_read[request] - self.cached[request]

    def blocks_needed(self, request: int, new: int) -> int:
        """The number of free blocks that a request needs if it is admitted now with `new` prefill tokens."""
        blocks, cached, state = self.blocks, self.cached[request], self.capacity.state
        own = blocks.prompt(self.to_read[request]) if self.policy.cautious else blocks.chunk(cached, new)
        if self.sharing is None:
            return own + state
        return self.sharing.needed(request, cached) + own - blocks.of(cached) + state

    def least_loaded_rank(self, left: Sequence[int]) -> int:
        """The rank with the fewest prefill tokens in excess of its remaining budget (`left`); among equal
        ranks, the one with the fewest requests.
        """
        unread = [-tokens for tokens in left]
        for request, done in self.reading.items():
            unread[self.running[request]] += self.to_read[request] - done
        return min(range(len(left)), key=lambda rank: (unread[rank], self.on_ranks[rank]))

    def admit(self, request: int, rank: int, new: int) -> None:
        """Admit the first waiting request; the next step prefills `new` of its tokens."""
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
            self.prefix_tokens[request] = cached
        self.schedule_chunk(request, cached, new)

    def schedule_chunk(self, request: int, done: int, new: int) -> None:
        """Prefill `new` tokens of a request after `done` cached ones in the next step, and allocate their
        blocks.
        """
        blocks, cached = self.blocks, done + new
        if blocks.groups:
            held, flying = blocks.of(cached), blocks.chunk(done, new)
            self.flying += flying - held
            blocks.free -= flying - blocks.of(done)
        else:
            blocks.free -= -(-cached // blocks.size) + (-done // blocks.size)
        self.chunks[request] = new, done
        self.reading[request] = cached
        if self.sharing is not None:
            self.sharing.evict(self.policy.free(self))  # blocks that it took are no longer cached prefixes
            self.sharing.read(request, cached)

    def _release(self, request: int, tokens: int) -> None:
        """Free the blocks of a request with `tokens` cached tokens, and those of its states."""
        if self.sharing is not None:
            self.sharing.leave(request, tokens)
        else:
            self.blocks.free += self.blocks.of(tokens)
        self.blocks.free += self.capacity.state

    def made(self, request: int, end: int) -> int:
        """The number of tokens that a request has generated, if it decodes until after step `end`."""
        return self.generate[request] - self.left(request, end)

    def left(self, request: int, end: int) -> int:
        """The remaining output tokens of the request."""
        return end - self.step

    def to_come(self, most: int) -> int:
        """The remaining output tokens of all decoding requests, at most `most` of each, without
        cancellation.
        """
        now = self.step, self.changes, most
        if self._to_come[0] != now:
            left, cancelled = self.left, self.cancelled
            self._to_come = now, sum(min(left(one, end) + cancelled[one], most) for end, one in self.ends)
        return self._to_come[1]

    def preempt(self, request: int) -> None:
        """Free the blocks of a request; its tokens are processed again after the next admission."""
        self.preempted += 1
        self.course.preemptions[request] += 1
        if self.sharing is not None and (free := self.policy.free(self)) >= 0:
            self.sharing.evict(free)  # blocks for decodes of this step are allocated before these are cached
        self._drop(request)

    def _drop(self, request: int) -> None:
        """Stop a request without completing it, and free its blocks."""
        self.on_ranks[self.running.pop(request)] -= 1
        self.demand -= self.final[request]
        if request in self.reading:
            self._release(request, self.reading.pop(request))
            return
        end = next(end for end, other in self.ends if other == request)
        self.ends.remove((end, request))
        heapify(self.ends)
        context = self.written[request] - self.left(request, end)
        if context == self.to_read[request]:  # no step has decoded it since its prefill
            self.course.joined_s.pop(bisect_left(self.course.joined_s, self.last_s[request]))
        else:
            self.last_s[request] = self.decoded_s
        self.to_read[request] = context + 1
        self._end_decode(request, context)

    def over(self, request: int, time_s: float) -> bool:
        """Whether the client of a request has left by a time."""
        return self.stays_s is not None and self._deadline_s(request) <= time_s

    def _deadline_s(self, request: int) -> float:
        assert self.stays_s is not None
        return self.since_s[request] + self.stays_s[request]

    def _give_up(self) -> None:
        """Give up requests past their deadline; they end with the tokens that they have."""
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
        """Run a series of decode steps, until a request ends, `until` is reached, or blocks run short.

        With `once`, run a single step, because the next step may admit another request.
        """
        now, step, decodes, kept = self.now, self.step, self.decoding, self.kept
        last = self.ends[0][0]
        most = 1 if once else last - step
        if self.late:
            most = min(most, self._steps_until_receive())
        if self.hold_until is not None:
            most = min(most, max(1, self.hold_until - step))
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
        """The number of steps, at most `most`, until decodes evict cached blocks that the next admitted
        request would use.
        """
        if len(self.running) == self.capacity.sequences:
            return most
        taken = self.blocks.taken(self.step, most)
        left = sharing.untouched(self.waiting[0], taken)
        return most if left >= taken else max(1, self.blocks.steps(self.step, self.blocks.free - left))

    def _advance_contexts(self, steps: int) -> None:
        """Count steps of all decoding sequences; the batch has been advanced already."""
        self.step += steps
        self.kept += steps * self.decoding

    def _prefill_step(self) -> None:
        """Run the step that the policy has filled: prompts, and also decodes if the policy mixes both."""
        taken, self.chunks = self.chunks, {}
        chunks = [*taken.values()]
        decodes = self.decoding if self.policy.mixes else 0
        kept = self.kept if decodes else 0
        sums = (kept,) if self.batch is None or not decodes else self.batch.kept
        now, ranks = self.now, len(self.on_ranks)
        if ranks == 1:
            seconds = float(self.prices.step(decodes, sums, chunks))
        else:
            seconds = self.prices.micro_batch(decodes, sums, chunks_by_rank(taken, self.running, ranks))[0]
        held = self.blocks.go(self.step, 1 if decodes else 0)
        tokens = chunks[0][0] if len(chunks) == 1 else sum(new for new, _ in chunks)
        self.log += row(now, seconds, 1, decodes, kept, tokens, len(chunks), len(self.waiting), held)
        self.now = now + seconds
        self.received = self.step
        if self.flying:
            self._land()
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

    def _land(self) -> None:
        """No token is in flight any more: windows free the blocks that they have left."""
        self.blocks.free += self.flying
        self.flying = 0

    def _prefilled(self, request: int) -> None:
        """The prefill of a request ends (after a preemption, it includes generated tokens) and yields a
        token.
        """
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
        """A sequence decodes from the next step on, until it has `left` more tokens."""
        heappush(self.ends, (self.step + left, request))
        self.decoding += 1
        self.changes += 1
        self.kept += context
        if self.batch is not None:
            self.batch.join(context)
        self.blocks.join(context, self.step)

    def _finish_due(self) -> None:
        """End all requests that have their last token."""
        ends, step = self.ends, self.step
        while ends and ends[0][0] == step:
            request = heappop(ends)[1]
            self._end_decode(request, self.written[request])
            self._finish(request)

    def _end_decode(self, request: int, context: int) -> None:
        """Stop decoding a sequence with `context` cached tokens, and free its blocks."""
        self.decoding -= 1
        self.changes += 1
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


# Fast loop

NEVER = 1 << 62  # a step number that never occurs


def is_deterministic(server: Server) -> bool:
    """Whether a server's progress depends only on arrivals and on free blocks.

    It has one rank, and step times that depend on the sum of contexts only. Its requests share no prefixes
    and have no deadlines, and its responses cause no requests.
    """
    return (
        type(server) is Server
        and server.policy.roomy(server.capacity) is not None
        and server.policy.receive_interval == 1
        and server.capacity.ranks == 1
        and not server.capacity.state
        and server.batch is None
        and server.sharing is None
        and server.stays_s is None
        and server.answered is None
    )


def is_uncontended(server: Server) -> bool:
    """Whether all requests that have arrived are decoding, and half of the blocks will still be free when
    they end.
    """
    if server.waiting or server.late or server.reading:
        return False
    return 2 * server.demand < server.blocks.total and server.demand <= room_for_all(server)


def room_for_all(server: Server) -> int:
    """The number of blocks that all running requests may take together, so that no admission fails for lack
    of blocks.
    """
    return server.blocks.total - (server.policy.roomy(server.capacity) or 0) - server.ahead


def fast_loop(server: Server, first: int, comes_s: Sequence[float]) -> int:  # noqa: PLR0912, PLR0915 (see above)
    """Advance a deterministic server, starting with request `first`, as long as blocks suffice for every
    arrival.

    `comes_s` are the arrival times; the last one is infinite. Returns the first request that has not arrived
    when an admission lacks blocks; `Server.advance` continues there.
    """
    course, blocks, capacity, policy = server.course, server.blocks, server.capacity, server.policy
    groups, of, join, leave = blocks.groups, blocks.of, blocks.join, blocks.leave
    prompt, cached, generate, written = server.prompt, server.cached, server.generate, server.written
    final, log, running = server.final, server.log, len(server.running)
    start_s, first_s, end_s, joined_s = course.start_s, course.first_s, course.end_s, course.joined_s
    price, run = server.prices.step, server.prices.run
    held, turns, size = blocks.total - blocks.free, blocks.turns, blocks.size
    tokens, sequences = capacity.tokens, capacity.sequences
    mixes, chunked, ahead = policy.mixes, policy.chunked, policy.ahead
    now, step, decoding, kept, demand = server.now, server.step, server.decoding, server.kept, server.demand
    decoded_s, room = server.decoded_s, room_for_all(server)
    # Requests before `joined` have completed prefill, those before `read` are admitted, those before `ready`
    # may be in the next step, and those before `come` have arrived.
    joined = read = begun = come = first
    part = flying = 0  # tokens of a prefill between decodes, if there is one; blocks of tokens in flight
    # A heap of numbers, the step after which a request ends · `count` + the request; the first is `due`.
    count = len(prompt)
    ends = [end * count + request for end, request in server.ends]
    due = ends[0] // count if ends else NEVER
    while True:
        ready = come
        if not (decoding or part) and read == come:
            if come == count:
                break
            now = max(now, comes_s[come])
        if comes_s[come] <= now:
            filled = ahead and (decoding or part or (comes_s[come] < now and read < ready))
            while comes_s[come] <= now:
                come += 1
            if not filled:
                ready = come
        chunks: list[tuple[int, int]] = []
        if part or read < ready:
            begun = read
            left = tokens - decoding if mixes else tokens
            if part and left:
                new = min(left, prompt[joined] - part)
                chunks.append((new, part))
                left -= new
            while read < ready and left and running < sequences:
                new = prompt[read] - cached[read]
                if new > left:
                    if not chunked:
                        break
                    new = left
                demand += final[read]
                if demand > room:
                    break
                chunks.append((new, cached[read]))
                start_s[read] = now
                left -= new
                read += 1
                running += 1
            if demand > room:
                break
        if chunks:
            decodes, sums = (decoding, kept) if mixes else (0, 0)
            seconds = float(price(decodes, (sums,), chunks))
            begin, now = now, now + seconds
            if groups:
                flying = 0
                for new, done in chunks:
                    flying += blocks.chunk(done, new) - of(done + new)
            if part:
                held -= of(part) if groups else -(-part // size)
            if decodes:
                held += blocks.taken(step, 1) if groups else turns[step % size]
                decoded_s = now
                step += 1
                kept += decodes
            new, part = chunks[-1]
            part += new
            whole = read
            if part == prompt[read - 1]:
                part = 0
            else:
                whole -= 1
                held += of(part) if groups else -(-part // size)
            while joined < whole:
                first_s[joined] = now
                context, end = prompt[joined], generate[joined] - 1
                if end:
                    joined_s.append(now)
                end += step
                due = min(due, end)
                heappush(ends, end * count + joined)
                joined += 1
                decoding += 1
                kept += context
                if groups:
                    held += of(context)
                    join(context, step)
                else:
                    held -= -context // size
                    turns[(step - context) % size] += 1
            if len(chunks) > 1:
                new = sum([new for new, _ in chunks])
            log += row(begin, seconds, 1, decodes, sums, new, len(chunks), ready - read, held + flying)
        else:
            most = 1 if ready < come else due - step
            steps, seconds = run(decoding, kept, None, most, comes_s[come] - now)
            held += turns[step % size] if steps == 1 and not groups else blocks.taken(step, steps)
            log += row(now, seconds, steps, decoding, kept, 0, 0, ready - read, held)
            now = decoded_s = now + seconds
            step += steps
            kept += steps * decoding
        while due == step:
            request = heappop(ends) % count
            context = written[request]
            end_s[request] = now
            decoding -= 1
            running -= 1
            kept -= context
            demand -= final[request]
            if groups:
                held -= of(context)
                leave(context, step)
            else:
                held += -context // size
                turns[(step - context) % size] -= 1
            due = ends[0] // count if ends else NEVER
    if demand > room:  # then no request is admitted yet in this step
        for request in range(begun, read + 1):
            demand -= final[request]
            start_s[request] = FOREVER
        read = begun
    server.now, server.step, server.decoding, server.kept, server.demand = now, step, decoding, kept, demand
    server.decoded_s, blocks.free = decoded_s, blocks.total - held
    server.waiting.extend(range(read, ready))
    server.late.extend(range(ready, come))
    server.ends[:] = [divmod(end, count) for end in ends]
    server.changes += 1
    _runs(server, first, {joined: part} if part else {})
    return come


def _runs(server: Server, first: int, reading: dict[int, int]) -> None:
    """The running requests in the order of admission, which is the order of their numbers, starting with the
    first one.
    """
    decoding = {request for _, request in server.ends}
    new = sorted(request for request in decoding if request >= first and request not in server.running)
    old = [request for request in server.running if request in decoding]
    server.running.clear()
    server.running.update(dict.fromkeys([*old, *new, *reading], 0))
    server.reading.update(reading)
    server.on_ranks[0] = len(server.running)
    for request in new:
        server.last_s[request] = server.course.first_s[request]
