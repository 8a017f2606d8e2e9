"""Blocks of a paged cache, counted and not listed."""

from __future__ import annotations


class Blocks:
    """Of `total` blocks of `size` tokens those that are `free`, and the steps in which sequences take more.

    Each that decodes writes a token a step, and takes a block where its context is a multiple of `size`. So
    its turn, (step − context) mod size, stays while it decodes, and a count of each turn says the demand of
    any step to come.

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
        """A sequence decodes from this step on, in which it has so many tokens cached."""
        self.turns[(step - context) % self.size] += 1

    def leave(self, context: int, step: int) -> None:
        """It would have decoded on in this step, with so many cached."""
        self.turns[(step - context) % self.size] -= 1

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self.size)

    def due(self, step: int) -> int:
        """Blocks that a step takes."""
        return self.turns[step % self.size]

    def go(self, step: int, steps: int) -> int:
        """All that decode take their blocks of so many steps, from this one on; how many are in use then."""
        self.free = free = self.free - self.taken(step, steps)
        return self.total - free

    def taken(self, step: int, steps: int) -> int:
        """Blocks that so many steps take, from this one on."""
        turns, size = self.turns, self.size
        first = step % size
        if steps == 1:
            return turns[first]
        if (end := first + steps) <= size:
            return sum(turns[first:end])
        rounds, rest = divmod(end - size, size)
        return sum(turns[first:]) + rounds * sum(turns) + sum(turns[:rest])

    def steps(self, step: int, spare: int = 0) -> int:
        """How many steps, from this one on, find the blocks that they take, and leave so many."""
        rounds, free = divmod(self.free - spare, sum(self.turns))
        found = rounds * self.size
        while (due := self.due(step + found)) <= free:
            free -= due
            found += 1
        return found
