"""Blocks of a paged KV cache, and the prefix cache.

`BlockPool` counts free blocks, and the blocks that future decode steps take. `GroupedBlockPool` does the same
if groups of layers share the blocks and windows free some of them. `PrefixCache` stores blocks that requests
share or that later requests may use, by hashes of their tokens, as vLLM does (vllm/v1/core/block_pool.py).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from llmir.backends.memory.caches import CacheGroup, pages
from llmir.backends.memory.kv_capacity import largest_fit
from llmir.base.array_namespace import ARRAYS

from .load import Array, Load

# Block counts


class BlockPool:
    """Counts of `total` and `free` blocks of `size` tokens each, and of the blocks that decode steps take.

    A decoding sequence writes one token per step. It takes a new block in each step in which its context is a
    multiple of `size`. So (step − context) mod size, its phase, stays constant. Counts of sequences by phase
    therefore state how many blocks any future step takes.

    >>> blocks = BlockPool(10, 4)
    >>> blocks.free -= blocks.of(6) + blocks.of(8)
    >>> blocks.join(context=6, step=0)
    >>> blocks.join(context=8, step=0)
    >>> [blocks.due(step) for step in range(5)], blocks.steps(0)
    ([1, 0, 1, 0, 1], 12)
    >>> blocks.go(0, 5), blocks.steps(5)
    (7, 7)
    """

    __slots__ = ("free", "groups", "in_flight", "size", "total", "turns")

    def __init__(
        self, total: int, size: int, groups: Sequence[CacheGroup] = (), in_flight: tuple[int, int] = (0, 0)
    ) -> None:
        self.total, self.size, self.turns = total, size, [0] * size
        self.groups, self.in_flight = tuple(groups), in_flight
        self.free = total

    def join(self, context: int, step: int) -> None:
        """Add a sequence that decodes from this step on, with `context` cached tokens."""
        self.turns[(step - context) % self.size] += 1

    def leave(self, context: int, step: int) -> None:
        """Remove a decoding sequence from this step on, with `context` cached tokens."""
        self.turns[(step - context) % self.size] -= 1

    def of(self, tokens: int) -> int:
        """The number of blocks for `tokens` tokens of one sequence."""
        if self.groups:
            return int(pages(self.groups, tokens))
        return -(-tokens // self.size)

    def of_each(self, tokens: Array) -> Array:
        """The same as `of`, for an array."""
        if self.groups:
            return np.asarray(pages(self.groups, tokens, xp=ARRAYS)).astype(int)
        return -(-tokens // self.size)

    @property
    def pages_of_block(self) -> int:
        """The number of pages per block that can be shared: pages of layers that retain all tokens."""
        kept = [group for group in self.groups if group.kept is None and group.tokens == self.size]
        return sum(group.pages for group in kept) if self.groups else 1

    def chunk(self, cached: int, new: int) -> int:
        """The number of blocks of a sequence during a step that prefills `new` tokens after `cached` ones.

        If steps overlap, the tokens of the previous step are also in flight.
        """
        if not self.groups:
            return -(-(cached + new) // self.size)
        budget, steps = self.in_flight
        flying = new + min(cached, (steps - 1) * budget) if steps else 1
        return int(pages(self.groups, cached + new, flying))

    def prompt(self, tokens: int) -> int:
        """The number of free blocks when a prompt is admitted as a whole."""
        if not self.groups:
            return -(-tokens // self.size)
        budget, steps = self.in_flight
        return int(pages(self.groups, tokens, max(1, steps * budget)))

    def due(self, step: int) -> int:
        """The number of blocks that the decodes of a step take."""
        return self.turns[step % self.size]

    def go(self, step: int, steps: int) -> int:
        """Take the blocks of `steps` decode steps, starting with this one; return the number of blocks in
        use.
        """
        self.free = free = self.free - self.taken(step, steps)
        return self.total - free

    def taken(self, step: int, steps: int) -> int:
        """The number of blocks that `steps` decode steps take, starting with this one."""
        turns, size = self.turns, self.size
        first = step % size
        if steps == 1:
            return turns[first]
        if (end := first + steps) <= size:
            return sum(turns[first:end])
        rounds, rest = divmod(end - size, size)
        return sum(turns[first:]) + rounds * sum(turns) + sum(turns[:rest])

    def steps(self, step: int, spare: int = 0) -> int:
        """The number of decode steps, starting with this one, for which enough blocks are free; `spare`
        blocks stay free.
        """
        rounds, free = divmod(self.free - spare, sum(self.turns))
        found = rounds * self.size
        while (due := self.due(step + found)) <= free:
            free -= due
            found += 1
        return found


class GroupedBlockPool(BlockPool):
    """Blocks that groups of layers share; windows free the blocks that they have left.

    A window takes blocks up to its limit; after that it frees a block for each one that it takes. From that
    step on, the sequence decodes like one without the group. `ends` is a heap of these steps, and `ending`
    counts the sequences of each by group and phase.

    >>> blocks = GroupedBlockPool(10, 4, [CacheGroup(4), CacheGroup(4, kept=3)])
    >>> blocks.of(4), blocks.of(8), blocks.of(12), blocks.of(16)
    (2, 4, 5, 6)
    >>> blocks.join(context=4, step=0)
    >>> blocks.taken(0, 9), [blocks.taken(step, 1) for step in range(9)]
    (4, [2, 0, 0, 0, 1, 0, 0, 0, 1])
    """

    __slots__ = ("_each", "_sizes", "ending", "ends")

    def __init__(
        self, total: int, size: int, groups: Sequence[CacheGroup], in_flight: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(total, size, groups, in_flight)
        self._each = [BlockPool(0, group.tokens) for group in self.groups]
        self._sizes = [(group.tokens, group.pages, group.limit, group.kept) for group in self.groups]
        self.ends: list[tuple[int, int, int]] = []
        self.ending: Counter[tuple[int, int, int]] = Counter()

    def of(self, tokens: int) -> int:
        found = 0
        for size, pages_, limit, _ in self._sizes:
            blocks = -(-tokens // size)
            found += pages_ * (blocks if limit is None or blocks < limit else limit)
        return found

    def chunk(self, cached: int, new: int) -> int:
        budget, steps = self.in_flight
        flying, found = new + min(cached, (steps - 1) * budget) if steps else 1, 0
        for size, pages_, _, kept in self._sizes:
            blocks = -(-(cached + new) // size)
            if kept is not None:
                blocks = min(blocks, 1 - -(kept + flying) // size)
            found += pages_ * blocks
        return found

    def join(self, context: int, step: int) -> None:
        self._let_end(step)
        self._count(context, step, 1)

    def leave(self, context: int, step: int) -> None:
        self._let_end(step)
        self._count(context, step, -1)

    def _count(self, context: int, step: int, by: int) -> None:
        for number, (group, each) in enumerate(zip(self.groups, self._each, strict=True)):
            limit = group.limit
            if limit is not None:
                last = (limit - 1) * group.tokens  # the context at which the last block is allocated
                if context > last:
                    continue
                end = step + last + 1 - context, number, (step - context) % group.tokens
                if end not in self.ending:
                    heappush(self.ends, end)
                self.ending[end] += by
            each.turns[(step - context) % group.tokens] += by

    def _let_end(self, step: int) -> None:
        """From this step on, do not count new blocks of windows that reach their limit."""
        ends = self.ends
        while ends and ends[0][0] <= step:
            end = heappop(ends)
            _, number, turn = end
            self._each[number].turns[turn] -= self.ending.pop(end)

    def due(self, step: int) -> int:
        """Blocks that the decodes of a step take."""
        return self.taken(step, 1)

    def taken(self, step: int, steps: int) -> int:
        if self.ends and self.ends[0][0] <= step:
            self._let_end(step)
        found, last = 0, step + steps
        for (size, pages_, _, _), pool in zip(self._sizes, self._each, strict=True):
            found += pages_ * (pool.turns[step % size] if steps == 1 else pool.taken(step, steps))
        if self.ends and self.ends[0][0] < last:
            for end, count in self.ending.items():
                at, number, turn = end
                if at < last:
                    group = self.groups[number]
                    found -= group.pages * count * _times(at, last, turn, group.tokens)
        return found

    def steps(self, step: int, spare: int = 0) -> int:
        free = self.free - spare
        return largest_fit(lambda steps: self.taken(step, steps) <= free)


def _times(first: int, last: int, turn: int, size: int) -> int:
    """The number of steps with this phase, from `first` on and before `last`."""
    return (last - 1 - turn) // size - (first - 1 - turn) // size


# Prefix cache


class PrefixCache:
    """Cached blocks by hashes of their tokens, as in vLLM (vllm/v1/core/block_pool.py).

    A hash stands for the full blocks of a prefix. For each hash, `users` counts the running requests that use
    its blocks after prefill, and `size` is the number of its blocks. Idle blocks are blocks that no request
    uses; they count as free. They stay in the cache until they are needed. Eviction follows the order in
    which they were freed, with the last blocks of a request first.

    Requests share the blocks of layers that retain all tokens, `pages` of the pool for each block. Blocks of
    windows are counted for each request.
    """

    def __init__(self, load: Load, blocks: BlockPool) -> None:
        self.hashes, covered, self.tokens = load.hashed(blocks.size)
        self.covered: list[int] = covered.tolist()
        self.blocks = blocks
        self.pages = blocks.pages_of_block
        self.users: dict[int, int] = {}
        self.size: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._spare = 0  # idle blocks, in pages
        self._has: dict[int, list[int]] = {}  # the hashes that each request uses
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # number of leading hashes in use; blocks represented by hashes

    def kept(self, request: int) -> int:
        """The number of leading tokens of a request that are cached."""
        found = 0
        for each in self.hashes[request]:
            if each not in self.users:
                break
            found += self.size[each] * self.blocks.size
            if found % self.tokens:
                break
        return found

    def needed(self, request: int, cached: int) -> int:
        """The number of free blocks that a request with `cached` cached tokens needs, for idle blocks that it
        uses again and for windows.
        """
        idle = sum(self.size[each] for each in self._first(request, cached) if not self.users[each])
        return idle * self.pages + self._apart(cached)

    def _apart(self, cached: int) -> int:
        """The number of blocks for cached tokens that are not shared."""
        return self.blocks.of(cached) - cached // self.blocks.size * self.pages

    def _first(self, request: int, cached: int) -> Sequence[int]:
        return self.hashes[request][: -(-cached // self.tokens)]

    def admit(self, request: int, cached: int) -> None:
        """Mark the cached blocks of a request as used, including all blocks of their hashes."""
        held = self._has[request] = list(self._first(request, cached))
        self._known[request] = len(held), cached // self.blocks.size
        self.blocks.free -= self._apart(cached)
        for each in held:
            if not self.users[each]:
                del self._idle[each]
                self._spare -= self.size[each] * self.pages
                self.blocks.free -= self.size[each] * self.pages
            self.users[each] += 1

    def read(self, request: int, done: int) -> None:
        """Record that `done` tokens of a request are prefilled, so that others can share its blocks with
        complete hashes.

        If blocks of another request stand for a hash and are evicted, blocks of this request take their
        place.
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
        """Free the blocks of a request with `tokens` cached tokens."""
        self.evict(self.blocks.free)
        self.read(request, tokens)
        _, own = self._known.pop(request)
        self.blocks.free += self.blocks.of(tokens) - own * self.pages
        for each in reversed(self._has.pop(request)):
            self.users[each] -= 1
            if not self.users[each]:
                self._idle[each] = None
                self._spare += self.size[each] * self.pages
                self.blocks.free += self.size[each] * self.pages

    def untouched(self, request: int, enough: int) -> int:
        """The number of blocks, up to `enough`, that can be allocated before idle blocks that a request would
        use are evicted.
        """
        found = set(self._first(request, self.kept(request)))
        left = self.blocks.free - self._spare
        for each in self._idle:
            if left >= enough or each in found:
                break
            left += self.size[each] * self.pages
        return left

    def evict(self, free: int) -> None:
        """Evict idle blocks until at most `free` blocks are left, because other blocks were allocated."""
        while self._spare > free:
            each, _ = self._idle.popitem(last=False)
            del self.users[each]
            self._spare -= self.size.pop(each) * self.pages
