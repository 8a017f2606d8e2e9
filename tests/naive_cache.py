"""Blocks of a cache as lists, and requests that have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Request:
    number: int
    arrival: float
    prompt: int
    generate: int
    cached: int
    hashes: Sequence[int] = ()
    per: int = 512  # tokens that a hash stands for, of so many covered
    covered: int = 0
    blocks: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)  # hashes of those that others may have too
    stored: int = 0  # tokens in the cache
    made: int = 0  # tokens generated
    decodes: bool = False
    times: list[float] = field(default_factory=list)  # of its tokens
    start: float | None = None
    preemptions: int = 0
    asked: int = 0  # tokens beyond those that it generates, as it is cancelled then
    stays: float = float("inf")  # how long its client does
    given_up: float | None = None
    rank: int = 0
    yields: Sequence[int] = ()  # tokens of each step that verifies drafts
    steps: int = 0  # of those, how many it had

    @property
    def deadline(self) -> float:
        return self.arrival + self.stays

    @property
    def unread(self) -> int:
        return self.prompt + self.made - self.stored


@dataclass(kw_only=True)
class Cache:
    """`total` blocks of `size` tokens, some of which several requests have: the prefix cache."""

    total: int
    size: int
    kept: dict[int, list[int]] = field(default_factory=dict)  # blocks by hash
    idle: list[int] = field(default_factory=list)  # hashes of blocks that nobody has, as they were given back
    having: Counter[int] = field(default_factory=Counter)  # of each hash

    def __post_init__(self) -> None:
        self.unused = list(range(self.total))

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    @property
    def free(self) -> int:
        return len(self.unused) + sum(len(self.kept[h]) for h in self.idle)

    def store(self, request: Request, tokens: int) -> bool:
        """Blocks for so many tokens more, if there are any."""
        more = self.blocks(request.stored + tokens) - len(request.blocks)
        if more > self.free:
            return False
        while more > len(self.unused):
            self.unused += self.kept.pop(self.idle.pop(0))
        request.blocks += [self.unused.pop() for _ in range(more)]
        return True

    def share(self, request: Request, tokens: int) -> None:
        """What a request has read may be found by others."""
        for i, h in enumerate(request.hashes):
            whole = min(request.covered - request.per * i, request.per) // self.size
            if h not in self.kept and whole > 0 and request.per * i + whole * self.size <= tokens:
                begin = request.per * i // self.size
                self.kept[h] = request.blocks[begin : begin + whole]
                request.held.append(h)
                self.having[h] += 1

    def drop(self, request: Request) -> None:
        shared = {b for h in request.held for b in self.kept[h]}
        self.unused += [b for b in request.blocks if b not in shared]
        self.having.subtract(request.held)
        self.idle += [h for h in reversed(request.held) if not self.having[h]]
        request.blocks, request.held = [], []

    def have(self, request: Request, hits: list[int], cached: int) -> None:
        """A request has the blocks of hashes, and so many cached tokens by them."""
        request.held = hits
        self.having.update(hits)
        self.idle = [h for h in self.idle if h not in hits]
        request.blocks = [b for h in hits for b in self.kept[h]][: cached // self.size]
