"""Blocks of a paged KV cache, and the prefix cache.

`BlockPool` counts free blocks and the blocks that coming decode steps take. `PrefixCache` holds blocks that
requests share or that are kept for later requests, by hashes of their tokens, as vLLM does
(vllm/v1/core/block_pool.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .load import Load

# Block counts


class BlockPool:
    """Counts of blocks, `total` and `free`, of `size` tokens each; and of the blocks that decode steps take.

    A sequence that decodes writes a token a step, and takes a block in each step in which its context is a
    multiple of `size`. Its turn, (step − context) mod size, is the same in all steps, so that counts of
    sequences by turn say how many blocks any coming step takes.

    >>> blocks = BlockPool(10, 4)
    >>> blocks.free -= blocks.of(6) + blocks.of(8)
    >>> blocks.join(context=6, step=0)
    >>> blocks.join(context=8, step=0)
    >>> [blocks.due(step) for step in range(5)], blocks.steps(0)
    ([1, 0, 1, 0, 1], 12)
    >>> blocks.go(0, 5), blocks.steps(5)
    (7, 7)
    """

    __slots__ = ("free", "size", "total", "turns")

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size, self.turns = total, size, [0] * size
        self.free = total

    def join(self, context: int, step: int) -> None:
        """A sequence decodes from this step on, with so many cached tokens before it."""
        self.turns[(step - context) % self.size] += 1

    def leave(self, context: int, step: int) -> None:
        """A sequence decodes no more from this step on, with so many cached tokens before it."""
        self.turns[(step - context) % self.size] -= 1

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self.size)

    def due(self, step: int) -> int:
        """Blocks that the decodes of a step take."""
        return self.turns[step % self.size]

    def go(self, step: int, steps: int) -> int:
        """Takes the blocks of so many decode steps, from this one on; the number of blocks in use then."""
        self.free = free = self.free - self.taken(step, steps)
        return self.total - free

    def taken(self, step: int, steps: int) -> int:
        """Blocks that so many decode steps take, from this one on."""
        turns, size = self.turns, self.size
        first = step % size
        if steps == 1:
            return turns[first]
        if (end := first + steps) <= size:
            return sum(turns[first:end])
        rounds, rest = divmod(end - size, size)
        return sum(turns[first:]) + rounds * sum(turns) + sum(turns[:rest])

    def steps(self, step: int, spare: int = 0) -> int:
        """How many decode steps, from this one on, have enough free blocks, with some to `spare`."""
        rounds, free = divmod(self.free - spare, sum(self.turns))
        found = rounds * self.size
        while (due := self.due(step + found)) <= free:
            free -= due
            found += 1
        return found


# Prefix cache


class PrefixCache:
    """Cached blocks by hashes of the tokens in them, as in vLLM (vllm/v1/core/block_pool.py).

    A hash stands for the whole blocks of some leading tokens. `users` counts the running requests that hold
    the blocks of each hash, from when they are read, and `size` is the number of its blocks. Idle blocks,
    which no request holds, are free; they stay in the cache until they are needed, and are evicted in the
    order in which they were freed, of one request the last blocks first.
    """

    def __init__(self, load: Load, blocks: BlockPool) -> None:
        self.hashes, covered, self.tokens = load.hashed(blocks.size)
        self.covered: list[int] = covered.tolist()
        self.blocks = blocks
        self.users: dict[int, int] = {}
        self.size: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._spare = 0  # idle blocks
        self._has: dict[int, list[int]] = {}  # hashes that each request holds
        self._known: dict[int, tuple[int, int]] = {}  # leading hashes held; blocks held by hash

    def kept(self, request: int) -> int:
        """Leading tokens of a request that are cached."""
        found = 0
        for each in self.hashes[request]:
            if each not in self.users:
                break
            found += self.size[each] * self.blocks.size
            if found % self.tokens:
                break
        return found

    def needed(self, request: int, cached: int) -> int:
        """Free blocks that become its own with so many cached tokens: the idle ones."""
        return sum(self.size[each] for each in self._first(request, cached) if not self.users[each])

    def _first(self, request: int, cached: int) -> Sequence[int]:
        return self.hashes[request][: -(-cached // self.tokens)]

    def admit(self, request: int, cached: int) -> None:
        """A request holds its cached blocks, and with them all blocks of their hashes."""
        held = self._has[request] = list(self._first(request, cached))
        self._known[request] = len(held), cached // self.blocks.size
        for each in held:
            if not self.users[each]:
                del self._idle[each]
                self._spare -= self.size[each]
                self.blocks.free -= self.size[each]
            self.users[each] += 1

    def read(self, request: int, done: int) -> None:
        """So many tokens of a request are read: others may share its blocks, if all of a hash are read.

        Where another request's blocks stand for a hash, its own may do so once those are evicted.
        """
        first, own = self._known[request]
        hashes, size, covered = self.hashes[request], self.blocks.size, self.covered[request]
        for place in range(first, len(hashes)):
            begin = place * self.tokens
            whole = (min(begin + self.tokens, covered) - begin) // size
            if whole < 1 or begin + whole * size > done:
                break
            if (each := hashes[place]) not in self.users:
                self.users[each], self.size[each] = 1, whole
                self._has[request].append(each)
                own += whole
                first += place == first
        self._known[request] = first, own

    def leave(self, request: int, tokens: int) -> None:
        """A request with so many cached tokens frees its blocks."""
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
        """Blocks, `enough` at most, that can be taken before idle ones go that a request would use."""
        found = set(self._first(request, self.kept(request)))
        left = self.blocks.free - self._spare
        for each in self._idle:
            if left >= enough or each in found:
                break
            left += self.size[each]
        return left

    def evict(self, free: int) -> None:
        """Drops idle blocks from the cache until no more than so many are left, as others took them."""
        while self._spare > free:
            each, _ = self._idle.popitem(last=False)
            del self.users[each]
            self._spare -= self.size.pop(each)
