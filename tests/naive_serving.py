"""A server simulated plainly: one event a token, and a list of blocks for each request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Step = Callable[[int, int, list[tuple[int, int]]], float]
FRACTION, CLIP, HEADROOM = 0.098, 4096, 20  # of SGLang


@dataclass
class Request:
    number: int
    arrival: float
    prompt: int
    generate: int
    cached: int
    hashes: tuple[int, ...] = ()
    blocks: list[int] = field(default_factory=list)
    stored: int = 0  # tokens in the cache
    made: int = 0  # tokens generated
    decodes: bool = False
    times: list[float] = field(default_factory=list)  # of its tokens
    start: float | None = None
    preemptions: int = 0

    @property
    def unread(self) -> int:
        return self.prompt + self.made - self.stored


class Naive:
    """`engine` is vllm, v0 (vLLM before 0.8), sglang or trtllm."""

    def __init__(
        self,
        step: Step,
        engine: str,
        requests: list[Request],
        *,
        total: int,
        size: int,
        tokens: int,
        sequences: int,
        chunked: bool,
        users: int | None = None,
    ) -> None:
        self.step, self.engine, self.requests = step, engine, requests
        self.size, self.tokens, self.sequences, self.chunked = size, tokens, sequences, chunked
        self.total, self.users = total, users
        self.unused = list(range(total))
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # as admitted
        self.now = 0.0
        self.comes = list(requests)
        self.recent: list[int] = []  # hashes in the prefix cache
        if users:
            self.waiting, self.comes = self.comes[:users], self.comes[users:]
        self.most_held = 0
        self.integral = 0.0  # of requests in the system, over time

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def store(self, request: Request, tokens: int) -> bool:
        """Blocks for so many tokens more, if there are any."""
        more = self.blocks(request.stored + tokens) - len(request.blocks)
        if more > len(self.unused):
            return False
        request.blocks += [self.unused.pop() for _ in range(more)]
        return True

    def drop(self, request: Request) -> None:
        self.unused += request.blocks
        request.blocks = []
        self.running.remove(request)

    def preempt(self, request: Request, front: bool) -> None:
        self.drop(request)
        request.stored, request.decodes = 0, False
        request.preemptions += 1
        self.waiting.insert(0 if front else len(self.waiting), request)

    def run(self) -> None:
        while self.waiting or self.running or self.comes:
            if not self.users:
                if not self.waiting and not self.running:
                    self.now = max(self.now, self.comes[0].arrival)
                while self.comes and self.comes[0].arrival <= self.now:
                    self.waiting.append(self.comes.pop(0))
            begin, inside = self.now, len(self.waiting) + len(self.running)
            (self.mixed if self.engine in ("vllm", "trtllm") else self.apart)()
            self.integral += inside * (self.now - begin)
            assert len(set(self.unused)) == len(self.unused)
        assert sorted(self.unused) == list(range(self.total))

    def mixed(self) -> None:
        decoding, preempted = [], False
        for request in [r for r in self.running if r.decodes]:
            while request in self.running and not self.store(request, 1):
                self.preempt(self.running[-1], front=True)
                preempted = True
            if request in self.running:
                decoding.append(request)
        decoding = [r for r in decoding if r in self.running]
        self.do(decoding, self.read(self.tokens - len(decoding), preempted))

    def apart(self) -> None:
        if chunks := self.read(self.tokens, False):
            self.do([], chunks)
            return
        short = sum(r.stored % self.size == 0 for r in self.running) > len(self.unused)
        if short and self.engine == "sglang":
            first = True
            while len(self.running) > 1 and (
                first or len(self.unused) * self.size < len(self.running) * HEADROOM
            ):
                key = lambda r: (r.made, -r.prompt, r.number)  # noqa: E731
                self.preempt(min(self.running, key=key), front=False)
                first = False
            return
        while sum(r.stored % self.size == 0 for r in self.running) > len(self.unused):
            self.preempt(self.running[-1], front=True)
            short = True
        if short:
            return
        for request in self.running:
            assert self.store(request, 1)
        self.do(list(self.running), [])

    def read(self, left: int, preempted: bool) -> list[tuple[Request, int]]:
        chunks = []
        for request in [r for r in self.running if not r.decodes]:
            new = min(left, request.unread)
            if not self.store(request, new):
                self.preempt(request, front=True)
                preempted = True
            elif new:
                chunks.append((request, new))
                left -= new
        while self.waiting and left and not preempted and len(self.running) < self.sequences:
            request = self.waiting[0]
            if request.hashes:
                hits = [h in self.recent for h in request.hashes] + [False]
                request.cached = min(512 * hits.index(False), (request.unread - 1) // self.size * self.size)
            cached = request.cached
            new = min(left, request.unread - cached)
            if new < request.unread - cached and not self.chunked:
                break
            if not self.room(request, chunks) or not self.store(request, cached + new):
                break
            self.waiting.pop(0)
            self.recent = [h for h in self.recent if h not in request.hashes] + list(request.hashes)
            self.recent = self.recent[max(0, len(self.recent) - self.total * self.size // 512) :]
            request.stored = cached
            if request.start is None:
                request.start = self.now
            self.running.append(request)
            chunks.append((request, new))
            left -= new
        return chunks

    def room(self, request: Request, chunks: list[tuple[Request, int]]) -> bool:
        if self.engine == "trtllm":
            taken = sum(self.blocks(r.prompt + r.generate - 1) for r in [*self.running, request])
            return taken <= self.total
        if self.engine == "sglang":
            rest = lambda r: min(r.generate - r.made, CLIP)  # noqa: E731
            # Blocks of this step's chunks are taken already, so that their tokens do not count again.
            later = sum(
                r.prompt + r.made - len(r.blocks) * self.size + rest(r) for r in self.running if not r.decodes
            )
            shares = FRACTION * sum(rest(r) for r in self.running if r.decodes)
            free = len(self.unused) * self.size - shares - later
            return request.unread + rest(request) < free
        if self.engine == "v0":
            return self.blocks(request.unread) + self.total // 100 <= len(self.unused)
        return True

    def do(self, decoding: list[Request], chunks: list[tuple[Request, int]]) -> None:
        self.most_held = max(self.most_held, self.total - len(self.unused))
        kept = sum(r.stored for r in decoding)
        self.now += self.step(len(decoding), kept, [(new, r.stored) for r, new in chunks])
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
            self.drop(request)
            if self.users and self.comes:
                self.waiting.append(self.comes.pop(0))
