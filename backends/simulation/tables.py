"""Steps that read prompts as sums from tables: one by tokens, one by sequences, and attention's by context.

All prices but attention's are functions of the tokens of a step or of its sequences; attention's takes
sequences of several kinds apart. So each composition of a step is a few entries of tables.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from llmir.backends.analysis.plan import Plan
from llmir.backends.cost.kernels.base import DRAFTS
from llmir.dim import B, Binding, Dim, T

from .load import Array
from .prices import Chunks
from .rows import Rows

SIZES = tuple(size for size in (B * T, B) if isinstance(size, Dim))
KINDS = ("alone", "graph")  # launched one by one, and as a graph
MOST = 1 << 16  # tokens or sequences of a step that a table has


def tabled(plan: Plan) -> bool:
    """Whether its prices are such functions."""
    return len(plan.program.entries) == 1 and all(
        group.size in SIZES or (group.size is None and all(price.apart for price in group.prices))
        for _, group in plan._groups
    )


class Tables:
    """Seconds of steps of up to so many tokens that read prompts, by a plan for which `tabled` holds."""

    def __init__(self, plan: Plan, tokens: int) -> None:
        self.plan, self.most = plan, min(tokens, MOST)
        counts = np.arange(1, self.most + 1)
        self._apart = [group for _, group in plan._groups if group.size is None]
        self._by_tokens, self._by_sequences = ([self._table(k, s, counts) for k in KINDS] for s in SIZES)
        captured = plan.captured(Binding(B=1, T=counts, C=0)) if plan.host else False
        self._kind: list[int] = [0, *np.broadcast_to(captured, counts.shape).astype(int).tolist()]
        # A step whose kernels take no time is what the host needs: to launch it, and to schedule and sample.
        at = Binding(B=counts, T=1, C=0)
        idle, full = (plan.timing(at, (np.full(counts.shape, busy),)).period for busy in (0.0, 1.0))
        self._beside: list[float] = [0.0, *(full - 1.0).tolist()]
        self._least = float(idle[0] - self._beside[1])
        self._decodes = [Rows(partial(self._decoding, kind)) for kind in KINDS]
        self._reads = [Rows(partial(self._reading, kind)) for kind in KINDS]

    def _table(self, kind: str, size: Dim, counts: Array) -> list[float]:
        """Seconds of all prices of a size, by its value."""
        groups = [group for _, group in self.plan._groups if group.size == size]
        found = sum((group(kind, Binding.only(size, counts))[0] for group in groups), np.zeros(counts.shape))
        return [0.0, *found.tolist()]

    def _decoding(self, kind: str, decodes: int, contexts: Array) -> Array:
        """Seconds of attention of so many new tokens, by the context of each."""
        return self._attention(kind, Binding(B=decodes, T=1, C=contexts))

    def _reading(self, kind: str, alike: tuple[int, int], news: Array) -> Array:
        """Seconds of attention of so many prompts with so much cached, by the new tokens of each."""
        prompts, cached = alike
        return self._attention(kind, Binding(B=prompts, T=news, C=cached))

    def _attention(self, kind: str, at: Binding) -> Array:
        return sum((np.asarray(group(kind, at)[0]) for group in self._apart), np.zeros(at.shape))

    def __call__(self, decodes: int, kept: int, chunks: Chunks) -> float | None:
        """Seconds of a step; None of one beyond the tables.

        One that reads a few tokens of each prompt may be in another graph.
        """
        tokens, longest, sequences = decodes, 0, decodes + len(chunks)
        for new, _ in chunks:
            tokens += new
            longest = max(longest, new)
        if longest <= DRAFTS or tokens > self.most:
            return None
        kind = self._kind[tokens]
        busy = self._by_tokens[kind][tokens] + self._by_sequences[kind][sequences]
        if decodes:
            context, rest = divmod(kept, decodes)
            first, seconds = self._decodes[kind](decodes, context, context + 1)
            at = context - first
            busy += seconds[at] + (seconds[at + 1] - seconds[at]) * (rest / decodes)
        for (new, cached), times in Counter(chunks).items() if len(chunks) > 1 else ((chunks[0], 1),):
            first, seconds = self._reads[kind]((times, cached), new, new)
            busy += seconds[new - first]
        return max(busy, self._least) + self._beside[sequences]
