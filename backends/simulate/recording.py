"""Prices that record the steps which they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.array_namespace import Number

from .prices import Chunks, Prices, Step


class RecordingStep:
    """A `Step` that records of each step with prompts the sequences that decode, their tokens, and chunks."""

    def __init__(self, step: Step) -> None:
        self._step, self.functions = step, step.functions
        self.prefills: list[tuple[int, int, Chunks]] = []

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds of the step."""
        if chunks:
            self.prefills.append((decodes, int(np.sum(sums[0])), tuple(chunks)))
        return self._step(decodes, sums, chunks)

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch, and of each of its stages."""
        if any(ranks):
            chunks = [chunk for rank in ranks for chunk in rank]
            self.prefills.append((round(decodes), int(np.sum(sums[0])), chunks))
        return self._step.micro_batch(decodes, sums, ranks)


class RecordingPrices(Prices):
    """Prices of recorded steps; the sums of decode steps are those of `prices`, which are not recorded."""

    def __init__(self, prices: Prices) -> None:
        vars(self).update(vars(prices))
        self.step = self.recorded = RecordingStep(prices.step)
