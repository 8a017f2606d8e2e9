"""Seconds of steps: of one that reads prompts, and of runs of steps that only decode."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from llmir.dim import Number

Chunks = Sequence[tuple[int, int]]  # new tokens of each prompt that is read, after those that are cached
MARGIN = 4  # the part of a context by which a row goes further than it is asked to


class Step(Protocol):
    """Seconds of a step of `decodes` sequences, which have `kept` tokens cached together, and of chunks.

    `kept` may be an array of them, beside no chunks.
    """

    def __call__(self, decodes: int, kept: Number, chunks: Chunks) -> Number:
        """Seconds, as of `decodes` sequences that have all as much cached."""


class Row(NamedTuple):
    """Seconds of all decode steps before each mean context, from `first` on."""

    first: int
    sums: array[float]


class Prices:
    """Steps by a `Step`; of those that only decode, sums over whole mean contexts, and linear between.

    A run of n sequences goes from one mean context to the next in each step, so that its time is a difference
    of two sums, whatever its length.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._rows: dict[int, Row] = {}

    def run(self, decodes: int, kept: int, most: int, seconds: float) -> tuple[int, float]:
        """How many steps begin within `seconds`, of `most` at most but one at least, and what they take."""
        context, rest = divmod(kept, decodes)
        row = self._rows.get(decodes)
        if row is None or context < row.first or context + most + 1 >= row.first + len(row.sums):
            row = self._extended(decodes, context, context + most + 2)
        sums, at = row.sums, context - row.first
        share = rest / decodes
        begin = sums[at] + share * (sums[at + 1] - sums[at]) if rest else sums[at]
        end = at + most
        if sums[end] - begin >= seconds:
            # Sums between two contexts are no less than at the lower: one step fewer may do.
            end = max(bisect_left(sums, begin + seconds, at + 1, end), at + 1)
            if end > at + 1 and sums[end - 1] + share * (sums[end] - sums[end - 1]) >= begin + seconds:
                end -= 1
        total = sums[end] + share * (sums[end + 1] - sums[end]) if rest else sums[end]
        return end - at, total - begin

    def _extended(self, decodes: int, least: int, most: int) -> Row:
        """A row over these contexts and those that it has, and some more."""
        known = self._rows.get(decodes)
        first, end = least - least // MARGIN, most + most // MARGIN + 1
        if known:
            first, end = min(first, known.first), max(end, known.first + len(known.sums))
        seconds = self.step(decodes, decodes * np.arange(first, end), ())
        sums = array("d", np.concatenate([[0.0], np.cumsum(seconds)]).tobytes())
        self._rows[decodes] = Row(first, sums)
        return self._rows[decodes]
