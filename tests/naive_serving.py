"""A server simulated plainly: one event a token, and a list of blocks for each request."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import takewhile

from tests.naive_cache import Cache, Request

Step = Callable[[list[int], list[tuple[int, int]]], float]  # contexts of decodes, and chunks
FRACTION, CLIP, HEADROOM = 0.098, 4096, 20  # of SGLang


@dataclass
class Naive(Cache):
    """`engine` is vllm, v0 (vLLM before 0.8), sglang or trtllm, whose prompts wait for `patience` steps.

    One that goes `ahead` has filled its next step when a request comes while it is busy.
    """

    step: Step
    engine: str
    tokens: int
    sequences: int
    chunked: bool
    ahead: bool = False
    patience: int = 0
    enough: float = 0.0
    rows: int = 1  # tokens of each that decodes in a step, which are verified
    waiting: list[Request] = field(default_factory=list)
    late: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)  # as admitted
    done: list[Request] = field(default_factory=list)
    now: float = 0.0
    held: int = 0  # steps that prompts have waited
    most_held: int = 0
    integral: float = 0.0  # of requests in the system, over time

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.late or self.running)

    def come(self, request: Request, now: float) -> None:
        filled = self.ahead and (self.running or self.late or self.now > now)
        self.now = max(self.now, now)
        (self.late if filled else self.waiting).append(request)

    def go(self) -> list[Request]:
        """A step, if nobody gives up before it: who is done with it."""
        here, begin = [*self.waiting, *self.late, *self.running], self.now
        if gone := sorted((r for r in here if r.deadline <= begin), key=lambda r: (r.deadline, r.number)):
            for request in gone:
                request.given_up = begin
                if request in self.running:
                    self.leave(request)
                else:
                    (self.waiting if request in self.waiting else self.late).remove(request)
            return gone
        late, self.late, self.done = self.late, [], []
        (self.mixed if self.engine in ("vllm", "trtllm") else self.apart)()
        self.waiting += late
        self.integral += len(here) * (self.now - begin)
        assert self.free <= self.total and len(set(self.unused)) == len(self.unused)
        return self.done

    def leave(self, request: Request) -> None:
        self.running.remove(request)
        self.share(request, request.stored)
        self.drop(request)

    def preempt(self, request: Request, front: bool) -> None:
        self.leave(request)
        request.stored, request.decodes = 0, False
        request.preemptions += 1
        self.waiting.insert(0 if front else len(self.waiting), request)

    def mixed(self) -> None:
        decoding, preempted = [], False
        for request in [r for r in self.running if r.decodes]:
            while request in self.running and not self.store(request, self.rows):
                self.preempt(self.running[-1], front=True)
                preempted = True
            if request in self.running:
                decoding.append(request)
        decoding = [r for r in decoding if r in self.running]
        self.do(decoding, self.read(self.tokens - self.rows * len(decoding), preempted))

    def apart(self) -> None:
        if chunks := self.read(self.tokens, False):
            self.do([], chunks)
            return
        more = lambda r: self.blocks(r.stored + self.rows) - len(r.blocks)  # noqa: E731
        due = lambda: sum(max(0, more(r)) for r in self.running)  # noqa: E731
        if due() <= self.free:
            assert all(self.store(r, self.rows) for r in self.running)
            self.do(list(self.running), [])
        elif self.engine == "sglang":
            while len(self.running) > 1:
                self.preempt(min(self.running, key=lambda r: (r.made, -r.prompt, r.number)), front=False)
                if self.free * self.size >= len(self.running) * HEADROOM:
                    break
        else:
            while due() > self.free:
                self.preempt(self.running[-1], front=True)

    def read(self, left: int, preempted: bool) -> list[tuple[Request, int]]:
        if self.patience and (decodes := self.tokens - left):
            trial = deepcopy(self)
            trial.patience = 0
            tokens = sum(new for _, new in trial.read(left, preempted))
            if tokens and decodes + tokens < self.enough * self.tokens:
                self.held += 1
                if self.held <= self.patience:
                    return []
        self.held, chunks = 0, []
        for request in [r for r in self.running if not r.decodes]:
            new = min(left, request.unread)
            if not self.store(request, new):
                self.preempt(request, front=True)
                preempted = True
            elif new:
                self.share(request, request.stored + new)
                chunks.append((request, new))
                left -= new
        while self.waiting and left and not preempted and len(self.running) < self.sequences:
            request = self.waiting[0]
            hits = list(takewhile(lambda h: h in self.kept, request.hashes))
            if request.hashes:
                found = self.size * sum(len(self.kept[h]) for h in hits)
                request.cached = min(found, (request.unread - 1) // self.size * self.size)
            cached, hits = request.cached, hits[: -(-request.cached // request.per)]
            new = min(left, request.unread - cached)
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
            left -= new
        return chunks

    def room(self, request: Request, takes: int, later: int) -> bool:
        """Whether it may run, if it takes so many blocks and reads so many tokens later."""
        if self.engine == "trtllm":
            most = lambda r: r.prompt + r.generate + r.asked + self.rows - 2  # noqa: E731
            final = (self.blocks(most(r)) + bool(r.hashes) for r in [*self.running, request])
            return sum(final) <= self.total
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
        self.now += self.step([r.stored for r in decoding], [(new, r.stored) for r, new in chunks])
        for request in sorted(decoding, key=lambda r: r.number):
            count = 1
            if request.yields:
                count = min(request.yields[request.steps], request.generate - request.made)
                request.steps += 1
            request.stored += count
            for _ in range(count):
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
            self.done.append(request)
