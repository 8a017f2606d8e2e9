"""Seconds of steps: of one that reads prompts, and of runs of steps that only decode."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from llmir.dim import Number

from .load import Array
from .rows import Rows

Chunks = Sequence[tuple[int, int]]  # new tokens of each prompt that is read, after those that are cached


class Step(Protocol):
    """Seconds of a step of `decodes` sequences, which have `kept` tokens cached together, and of chunks.

    `kept` may be an array of them, beside no chunks.
    """

    def __call__(self, decodes: int, kept: Number, chunks: Chunks) -> Number:
        """Seconds, as of `decodes` sequences that have all as much cached."""


class Prices:
    """Steps by a `Step`; of those that only decode, sums over whole mean contexts, and linear between.

    A run of n sequences goes from one mean context to the next in each step, so that its time is a difference
    of two sums, whatever its length.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._rows = Rows(self._sums)

    def _sums(self, decodes: int, contexts: Array) -> Array:
        """Seconds of all decode steps before each context, from the first on."""
        seconds = self.step(decodes, decodes * contexts[:-1], ())
        return np.concatenate([[0.0], np.cumsum(seconds)])

    def run(self, decodes: int, kept: int, most: int, seconds: float) -> tuple[int, float]:
        """How many steps begin within `seconds`, of `most` at most but one at least, and what they take."""
        context, rest = divmod(kept, decodes)
        first, sums = self._rows(decodes, context, context + most + 1)
        at, share = context - first, rest / decodes
        begin = sums[at] + share * (sums[at + 1] - sums[at]) if rest else sums[at]
        end = at + most
        if sums[end] - begin >= seconds:
            # Sums between two contexts are no less than at the lower: one step fewer may do.
            end = max(bisect_left(sums, begin + seconds, at + 1, end), at + 1)
            if end > at + 1 and sums[end - 1] + share * (sums[end] - sums[end - 1]) >= begin + seconds:
                end -= 1
        total = sums[end] + share * (sums[end + 1] - sums[end]) if rest else sums[end]
        return end - at, total - begin
