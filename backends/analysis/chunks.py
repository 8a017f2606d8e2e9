"""A prefill in steps: prompts together as far as a budget of tokens goes, longer ones chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from llmir.dim import Number


class Chunk(NamedTuple):
    """Steps that each read `new` tokens of `prompts`, after those that are `cached`.

    `cached` is an array where a step reads on where the last one ended. All of them run `times`.
    """

    prompts: int
    new: int
    cached: Number
    times: int = 1

    @property
    def last(self) -> int:
        """What the last of the steps has cached."""
        return int(np.max(self.cached))

    @property
    def middle(self) -> int:
        """What they have cached on average."""
        return int(np.mean(self.cached))

    @property
    def steps(self) -> int:
        """How many steps these are."""
        return self.times * int(np.size(self.cached))


def chunks(prompts: int, new: int, cached: int, budget: int | None, lanes: int = 1) -> tuple[Chunk, ...]:
    """The steps that read `new` tokens of each prompt after `cached` ones.

    A step has `budget` tokens (None: all) on each of so many `lanes`, over which prompts are spread: whole
    prompts as they fit. Longer ones are read one by one in chunks of the budget, and what is left of them
    again together, where engines mix it with the next prompt's first chunk: the tokens of a step are as many.

    >>> chunks(5, 300, 0, 1000)
    (Chunk(prompts=3, new=300, cached=0, times=1), Chunk(prompts=2, new=300, cached=0, times=1))
    >>> [(c.prompts, c.new, c.last, c.steps) for c in chunks(2, 300, 50, 128)]
    [(1, 128, 178, 4), (2, 44, 306, 1)]
    """
    return tuple(_chunks(prompts, new, cached, budget or prompts * new, min(lanes, prompts)))


def _chunks(prompts: int, new: int, cached: int, budget: int, lanes: int) -> Iterator[Chunk]:
    whole, rest = divmod(new, budget)
    if whole and new > budget:
        at = cached + budget * np.arange(whole) if whole > 1 else cached
        yield from (Chunk(count, budget, at, times) for count, times in _groups(prompts, lanes))
        new, cached = rest, cached + whole * budget
    if new:
        groups = _groups(prompts, budget // new * lanes)
        yield from (Chunk(count, new, cached, times) for count, times in groups)


def _groups(prompts: int, most: int) -> Iterator[tuple[int, int]]:
    """Groups of so many at most, and how often there are any."""
    full, rest = divmod(prompts, most)
    yield from ((count, times) for count, times in ((most, full), (rest, 1)) if count * times)
