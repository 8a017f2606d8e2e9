"""Seconds of steps: of one that reads prompts, and of runs of steps that only decode."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from llmir.backends.step.batch import Batch
from llmir.base.array_namespace import Number
from llmir.ir.sizes.polynomial import Dim

from .load import Array
from .rows import NONE, Rows

Chunks = Sequence[tuple[int, int]]  # new tokens of each prompt that is read, after those that are cached
AHEAD = 256  # steps that are priced at once where windows fill, if there are more than a few
FEW = 24  # which are priced one by one in that time


class Step(Protocol):
    """Seconds of a step of `decodes` sequences, and of chunks of prompts.

    `sums` are over those that decode: of each of `functions` of the context, the first of which is `C`. They
    may be arrays, beside no chunks.
    """

    functions: tuple[Dim, ...]

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from its start to the next one's."""

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch, and of each of its pipeline stages.

        `ranks` has the chunks of each data-parallel rank; the ranks run together.
        """


class Prices:
    """Steps by a `Step`; what decodes has `kept` tokens cached together, and is a `batch` if windows matter.

    Where they do not, there are sums over whole mean contexts, and what lies between is linear. A run of n
    sequences goes from one mean context to the next in each step, so that its time is a difference of two
    sums, whatever its length.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._rows = Rows(self._sums)
        self._known = self._rows.known

    def batch(self) -> Batch | None:
        """An empty one, if steps depend on more than the sum of contexts."""
        return Batch(self.step.functions) if len(self.step.functions) > 1 else None

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """As `Step.micro_batch`."""
        return self.step.micro_batch(decodes, sums, ranks)

    def run(
        self, decodes: int, kept: int, batch: Batch | None, most: int, seconds: float
    ) -> tuple[int, float]:
        """How many steps begin within `seconds`, of `most` at most but one at least, and what they take.

        A batch is then that many steps further.
        """
        if batch is not None:
            return self._each(decodes, batch, min(most, AHEAD), seconds)
        context = kept // decodes
        first, end, sums = self._known.get(decodes, NONE)
        if context < first or end <= context + most + 1:
            first, _, sums = self._rows.longer(decodes, context, context + most + 1)
        at, share = context - first, (kept - context * decodes) / decodes
        end, low = at + most, sums[at]
        begin = low + share * (sums[at + 1] - low)
        if sums[end] - begin >= seconds:
            # Sums between two contexts are no less than at the lower: one step fewer may do.
            end = bisect_left(sums, begin + seconds, at + 1, end)
            if end > at + 1 and sums[end - 1] + share * (sums[end] - sums[end - 1]) >= begin + seconds:
                end -= 1
        low = sums[end]
        return end - at, low + share * (sums[end + 1] - low) - begin

    def _sums(self, decodes: int, contexts: Array) -> Array:
        """Seconds of all decode steps before each context, from the first on."""
        sums = np.zeros(len(contexts))
        seconds = self.step(decodes, (decodes * contexts[:-1],), ())
        np.cumsum(np.broadcast_to(seconds, len(contexts) - 1), out=sums[1:])
        return sums

    def _each(self, decodes: int, batch: Batch, most: int, seconds: float) -> tuple[int, float]:
        """The same by what the sequences keep before each step."""
        step, spent, steps = self.step, float(self.step(decodes, batch.kept, ())), 1
        if spent * FEW < seconds and most > FEW:
            until = np.cumsum(step(decodes, batch.ahead(most), ()))
            steps = min(int(np.searchsorted(until, seconds)) + 1, len(until))
            batch.advance(steps)
            return steps, float(until[steps - 1])
        batch.advance()
        while steps < most and spent < seconds:
            spent += step(decodes, batch.kept, ())
            batch.advance()
            steps += 1
        return steps, spent
