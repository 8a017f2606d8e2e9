"""Steps that read prompts as sums from tables: one by tokens, one by sequences, and attention's by context.

All prices but attention's are functions of the tokens of a step or of its sequences; attention's takes
sequences of several kinds apart. So each composition of a step is a few entries of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np

from llmir.backends.kernels.base import DRAFTS
from llmir.backends.step.composition import KEPT, Code, Names
from llmir.backends.step.evaluate import Plan
from llmir.backends.step.keeps import Keeps, Kept
from llmir.backends.tape.record import Tape
from llmir.base.array_namespace import SCALARS
from llmir.ir.sizes.binding import Binding, Mixed
from llmir.ir.sizes.polynomial import B, C, Size, T

from .load import Array
from .prices import Chunks
from .rows import NONE, Counts, Rows

KINDS = ("alone", "graph")  # launched one by one, and as a graph
TOGETHER = {B * T: 1024, B: 256}  # tokens, and sequences, that are priced at once
Sums = tuple[float, float, float]
LONG_S = 16.0  # a step of such kernels waits for no launch, nor for a host that works beside


def tabled(plan: Plan) -> bool:
    """Whether its prices are such functions."""
    return len(plan.program.entries) == 1 and all(
        group.size in TOGETHER or (group.size is None and all(price.apart for price in group.prices))
        for _, group in plan._groups
    )


class Tables:
    """Seconds of steps that read prompts, by a plan for which `tabled` holds."""

    def __init__(self, plan: Plan, keeps: Keeps) -> None:
        self.plan = plan
        self._apart = [group for _, group in plan._groups if group.size is None]
        names = [f"s{i}" for i in range(len(keeps.functions))]
        own = partial(_decoding, keeps, names)
        # Most steps that read prompts are of one kind, so that the other's code is made if it is asked for.
        self._own = [cache(partial(self._attention, kind, own, ("B",), names)) for kind in KINDS]
        self._rows = [Rows(partial(_row, code)) for code in self._own]
        self._known = [row.known for row in self._rows]
        self._decodes = self._by_context if keeps.functions == (C,) else self._by_sums
        self._chunks = [cache(partial(self._attention, kind, _reading, ("B", "T"), ("C",))) for kind in KINDS]
        self._reads: list[dict[tuple[int, ...], float]] = [{} for _ in KINDS]
        by_sequences = [Counts(partial(self._by_sequences, kind), TOGETHER[B]) for kind in range(len(KINDS))]
        self._of = [*enumerate(by_sequences)]
        # Of steps that read many tokens of a prompt at least, and of those that read a few of each.
        self._steps = [Counts(partial(self._by_tokens, few), TOGETHER[B * T]) for few in (False, True)]

    def _by_tokens(self, few: bool, counts: Array) -> Iterator[tuple[float, tuple[int, Counts[Sums]]]]:
        """Seconds of what so many tokens take, and what prices the rest of the step."""
        prompt = Binding(B=1, T=2, C=0), Binding(B=counts - 2, T=1, C=0)
        at = Mixed(prompt) if few else Binding(B=1, T=counts, C=0)
        captured = np.broadcast_to(self.plan.captured(at) if self.plan.host else False, counts.shape)
        kinds = captured.astype(int).tolist()
        seconds = {kind: self._sums(B * T, KINDS[kind], counts).tolist() for kind in set(kinds)}
        return ((seconds[kind][i], self._of[kind]) for i, kind in enumerate(kinds))

    def _by_sequences(self, kind: int, counts: Array) -> Iterator[Sums]:
        """Seconds of what so many sequences take; of what an engine adds; and of a step of no kernels.

        Such a step takes what the host needs: to launch it, and to schedule and sample.
        """
        at = Binding(B=counts, T=1, C=0)

        def host(busy: float) -> list[float]:
            each = np.full(counts.shape, busy)
            found: list[float] = (self.plan.timing(at, (each,), bool(kind)).period - each).tolist()
            return found

        return zip(self._sums(B, KINDS[kind], counts).tolist(), host(LONG_S), host(0.0), strict=True)

    def _sums(self, size: Size, kind: str, counts: Array) -> Array:
        """Seconds of all prices of a size, by its value."""
        groups = [(of.size, of) for _, of in self.plan._groups if of.size is not None and of.size == size]
        return sum((of(kind, Binding.only(its, counts))[0] for its, of in groups), np.zeros(counts.shape))

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
        kept = int(sums[0])
        context = kept // decodes
        first, end, seconds = self._known[kind].get(decodes, NONE)
        if context < first or end <= context + 1:
            first, _, seconds = self._rows[kind].longer(decodes, context, context + 1)
        at = context - first
        low = seconds[at]
        return low + (seconds[at + 1] - low) * (kept - context * decodes) / decodes

    def __call__(self, decodes: int, sums: Sequence[float], chunks: Chunks) -> float:
        """Seconds of a step."""
        if len(chunks) == 1:
            new = longest = chunks[0][0]
        else:
            news = [new for new, _ in chunks]
            new, longest = sum(news), max(news)
        busy, (kind, by_sequences) = self._steps[longest <= DRAFTS][decodes + new]
        more, beside, least = by_sequences[decodes + len(chunks)]
        busy += more
        if decodes:
            busy += self._decodes(kind, decodes, sums)
        known = self._reads[kind]
        if len(chunks) == 1:
            busy += known.get(chunks[0]) or self._read(kind, chunks[0])
        else:
            for chunk, times in Counter(chunks).items():
                alike = chunk * times
                busy += known.get(alike) or self._read(kind, alike)
        busy += beside
        return busy if busy > least else least

    def _read(self, kind: int, alike: tuple[int, ...]) -> float:
        """Seconds of attention of chunks that are alike, one after another, kept."""
        known, new, cached = self._reads[kind], alike[0], alike[1]
        if len(known) >= KEPT:
            known.clear()
        seconds: float = self._chunks[kind]()((len(alike) // 2, new), (cached,))[0]
        known[alike] = seconds
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
