"""The blocks of a paged KV cache: how many are free, and how many coming steps take."""

from __future__ import annotations


class Blocks:
    """Counts of blocks, `total` and `free`, of `size` tokens each; and of the blocks that decode steps take.

    A sequence that decodes writes a token a step, and takes a block in each step in which its context is a
    multiple of `size`. Its turn, (step − context) mod size, is the same in all steps, so that counts of
    sequences by turn say how many blocks any coming step takes.

    >>> blocks = Blocks(10, 4)
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
