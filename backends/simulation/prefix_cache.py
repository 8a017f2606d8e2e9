"""The prefix cache of a server: blocks that several requests have at once, or that may be asked for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .blocks import Blocks
from .load import Load


class PrefixCache:
    """Blocks of leading tokens by their hashes, as vLLM keeps them (vllm/v1/core/block_pool.py).

    A hash stands for the whole blocks of some tokens; `users` counts who has them, from when they were read.
    What nobody has stays until its blocks are needed: what was given back first goes first, and of one
    request its last.
    """

    def __init__(self, load: Load, blocks: Blocks) -> None:
        self.hashes, covered, self.tokens = load.hashed(blocks.size)
        self.covered: list[int] = covered.tolist()
        self.blocks = blocks
        self.users: dict[int, int] = {}
        self.size: dict[int, int] = {}  # blocks of each hash
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._spare = 0  # blocks of those, which are free
        self._has: dict[int, list[int]] = {}  # hashes of each request that runs
        self._known: dict[int, tuple[int, int]] = {}  # of its hashes those looked at, and blocks of its own

    def kept(self, request: int) -> int:
        """Leading tokens of a request that are there."""
        found = 0
        for each in self.hashes[request]:
            if each not in self.users:
                break
            found += self.size[each] * self.blocks.size
            if found % self.tokens:
                break
        return found

    def needed(self, request: int, cached: int) -> int:
        """Free blocks that it takes for so many cached tokens: those that nobody has."""
        return sum(self.size[each] for each in self._first(request, cached) if not self.users[each])

    def _first(self, request: int, cached: int) -> Sequence[int]:
        return self.hashes[request][: -(-cached // self.tokens)]

    def admit(self, request: int, cached: int) -> None:
        """It has its cached blocks, and with them all of the same hashes."""
        held = self._has[request] = list(self._first(request, cached))
        self._known[request] = len(held), cached // self.blocks.size
        for each in held:
            if not self.users[each]:
                del self._idle[each]
                self._spare -= self.size[each]
                self.blocks.free -= self.size[each]
            self.users[each] += 1

    def read(self, request: int, done: int) -> None:
        """So many of its tokens are cached: others may have the whole blocks of each hash, too."""
        place, own = self._known[request]
        hashes, size, covered = self.hashes[request], self.blocks.size, self.covered[request]
        while place < len(hashes):
            begin = place * self.tokens
            whole = (min(begin + self.tokens, covered) - begin) // size
            if whole < 1 or begin + whole * size > done:
                break
            if (each := hashes[place]) not in self.users:
                self.users[each], self.size[each] = 1, whole
                self._has[request].append(each)
                own += whole
            place += 1
        self._known[request] = place, own

    def leave(self, request: int, tokens: int) -> None:
        """It gives its blocks back, with so many tokens cached."""
        self.evict(self.blocks.free)
        self.read(request, tokens)
        _, own = self._known.pop(request)
        self.blocks.free += self.blocks.of(tokens) - own
        for each in reversed(self._has.pop(request)):
            self.users[each] -= 1
            if not self.users[each]:
                self._idle[each] = None
                self._spare += self.size[each]
                self.blocks.free += self.size[each]

    def untouched(self, request: int, enough: int) -> int:
        """Blocks that may be taken, or `enough`, before those go that a request finds and nobody has."""
        found = set(self._first(request, self.kept(request)))
        left = self.blocks.free - self._spare
        for each in self._idle:
            if left >= enough or each in found:
                break
            left += self.size[each]
        return left

    def evict(self, free: int) -> None:
        """Of those that nobody has, what others took the blocks of: no more than so many are free."""
        while self._spare > free:
            each, _ = self._idle.popitem(last=False)
            del self.users[each]
            self._spare -= self.size.pop(each)
