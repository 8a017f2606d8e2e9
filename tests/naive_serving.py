"""A server simulated plainly: one event a token, and a list of blocks for each request.

Of several data-parallel ranks each reads prompts of its own; the step is told where each chunk lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from tests.naive_cache import Cache, Request

Step = Callable[
    [list[int], Any], float
]  # contexts of decodes, and chunks: of each rank, if there are several
FRACTION, CLIP, HEADROOM = 0.098, 4096, 20  # of SGLang


@dataclass
class Naive(Cache):
    """`engine` is vllm, v0 (vLLM before 0.8), sglang or trtllm."""

    step: Step
    engine: str
    requests: list[Request]
    tokens: int
    sequences: int
    chunked: bool
    users: int | None = None
    timeout: float = float("inf")
    ranks: int = 1
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)  # as admitted
    now: float = 0.0
    most_held: int = 0
    integral: float = 0.0  # of requests in the system, over time

    def __post_init__(self) -> None:
        super().__post_init__()
        self.comes = list(self.requests)
        if self.users:
            self.waiting, self.comes = self.comes[: self.users], self.comes[self.users :]

    def leave(self, request: Request) -> None:
        self.running.remove(request)
        self.drop(request)

    def preempt(self, request: Request, front: bool) -> None:
        self.leave(request)
        request.stored, request.decodes = 0, False
        request.preemptions += 1
        self.waiting.insert(0 if front else len(self.waiting), request)

    def give_up(self, request: Request) -> None:
        request.given_up = self.now
        self.leave(request) if request in self.running else self.waiting.remove(request)
        self.next()

    def next(self) -> None:
        if self.users and self.comes:
            self.comes[0].arrival = self.now
            self.waiting.append(self.comes.pop(0))

    def run(self) -> None:
        while self.waiting or self.running or self.comes:
            if not self.users:
                if not self.waiting and not self.running:
                    self.now = max(self.now, self.comes[0].arrival)
                while self.comes and self.comes[0].arrival <= self.now:
                    self.waiting.append(self.comes.pop(0))
            for request in [r for r in self.requests if r in [*self.waiting, *self.running]]:
                if request.arrival + self.timeout <= self.now:
                    self.give_up(request)
            begin, inside = self.now, len(self.waiting) + len(self.running)
            (self.mixed if self.engine in ("vllm", "trtllm") else self.apart)()
            self.integral += inside * (self.now - begin)
            assert self.free <= self.total and len(set(self.unused)) == len(self.unused)
        assert sorted(self.unused + [b for h in self.idle for b in self.kept[h]]) == list(range(self.total))

    def mixed(self) -> None:
        decoding, preempted = [], False
        for request in [r for r in self.running if r.decodes]:
            while request in self.running and not self.store(request, 1):
                self.preempt(self.running[-1], front=True)
                preempted = True
            if request in self.running:
                decoding.append(request)
        decoding = [r for r in decoding if r in self.running]
        self.do(decoding, self.read(self.tokens - -(-len(decoding) // self.ranks), preempted))

    def apart(self) -> None:
        if chunks := self.read(self.tokens, False):
            self.do([], chunks)
            return
        due = lambda: sum(r.stored % self.size == 0 for r in self.running)  # noqa: E731
        if due() <= self.free:
            assert all(self.store(r, 1) for r in self.running)
            self.do(list(self.running), [])
        elif self.engine == "sglang":
            while len(self.running) > 1:
                self.preempt(min(self.running, key=lambda r: (r.made, -r.prompt, r.number)), front=False)
                if self.free * self.size >= len(self.running) * HEADROOM:
                    break
        else:
            while due() > self.free:
                self.preempt(self.running[-1], front=True)

    def read(self, most: int, preempted: bool) -> list[tuple[Request, int]]:
        chunks, left = [], [most] * self.ranks
        for request in [r for r in self.running if not r.decodes]:
            new = min(left[request.rank], request.unread)
            if not self.store(request, new):
                self.preempt(request, front=True)
                preempted = True
            elif new:
                self.share(request, request.stored + new)
                chunks.append((request, new))
                left[request.rank] -= new
        while self.waiting and any(left) and not preempted and len(self.running) < self.sequences:
            request = self.waiting[0]
            request.rank = self.rank()
            hits = list(takewhile(lambda h: h in self.kept, request.hashes))
            if request.hashes:
                found = self.size * sum(len(self.kept[h]) for h in hits)
                request.cached = min(found, (request.unread - 1) // self.size * self.size)
            cached, hits = request.cached, hits[: -(-request.cached // 512)]
            new = min(left[request.rank], request.unread - cached)
            if new < request.unread - cached and not self.chunked:
                break
            takes = self.blocks(cached + new) - (self.blocks(cached) if request.hashes else 0)
            takes += sum(len(self.kept[h]) for h in hits if h in self.idle)
            if not self.room(request, takes, request.unread - cached - new):
                break
            self.waiting.pop(0)
            self.have(request, hits, cached)
            assert self.store(request, cached + new)
            request.stored = cached
            self.share(request, cached + new)
            if request.start is None:
                request.start = self.now
            self.running.append(request)
            chunks.append((request, new))
            left[request.rank] -= new
        return chunks

    def rank(self) -> int:
        """Where least is to be read, this step's chunks included; of equals where the fewest requests are."""
        own = [[r for r in self.running if r.rank == rank] for rank in range(self.ranks)]
        unread = [sum(r.unread for r in some if not r.decodes) for some in own]
        return min(range(self.ranks), key=lambda rank: (unread[rank], len(own[rank])))

    def room(self, request: Request, takes: int, later: int) -> bool:
        """Whether it may run, if it takes so many blocks and reads so many tokens later."""
        if self.engine == "trtllm":
            final = lambda r: self.blocks(r.prompt + r.generate + r.asked - 1) + bool(r.hashes)  # noqa: E731
            return sum(map(final, [*self.running, request])) <= self.total
        if self.engine == "sglang":
            rest = lambda r: min(r.generate + r.asked - r.made, CLIP)  # noqa: E731
            # Blocks of this step's chunks are taken already, so that their tokens do not count again.
            reads = [r for r in self.running if not r.decodes]
            shares = FRACTION * sum(rest(r) for r in self.running if r.decodes)
            free = self.free - shares - sum(r.prompt + r.made - len(r.blocks) + rest(r) for r in reads)
            return takes + later + rest(request) < free
        return takes + (self.total // 100 if self.engine == "v0" else 0) <= self.free

    def do(self, decoding: list[Request], chunks: list[tuple[Request, int]]) -> None:
        if not decoding and not chunks:
            return
        self.most_held = max(self.most_held, self.total - self.free)
        each = [(new, r.stored) for r, new in chunks]
        placed = [
            [c for c, (r, _) in zip(each, chunks, strict=True) if r.rank == n] for n in range(self.ranks)
        ]
        self.now += self.step([r.stored for r in decoding], placed if self.ranks > 1 else each)
        for request in sorted(decoding, key=lambda r: r.number):
            request.stored += 1
            self.token(request)
        for request, new in chunks:
            request.stored += new
            if not request.unread:
                self.token(request)

    def token(self, request: Request) -> None:
        request.made += 1
        request.decodes = True
        request.times.append(self.now)
        if request.made == request.generate:
            self.leave(request)
            self.next()
