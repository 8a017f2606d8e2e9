"""Seconds of steps of speculative decoding: verifying drafts, and making them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.backends.cost.op_time import Model
from llmir.backends.request.speculation import drafting
from llmir.backends.step.composition import Code
from llmir.backends.step.evaluate import Plan, plan
from llmir.backends.step.sizes import running
from llmir.backends.tape.record import Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import C, Dim

from .drafts import Drafts
from .load import Array
from .prices import Chunks
from .rows import Rows
from .steps import PricedStep


class SpeculativeStep:
    """Steps in which each sequence that decodes has a row for its last token and one for each draft.

    All that decode are priced at their mean context, which over-counts windows that some have not filled.
    A step with prompts is one of the program, with logits of the drafts' rows added; the drafter then reads
    the prompts too, in the step in which it makes the first draft of each sequence.
    """

    functions: tuple[Dim, ...] = (C,)

    def __init__(self, program: Program, model: Model, drafts: Drafts) -> None:
        self.drafts, self._plain = drafts, PricedStep(program, model)
        new = drafts.rows
        self._verify, self._last = (
            _Step(running(of, [(1, new, 1)], "")[0], model, new) for of in (drafts.verify, program)
        )
        drafter = drafting(program, drafts.drafter)
        self._draft = _Step(running(drafter, [(1, 1, 1)], "")[0], model, 1) if drafter else None
        self._reads = PricedStep(drafter, model) if drafter else None
        self._rows = Rows(self._seconds)
        self._drafts = Rows(self._drafting)
        self._logits: dict[int, float] = {}

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from this step to the next."""
        if not decodes:
            return self._plain(0, (), chunks) + self._reading(0, 0, chunks)
        kept = sums[0]
        if not chunks:
            return self._decodes(decodes, kept)
        context = round(kept / decodes)
        mine = [(self.drafts.rows, context)] * decodes
        verified = self._plain(0, (), [*mine, *chunks]) + self._more(decodes, context)
        return verified + self._reading(decodes, context, chunks)

    def _more(self, decodes: int, context: int) -> float:
        """Seconds, in a step with prompts, of logits of all rows and of all drafts but each one's first."""
        first, _, drafts = self._drafts(decodes, context, context)
        return self._heads(decodes) + drafts[context - first] * (1 - 1 / self.drafts.tokens)

    def _decodes(self, decodes: int, kept: Number) -> Number:
        """Seconds of a step that only decodes; linear between whole mean contexts."""
        if isinstance(kept, np.ndarray):
            low = int(kept[0] // decodes)
            high = int(kept[-1] // decodes) + 1
            first, _, seconds = self._rows(decodes, low, high)
            return np.interp(
                kept / decodes, np.arange(low, high + 1), seconds[low - first : high + 1 - first]
            )
        context, rest = divmod(int(kept), decodes)
        first, _, seconds = self._rows(decodes, context, context + 1)
        below = seconds[context - first]
        return below + (seconds[context - first + 1] - below) * rest / decodes

    def _seconds(self, decodes: int, contexts: Array) -> Array:
        return self._verify.many(decodes, contexts) + self._drafting(decodes, contexts)

    def _drafting(self, decodes: int, contexts: Array) -> Array:
        """Seconds to make all drafts of a step, one after another."""
        if self._draft is None:
            return np.zeros(len(contexts))
        return self.drafts.tokens * self._draft.many(decodes, contexts)

    def _reading(self, decodes: int, context: int, chunks: Chunks) -> Number:
        """Seconds of the drafter, which reads chunks of prompts and makes a draft of each sequence."""
        if self._reads is None:
            return 0.0
        sums = [decodes * Binding(C=context)(function) for function in self._reads.functions]
        return self._reads(decodes, sums if decodes else (), chunks)

    def _heads(self, decodes: int) -> float:
        """Seconds of logits of all rows, less those of one row of each sequence."""
        if decodes not in self._logits:
            at = np.array([1])
            more = self._verify.many(decodes, at) - self._last.many(decodes, at)
            self._logits[decodes] = max(0.0, float(more[0]))
        return self._logits[decodes]

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of a step, and of its one stage: ranks share the sequences that decode evenly."""
        count = int(decodes)
        context = round(sums[0] / count) if count else 0
        shares = [count // len(ranks) + (i < count % len(ranks)) for i in range(len(ranks))]
        rows = (self.drafts.rows, context)
        mine = [[rows] * n + [*chunks] for n, chunks in zip(shares, ranks, strict=True)]
        seconds = self._plain.micro_batch(0, (), mine)[0]
        if self._reads is not None:
            own = [count * Binding(C=context)(f) for f in self._reads.functions] if count else (0,)
            seconds += self._reads.micro_batch(count, own, ranks)[0]
        seconds += self._more(count, context) if count else 0.0
        return seconds, seconds


class _Step:
    """Seconds of steps in which all sequences have so many `new` tokens."""

    def __init__(self, program: Program, model: Model, new: int) -> None:
        self._plan: Plan = plan(program, model)
        self._new = new
        self._codes: dict[bool, Code] = {}

    def many(self, sequences: int, contexts: Array) -> Array:
        """Seconds of a step of so many sequences, at each context."""
        of = self._plan
        graph = bool(of.host and of.captured(Binding(B=sequences, T=self._new, C=1)))
        if graph not in self._codes:
            tape = Tape(SCALARS)
            at = Binding(B=tape.symbol("B"), T=self._new, C=tape.symbol("C"))
            stages = of.timing(at, of.launched(at, graph), graph).stages
            self._codes[graph] = Code(tape, ("B",), ("C",), stages)
        (seconds,) = self._codes[graph].many((sequences,), (contexts,))
        return np.broadcast_to(seconds, len(contexts)).astype(float)
