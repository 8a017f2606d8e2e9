"""A server simulated plainly: one event a token, and a list of blocks for each request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from llmir.backends.simulate.server import Capacity

# Seconds by contexts of decodes and chunks of each rank.
Step = Callable[[list[int], list[list[tuple[int, int]]]], float]
SHARE, DECAY, CLIP, HEADROOM = 0.098, 0.602 / 600, 4096, 20  # of SGLang


@dataclass(eq=False)
class Request:
    """It asks for some tokens, and is cancelled when so many are generated."""

    number: int
    arrival: float
    prompt: int
    generate: int
    asked: int
    cached: int = 0
    prefix: list[tuple[int, slice]] = field(default_factory=list)  # hashes, and of which blocks
    stays: float = float("inf")  # how long its client does
    yields: list[int] = field(default_factory=list)  # tokens of each step that verifies drafts
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)  # of those blocks that others may have too
    stored: int = 0  # tokens in the cache
    decodes: bool = False
    rank: int = 0
    times: list[float] = field(default_factory=list)  # of its tokens
    start: float = float("inf")
    end: float = float("inf")
    preemptions: int = 0

    def unread(self) -> int:
        return self.prompt + len(self.times) - self.stored


class Naive:
    """An engine: vllm, v0 (vLLM before 0.8), atom, sglang or trtllm; its next step may be filled `ahead`.

    One that is `cautious` admits a prompt when all of it has blocks. With an `interval` above 1 it counts
    steps as SchedulerRecvSkipper of SGLang does, 1 for decodes and more for prompts, and looks for requests
    when it has counted so many.
    """

    def __init__(
        self, step: Step, engine: str, room: Capacity, chunked: bool, ahead: bool, cautious: bool = False
    ) -> None:
        self.step, self.engine, self.room, self.chunked, self.ahead = step, engine, room, chunked, ahead
        self.cautious, self.interval, self.counted = cautious, 1, 0
        self.mixes = engine in ("vllm", "trtllm")
        self.waiting, self.late, self.running, self.done = (list[Request]() for _ in range(4))
        self.share_to_come = SHARE
        self.now, self.unused = 0.0, list(range(room.blocks))
        self.kept: dict[int, list[int]] = {}  # blocks by hash, as they were given back
        self.log: list[tuple[float, float, int, int]] = []  # steps: begin, seconds, requests, free blocks

    def idle(self) -> list[int]:
        """Hashes of blocks that nobody has."""
        held = {h for r in self.running for h in r.hashes}
        return [h for h in self.kept if h not in held]

    def free(self) -> int:
        return len(self.unused) + sum(len(self.kept[h]) for h in self.idle())

    def more(self, r: Request, tokens: int) -> int:
        """Blocks that it takes for so many tokens more."""
        last = (self.room.overlap - 1) * self.room.tokens  # of the step before, which may be in flight
        flying = tokens + min(r.stored, last) if self.room.overlap else 1
        return max(0, self.whole(r.stored + tokens, 1 if r.decodes else flying) - len(r.blocks))

    def whole(self, tokens: int, flying: int = 1) -> int:
        """All blocks of a request with so many tokens, of which some are in flight."""
        found = self.room.state
        for size, pages, kept in self.room.groups or ((self.room.block, 1, None),):
            blocks = -(-tokens // size)
            # Tokens in a row touch at most one block more than they fill.
            found += pages * (blocks if kept is None else min(blocks, -(-(kept + flying) // size) + 1))
        return found

    def take(self, r: Request, tokens: int) -> None:
        while self.more(r, tokens) > len(self.unused):
            self.unused += self.kept.pop(self.idle()[0])
        r.blocks += [self.unused.pop() for _ in range(self.more(r, tokens))]

    def share(self, r: Request) -> None:
        """Whole blocks of what it has read may be found by others."""
        for h, part in r.prefix:
            if h not in self.kept and part.start < part.stop <= r.stored // self.room.block:
                self.kept[h] = r.blocks[part]
                r.hashes.append(h)

    def leave(self, r: Request) -> None:
        next(queue for queue in (self.running, self.waiting, self.late) if r in queue).remove(r)
        self.share(r)
        shared = {b for h in r.hashes for b in self.kept[h]}
        self.unused += [b for b in r.blocks if b not in shared]
        self.kept |= {h: self.kept.pop(h) for h in reversed(r.hashes)}
        r.blocks, r.hashes, r.stored, r.decodes = [], [], 0, False
        r.end = self.now  # unless it comes back

    def preempt(self, r: Request, place: int = 0) -> None:
        self.leave(r)
        r.preemptions += 1
        self.waiting.insert(place, r)

    def relieve(self) -> bool:
        """Whether some are preempted, so that all others that decode have blocks for a step."""
        before, least = len(self.running), 0
        while max(least, sum(self.more(r, self.room.rows) for r in self.running if r.decodes)) > self.free():
            if self.engine == "sglang":
                last = min(self.running, key=lambda r: (len(r.times), -r.prompt, r.number))
                self.preempt(last, place=len(self.waiting))
                least = HEADROOM * len(self.running) if len(self.running) > 1 else 0
            else:
                self.preempt(self.running[-1])
        if self.engine == "sglang" and len(self.running) < before:
            rest = [r for r in self.running if r.decodes]
            room = sum(len(r.times) + HEADROOM for r in rest)
            self.share_to_come = min(1.0, room / (sum(r.asked for r in rest) + 1))
        return len(self.running) < before

    def come(self, r: Request, now: float) -> None:
        busy = self.running or self.late or self.now > now
        filled = busy and (self.ahead or self.interval > 1)
        if not busy:
            self.counted = 0
        self.now = max(self.now, now)
        (self.late if filled else self.waiting).append(r)

    def go(self) -> list[Request]:
        """A step, if nobody gives up before it: who is done with it."""
        self.done, here = [], self.waiting + self.late + self.running
        for deadline, _, r in sorted((r.arrival + r.stays, r.number, r) for r in here):
            if deadline <= self.now:
                self.leave(r)
                self.done.append(r)
        if not self.done:
            if self.interval > 1 and (self.counted >= self.interval or not self.running + self.waiting):
                self.waiting, self.late, self.counted = self.waiting + self.late, [], 0
            self.fill()
            if self.interval == 1:
                self.waiting, self.late = self.waiting + self.late, []
        return self.done

    def fill(self) -> None:
        if not self.mixes and (chunks := self.read(0, False)):
            self.do([], chunks)
        elif not (preempted := self.relieve()) or self.mixes:
            decoding = [r for r in self.running if r.decodes]
            for r in decoding:
                self.take(r, self.room.rows)
            self.do(decoding, self.read(len(decoding), preempted) if self.mixes else [])

    def read(self, decodes: int, preempted: bool) -> list[tuple[Request, int]]:
        """Chunks of prompts beside so many decodes."""
        left = [self.room.tokens - self.room.rows * -(-decodes // self.room.lanes)] * self.room.ranks
        chunks = []
        for r in [*(r for r in self.running if not r.decodes), *self.waiting]:
            if r in self.waiting and (preempted or not self.admits(r, left)):
                break
            new = min(left[r.rank], r.unread())
            while r in self.running and self.more(r, new) > self.free():
                self.preempt([q for q in self.running if not q.decodes and q.unread()][-1])
                preempted = True
            if r in self.running and new:
                self.take(r, new)
                r.stored += new
                self.share(r)
                left[r.rank] -= new
                chunks.append((r, new))
        return chunks

    def admits(self, r: Request, left: list[int]) -> bool:
        """Whether the first that waits runs now, where there is least to read."""
        reads = [q for q in self.running if not q.decodes]
        load = [sum(q.unread() for q in reads if q.rank == k) - tokens for k, tokens in enumerate(left)]
        r.rank = min(range(len(left)), key=lambda k: (load[k], [q.rank for q in self.running].count(k)))
        if r.prefix:
            hits = list(takewhile(lambda each: each[0] in self.kept, r.prefix))
            found = [b for h, _ in hits for b in self.kept[h]]
            r.cached = min(len(found), (r.unread() - 1) // self.room.block) * self.room.block
            r.blocks = found[: r.cached // self.room.block]
            r.hashes = [h for h, part in hits if part.start < len(r.blocks)]
        r.stored = r.cached
        self.running.append(r)
        new = min(left[r.rank], r.unread())
        allowed = new > 0 and (new == r.unread() or self.chunked) and len(self.running) <= self.room.sequences
        if allowed and self.fits(r, new):
            self.waiting.remove(r)
            r.start = min(r.start, self.now)
            return True
        self.running.remove(r)
        r.blocks, r.hashes, r.stored = [], [], 0
        return False

    def fits(self, r: Request, new: int) -> bool:
        """Whether there is room by the engine's estimate for one that reads so many tokens first."""
        if self.engine == "trtllm":
            most = (q.prompt + q.asked + self.room.rows - 2 for q in self.running)
            reserved = sum(self.whole(tokens) + bool(r.prefix) for tokens in most)
            return reserved <= self.room.blocks and self.more(r, new) <= self.free()
        if self.engine == "sglang":
            rest = {q: min(q.asked - len(q.times), CLIP) for q in self.running}
            to_come = max(SHARE, self.share_to_come) * sum(rest[q] for q in self.running if q.decodes)
            reads = sum(self.more(q, q.unread()) + rest[q] for q in self.running if not q.decodes)
            return to_come + reads < self.free()
        if self.cautious:
            flying = self.room.overlap * self.room.tokens
            own = self.whole(r.stored + r.unread(), max(1, flying)) - len(r.blocks)
        else:
            own = self.more(r, new)
        return own + (self.room.blocks // 100 if self.engine in ("v0", "atom") else 0) <= self.free()

    def do(self, decoding: list[Request], chunks: list[tuple[Request, int]]) -> None:
        if decoding or chunks:
            ranks = [[(n, r.stored - n) for r, n in chunks if r.rank == k] for k in range(self.room.ranks)]
            seconds = self.step([r.stored for r in decoding], ranks)
            self.counted += 1000 if chunks else 1
            self.share_to_come -= DECAY if decoding else 0
            self.log.append((self.now, seconds, len(self.waiting + self.late + self.running), self.free()))
            self.now += seconds
            for r, _ in chunks:  # nothing is in flight
                self.unused += r.blocks[(held := max(self.whole(r.stored), len(r.hashes))) :]
                r.blocks = r.blocks[:held]
            self.make([*sorted(decoding, key=lambda r: r.number), *(r for r, _ in chunks if not r.unread())])

    def make(self, requests: list[Request]) -> None:
        for r in requests:
            count = min(r.yields.pop(0) if r.yields and r.decodes else 1, r.generate - len(r.times))
            r.times += [self.now] * count
            r.decodes, r.stored = True, r.prompt + len(r.times) - 1
            if len(r.times) == r.generate:
                self.leave(r)
                self.done.append(r)
