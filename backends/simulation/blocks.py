"""Blocks of a paged cache, counted and not listed."""

from __future__ import annotations


class Blocks:
    """`total` blocks of `size` tokens, and the phases at which sequences that decode take another one.

    Each of them writes a token a step, and takes a block where its context is a multiple of `size`. So its
    phase, (context − step) mod size, stays while it decodes, and a count of each phase says the demand of any
    step to come.

    >>> blocks = Blocks(10, 4)
    >>> blocks.join(context=6, step=0)
    >>> blocks.join(context=8, step=0)
    >>> blocks.held(14, step=0), [blocks.due(step) for step in range(5)], blocks.steps(free=3, step=0)
    (4, [1, 0, 1, 0, 1], 6)
    """

    __slots__ = ("phases", "size", "total")

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size, self.phases = total, size, [0] * size

    def join(self, context: int, step: int) -> None:
        """A sequence decodes from this step on, in which it has so many tokens cached."""
        self.phases[(context - step) % self.size] += 1

    def leave(self, context: int, step: int) -> None:
        """It would have decoded on in this step, with so many cached."""
        self.phases[(context - step) % self.size] -= 1

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens of one sequence take."""
        return -(-tokens // self.size)

    def due(self, step: int) -> int:
        """Blocks that a step takes."""
        return self.phases[-step % self.size]

    def held(self, kept: int, step: int) -> int:
        """Blocks of all that decode before a step, with `kept` tokens cached together."""
        size = self.size
        empty = sum(count * (-(phase + step) % size) for phase, count in enumerate(self.phases) if count)
        return (kept + empty) // size

    def steps(self, free: int, step: int) -> int:
        """How many steps, from this one on, find the blocks that they take among so many free ones."""
        rounds, free = divmod(free, sum(self.phases))
        found = rounds * self.size
        while (due := self.due(step + found)) <= free:
            free -= due
            found += 1
        return found
