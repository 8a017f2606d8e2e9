"""Steps that read prompts as sums from tables: one by tokens, one by sequences, and attention's by context.

All prices but attention's are functions of the tokens of a step or of its sequences; attention's takes
sequences of several kinds apart. So each composition of a step is a few entries of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from llmir.backends.analysis.keeps import Keeps, Kept
from llmir.backends.analysis.plan import Plan
from llmir.backends.analysis.surface_code import KEPT, Code, Names
from llmir.backends.cost.kernels.base import DRAFTS
from llmir.backends.cost.tape import Tape
from llmir.dim import B, Binding, C, Dim, T
from llmir.namespace import SCALARS

from .load import Array
from .prices import Chunks
from .rows import NONE, Rows

SIZES = tuple(size for size in (B * T, B) if isinstance(size, Dim))
KINDS = ("alone", "graph")  # launched one by one, and as a graph
MOST = 1 << 16  # tokens or sequences of a step that a table has
LONG_S = 16.0  # a step of such kernels waits for no launch, nor for a host that works beside


def tabled(plan: Plan) -> bool:
    """Whether its prices are such functions."""
    return len(plan.program.entries) == 1 and all(
        group.size in SIZES or (group.size is None and all(price.apart for price in group.prices))
        for _, group in plan._groups
    )


class Tables:
    """Seconds of steps of up to so many tokens that read prompts, by a plan for which `tabled` holds."""

    def __init__(self, plan: Plan, keeps: Keeps, tokens: int) -> None:
        self.plan, self.most = plan, min(tokens, MOST)
        counts = np.arange(1, self.most + 1)
        self._apart = [group for _, group in plan._groups if group.size is None]
        captured = plan.captured(Binding(B=1, T=counts, C=0)) if plan.host else False
        kinds = np.broadcast_to(captured, counts.shape).astype(int)
        self._kind: list[int] = [0, *kinds.tolist()]
        # A graph has no more tokens than the last that is captured, and no more sequences.
        each = counts, counts[: int(np.flatnonzero(kinds).max(initial=0)) + 1]
        by_tokens, by_sequences = ([*map(partial(self._table, size), KINDS, each)] for size in SIZES)

        # A step whose kernels take no time is what the host needs: to launch it, and to schedule and sample.
        def host(busy: float, graph: bool) -> list[float]:
            own = each[graph]
            at = Binding(B=own, T=1, C=0)
            found = plan.timing(at, (np.full(own.shape, busy),), graph).period - busy
            return [0.0, *found.tolist()]

        least, beside = ([host(busy, graph) for graph in (False, True)] for busy in (0.0, LONG_S))
        names = [f"s{i}" for i in range(len(keeps.functions))]
        own = partial(_decoding, keeps, names)
        # Most steps that read prompts are of one kind, so that the other's code is made if it is asked for.
        self._own = [cache(partial(self._attention, kind, own, ("B",), names)) for kind in KINDS]
        self._rows = [Rows(partial(_row, code)) for code in self._own]
        self._decodes = self._by_context if keeps.functions == (C,) else self._by_sums
        self._chunks = [cache(partial(self._attention, kind, _reading, ("B", "T"), ("C",))) for kind in KINDS]
        self._reads: list[dict[tuple[tuple[int, int], int], float]] = [{} for _ in KINDS]
        self._of = [*zip(by_tokens, by_sequences, beside, least, self._reads, strict=True)]

    def _table(self, size: Dim, kind: str, counts: Array) -> list[float]:
        """Seconds of all prices of a size, by its value."""
        groups = [group for _, group in self.plan._groups if group.size == size]
        found = sum((group(kind, Binding.only(size, counts))[0] for group in groups), np.zeros(counts.shape))
        return [0.0, *found.tolist()]

    def _attention(self, kind: str, at: Callable[[Tape], Binding], few: Names, late: Names) -> Code:
        """Seconds of attention alone, as code."""
        tape = Tape(SCALARS)
        there = at(tape)
        return Code(tape, few, late, [sum(group.sums(kind, there)[0] for group in self._apart)])

    def _by_sums(self, kind: int, decodes: int, sums: Sequence[float]) -> float:
        """Seconds of attention of what decodes."""
        seconds: float = self._own[kind]()((decodes,), sums)[0]
        return seconds

    def _by_context(self, kind: int, decodes: int, sums: Sequence[float]) -> float:
        """The same where the mean context decides; linear between whole ones."""
        context, rest = divmod(int(sums[0]), decodes)
        first, end, seconds = self._rows[kind].known.get(decodes, NONE)
        if context < first or end <= context + 1:
            first, _, seconds = self._rows[kind].longer(decodes, context, context + 1)
        low, high = seconds[context - first], seconds[context - first + 1]
        return low + (high - low) * rest / decodes

    def __call__(self, decodes: int, sums: Sequence[float], chunks: Chunks) -> float | None:
        """Seconds of a step; None of one beyond the tables.

        One that reads a few tokens of each prompt may be in another graph.
        """
        sequences = decodes + len(chunks)
        if sequences == decodes + 1:
            longest = chunks[0][0]
            tokens = decodes + longest
        else:
            news = [new for new, _ in chunks]
            tokens, longest = decodes + sum(news), max(news)
        if longest <= DRAFTS or tokens > self.most:
            return None
        kind = self._kind[tokens]
        by_tokens, by_sequences, beside, least, known = self._of[kind]
        busy = by_tokens[tokens] + by_sequences[sequences]
        if decodes:
            busy += self._decodes(kind, decodes, sums)
        for chunk in Counter(chunks).items() if len(chunks) > 1 else ((chunks[0], 1),):
            busy += known.get(chunk) or self._read(kind, *chunk)
        busy, floor = busy + beside[sequences], least[sequences]
        return busy if busy > floor else floor

    def _read(self, kind: int, chunk: tuple[int, int], times: int) -> float:
        """Seconds of attention of chunks that are alike, kept."""
        known, (new, cached) = self._reads[kind], chunk
        if len(known) >= KEPT:
            known.clear()
        seconds: float = self._chunks[kind]()((times, new), (cached,))[0]
        known[chunk, times] = seconds
        return seconds


def _decoding(keeps: Keeps, names: Names, tape: Tape) -> Binding:
    """Sequences that keep such sums."""
    return Kept(keeps, tape.symbol("B"), [tape.symbol(name) for name in names])


def _reading(tape: Tape) -> Binding:
    """Prompts that are alike."""
    return Binding(**{name: tape.symbol(name) for name in ("B", "T", "C")})


def _row(code: Callable[[], Code], decodes: int, contexts: Array) -> Array:
    """Values of code at mean contexts of so many sequences."""
    return np.asarray(code().many((decodes,), (decodes * contexts,))[0])
