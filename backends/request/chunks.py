"""A prefill in steps: prompts together as far as a budget of tokens goes, longer ones chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llmir.base.array_namespace import Number

if TYPE_CHECKING:
    from llmir.backends.step.report import Report

ALL = "all"  # tokens of a step, as users spell it: however many there are


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


def largest(steps: Sequence[Chunk]) -> Chunk:
    """The step of most tokens, of equal ones the last."""
    return max(steps, key=lambda chunk: (chunk.prompts * chunk.new, chunk.last))


class Reading(NamedTuple):
    """Seconds until all prompts are read, until one is on average, and until the next batch may be.

    The last is less where stages go on with the next batch while the last step is in the stages after them.
    """

    time_s: float
    mean_s: float
    interval_s: float


def reading(steps: Sequence[Chunk], price: Callable[[Chunk], Report]) -> Reading:
    """Of steps one after another; `price` gives those of a chunk, on a grid where it has several."""
    reports = [price(chunk) for chunk in steps]
    seconds = [
        chunk.times * float(np.sum(report.interval_s)) for chunk, report in zip(steps, reports, strict=True)
    ]
    last, whole = reports[-1], sum(seconds)
    way = float(np.ravel(last.time_s - last.interval_s)[-1])  # of the last step through the other stages
    return Reading(whole + way, _mean(steps, seconds) + way, whole)


def _mean(steps: Sequence[Chunk], seconds: Sequence[float]) -> float:
    """When a prompt is read on average: with its group, or one after another if chunk by chunk."""
    start = int(np.min(steps[0].cached))
    if any(chunk.last != start for chunk in steps):
        turns = sum(chunk.times for chunk in steps if int(np.min(chunk.cached)) == start)
        return sum(seconds) * (turns + 1) / (2 * turns)
    at = waited = 0.0
    for chunk, long in zip(steps, seconds, strict=True):
        waited += chunk.prompts * (chunk.times * at + long * (chunk.times + 1) / 2)
        at += long
    return waited / sum(chunk.prompts * chunk.times for chunk in steps)
