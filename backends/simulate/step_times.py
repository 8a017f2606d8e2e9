"""Seconds of simulated steps: decode steps, steps with prefill, and speculative steps.

Order of the file: tables of values that grow on demand (`ContextRows`, `ValuesByCount`); decode steps
(`DecodeTimes`); and all steps of a server (`StepTimes`, over a `StepEstimator`). Then follow steps with
prefill as sums of table entries (`PrefillTables`): all op times except those of attention depend on tokens or
sequences alone, and attention depends on sequences of each kind. Then follow estimators that record their
steps, the estimator of a program (`ProgramEstimator`), and steps with drafts (`SpeculativeEstimator`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from math import ceil
from typing import Generic, Protocol, TypeVar

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.request.speculation import draft_program
from llmir.backends.step.composition import (
    CACHED_VALUES,
    DecodeBatch,
    KvSumBinding,
    KvSums,
    Names,
    Surface,
    TwoPartFunction,
)
from llmir.backends.step.evaluate import StepEvaluator, step_evaluator
from llmir.backends.step.sizes import batch_program
from llmir.backends.step.timing import Timing
from llmir.backends.tape.record import Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding
from llmir.ir.sizes.polynomial import B, C, Dim, Size, T

from .drafts import Drafts
from .load import Array

# Tables that grow on demand

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# Contexts computed beyond a requested one, or the share of it if larger.
MARGIN, PART = 256, 16

Row = tuple[int, int, list[float]]  # the first context, the one after the last, and the values
NONE: Row = (0, 0, [])


class ContextRows(Generic[K]):
    """For each key, such as a number of sequences, a row of values by context.

    `values` computes the values of a key at an array of contexts.
    """

    def __init__(self, values: Callable[[K, Array], Array]) -> None:
        self.values = values
        self.known: dict[K, Row] = {}

    def __call__(self, key: K, least: int, most: int) -> Row:
        """The row of a key; it is extended to these contexts if necessary."""
        row = self.known.get(key, NONE)
        return row if row[0] <= least and most < row[1] else self.longer(key, least, most)

    def longer(self, key: K, least: int, most: int) -> Row:
        """The row of a key, made longer."""
        first, end, _ = self.known.get(key, NONE)
        before = max(least - max(least // PART, MARGIN), min(least, 1))
        first = min(first, before) if first < end else before
        end = max(end, most + max(most // PART, MARGIN))
        known = self.known[key] = first, end, self.values(key, np.arange(first, end)).tolist()
        return known


class ValuesByCount(dict[float, V]):
    """A value for each count, such as a number of tokens; `values` computes those of an array of counts.

    >>> squares = ValuesByCount(lambda counts: (counts**2).tolist(), 4)
    >>> squares[6], squares
    (36, {5: 25, 6: 36, 7: 49, 8: 64})
    """

    def __init__(self, values: Callable[[Array], Iterable[V]], size: int) -> None:
        """`size` counts are computed at once."""
        super().__init__()
        self.values_at, self.size = values, size

    def __missing__(self, count: float) -> V:
        counts = count - (ceil(count) - 1) % self.size + np.arange(self.size)
        self.update(zip(counts.tolist(), self.values_at(counts), strict=True))
        return self[count]


# Decode steps

DECODE_BLOCK = 128  # number of sequences that are evaluated at once

DecodeCode = tuple[
    TwoPartFunction, tuple[float, ...]
]  # code for the rest; the sequences, and seconds by stage without it


class DecodeTimes:
    """Seconds of a micro-batch that only decodes, on each pipeline stage of a plan.

    Most op times depend on the number of sequences alone, and are evaluated for many numbers at once. The
    other op times (ops that read the KV cache, and engine overhead) are evaluated by recorded code.
    """

    def __init__(self, of: StepEvaluator, keeps: KvSums) -> None:
        self.of, self.keeps = of, keeps
        self._priced = ValuesByCount(self._prices, DECODE_BLOCK)
        self._code = cache(self._recorded)

    def __call__(self, sequences: float, sums: Sequence[Number]) -> tuple[Number, ...]:
        """Seconds by stage for sequences with these sums over their contexts; for arrays, the results are
        arrays.
        """
        code, few = self._priced[sequences]
        return (code.many if sums and isinstance(sums[0], np.ndarray) else code)(few, sums)

    def _prices(self, counts: Array) -> list[DecodeCode]:
        of, at = self.of, Binding(B=counts, T=1, C=0)
        graphs = np.broadcast_to(of.captured(at) if of.host else False, counts.shape).tolist()
        known: dict[bool, list[tuple[float, ...]]] = {}
        for graph in set(graphs):
            each = np.broadcast_arrays(counts, *of.launched(at, graph, late=False))
            known[graph] = [*zip(*(values.tolist() for values in each), strict=True)]
        return [(self._code(graph), known[graph][i]) for i, graph in enumerate(graphs)]

    def _recorded(self, graph: bool) -> TwoPartFunction:
        """The code for steps that are launched as a graph, or for steps that are not."""
        of, tape = self.of, Tape(SCALARS)
        names, few = [f"s{i}" for i in range(len(self.keeps.functions))], [f"t{i}" for i in range(of.depth)]
        at = KvSumBinding(self.keeps, tape.symbol("B"), [tape.symbol(name) for name in names])
        late = of.launched(at, graph, late=True)
        busy = tuple(tape.symbol(name) + more for name, more in zip(few, late, strict=True))
        return TwoPartFunction(tape, ("B", *few), names, of.timing(at, busy, graph).stages)


# All steps of a server

Chunks = Sequence[tuple[int, int]]  # new tokens of each prefill chunk, and its cached tokens
AHEAD = 256  # number of steps that are evaluated at once while windows fill
FEW = 24  # steps evaluated one by one in this time


class StepEstimator(Protocol):
    """Seconds of a step with `decodes` decoding sequences and with prefill chunks.

    `sums` contains a sum over the decoding sequences for each of `functions` of the context; the first
    function is `C`. If there are no chunks, the sums may be arrays.
    """

    functions: tuple[Dim, ...]

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from the start of a step to the start of the next one."""

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch, and of each of its pipeline stages.

        `ranks` has the chunks of each data-parallel rank; the ranks run together.
        """


class StepTimes:
    """The times of steps from a `StepEstimator`; the state is the number `kept` of cached tokens, or a
    `batch` if the model has windows.

    Without windows, the class stores cumulative sums over integer mean contexts, and interpolates linearly
    between them. A series of decode steps advances by one mean context per step, so its time is a difference
    of two sums, whatever its length.
    """

    def __init__(self, step: StepEstimator) -> None:
        self.step = step
        self._rows = ContextRows(self._sums)
        self._known = self._rows.known

    def batch(self) -> DecodeBatch | None:
        """An empty state, if steps depend on more than the sum of contexts."""
        return DecodeBatch(self.step.functions) if len(self.step.functions) > 1 else None

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch, and of each of its pipeline stages."""
        return self.step.micro_batch(decodes, sums, ranks)

    def run(
        self, decodes: int, kept: int, batch: DecodeBatch | None, most: int, seconds: float
    ) -> tuple[int, float]:
        """The number of steps, from one to `most`, that begin within `seconds`, and their total time.

        The call advances a batch by these steps.
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
        """For each context, the total seconds of all decode steps before it, starting with the first
        context.
        """
        sums = np.zeros(len(contexts))
        seconds = self.step(decodes, (decodes * contexts[:-1],), ())
        np.cumsum(np.broadcast_to(seconds, len(contexts) - 1), out=sums[1:])
        return sums

    def _each(self, decodes: int, batch: DecodeBatch, most: int, seconds: float) -> tuple[int, float]:
        """The result of `run` for a batch, from the sums before each step."""
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


# The times of steps with prompts, as sums of entries of tables

KINDS = ("alone", "graph")  # launched one by one, and as a graph
TABLE_BLOCKS = {B * T: 1024, B: 256}  # number of tokens and of sequences that are evaluated at once
SumTriple = tuple[float, float, float]
LONG_S = 16.0  # kernels of this step wait neither for launches nor for the engine CPU


def has_tables(plan: StepEvaluator) -> bool:
    """Whether each op time is a function of tokens only or of sequences only."""
    return len(plan.program.entries) == 1 and all(
        group.size in TABLE_BLOCKS or (group.size is None and all(price.apart for price in group.prices))
        for _, group in plan._groups
    )


class PrefillTables:
    """Seconds of steps with prefill, for an evaluator with `has_tables`."""

    def __init__(self, plan: StepEvaluator, keeps: KvSums) -> None:
        self.plan = plan
        self._apart = [group for _, group in plan._groups if group.size is None]
        names = [f"s{i}" for i in range(len(keeps.functions))]
        own = partial(_decoding, keeps, names)
        # Most steps with prefill are of one kind, so code for the other is built on demand.
        self._own = [cache(partial(self._attention, kind, own, ("B",), names)) for kind in KINDS]
        self._rows = [ContextRows(partial(_row, code)) for code in self._own]
        self._known = [row.known for row in self._rows]
        self._decodes = self._by_context if keeps.functions == (C,) else self._by_sums
        self._chunks = [
            cache(partial(self._attention, kind, _prompt_groups, ("B", "T"), ("C",))) for kind in KINDS
        ]
        self._reads: list[dict[tuple[int, ...], float]] = [{} for _ in KINDS]
        by_sequences = [
            ValuesByCount(partial(self._by_sequences, kind), TABLE_BLOCKS[B]) for kind in range(len(KINDS))
        ]
        self._of = [*enumerate(by_sequences)]
        # For steps with at least one large chunk, and for steps with a few tokens of each prompt.
        self._steps = [
            ValuesByCount(partial(self._by_tokens, few), TABLE_BLOCKS[B * T]) for few in (False, True)
        ]

    def _by_tokens(
        self, few: bool, counts: Array
    ) -> Iterator[tuple[float, tuple[int, ValuesByCount[SumTriple]]]]:
        """Seconds of the ops that depend on tokens only, and the tables for the rest of the step."""
        prompt = Binding(B=1, T=2, C=0), Binding(B=counts - 2, T=1, C=0)
        at = MixedBinding(prompt) if few else Binding(B=1, T=counts, C=0)
        captured = np.broadcast_to(self.plan.captured(at) if self.plan.host else False, counts.shape)
        kinds = captured.astype(int).tolist()
        seconds = {kind: self._sums(B * T, KINDS[kind], counts).tolist() for kind in set(kinds)}
        return ((seconds[kind][i], self._of[kind]) for i, kind in enumerate(kinds))

    def _by_sequences(self, kind: int, counts: Array) -> Iterator[SumTriple]:
        """Seconds of the ops that depend on sequences only; seconds of engine overhead; and seconds of a step
        without kernels.

        Without kernels, a step lasts as long as the engine's CPU needs for launches, scheduling and sampling.
        """
        at = Binding(B=counts, T=1, C=0)

        def host(busy: float) -> list[float]:
            each = np.full(counts.shape, busy)
            found: list[float] = (self.plan.timing(at, (each,), bool(kind)).period - each).tolist()
            return found

        return zip(self._sums(B, KINDS[kind], counts).tolist(), host(LONG_S), host(0.0), strict=True)

    def _sums(self, size: Size, kind: str, counts: Array) -> Array:
        """Seconds of all op times of a size, by its value."""
        groups = [(of.size, of) for _, of in self.plan._groups if of.size is not None and of.size == size]
        return sum((of(kind, Binding.only(its, counts))[0] for its, of in groups), np.zeros(counts.shape))

    def _attention(
        self, kind: str, at: Callable[[Tape], Binding], few: Names, late: Names
    ) -> TwoPartFunction:
        """Seconds of attention only, as code."""
        tape = Tape(SCALARS)
        there = at(tape)
        return TwoPartFunction(tape, few, late, [sum(group.sums(kind, there)[0] for group in self._apart)])

    def _by_sums(self, kind: int, decodes: int, sums: Sequence[float]) -> float:
        """Seconds of attention of the decodes."""
        seconds: float = self._own[kind]()((decodes,), sums)[0]
        return seconds

    def _by_context(self, kind: int, decodes: int, sums: Sequence[float]) -> float:
        """Seconds of attention, if the mean context determines them; values between integers are
        interpolated.
        """
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
        """Seconds of attention of equal chunks that run one after another, cached."""
        known, new, cached = self._reads[kind], alike[0], alike[1]
        if len(known) >= CACHED_VALUES:
            known.clear()
        seconds: float = self._chunks[kind]()((len(alike) // 2, new), (cached,))[0]
        known[alike] = seconds
        return seconds


def _decoding(keeps: KvSums, names: Names, tape: Tape) -> Binding:
    """Decoding sequences whose sums are symbols."""
    return KvSumBinding(keeps, tape.symbol("B"), [tape.symbol(name) for name in names])


def _prompt_groups(tape: Tape) -> Binding:
    """Equal prompts whose sizes are symbols."""
    return Binding(**{name: tape.symbol(name) for name in ("B", "T", "C")})


def _row(code: Callable[[], TwoPartFunction], decodes: int, contexts: Array) -> Array:
    """Values of code at mean contexts of `decodes` sequences."""
    return np.asarray(code().many((decodes,), (decodes * contexts,))[0])


# Recorded steps


class RecordingEstimator:
    """A `Step` that records the decoding sequences, their tokens and the chunks of each step with prefill."""

    def __init__(self, step: StepEstimator) -> None:
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


class RecordingStepTimes(StepTimes):
    """The times of recorded steps; sums of decode steps come from `prices` and are not recorded."""

    def __init__(self, prices: StepTimes) -> None:
        vars(self).update(vars(prices))
        self.step = self.recorded = RecordingEstimator(prices.step)


# Steps of a program

D = TypeVar("D", int, float)


class ProgramEstimator:
    """The times of steps of a program; each decoding sequence has its own context.

    Steps with prefill are looked up in tables if the op times allow this (`has_tables`). Decoding sequences
    are distributed evenly over data-parallel ranks and micro-batches. A decode-only step ends when the first
    micro-batch may begin again: it has left the pipeline, and the first stage is free.
    """

    def __init__(self, program: Program, model: DeviceCostModel) -> None:
        if not model.symbolic:
            raise InputError(
                f"simulate: {model.name} is a custom cost model; a simulation supports only cost "
                "models of llmir"
            )
        self.model, self.surface = model, Surface(program, model)
        self._keeps, self._parts = self.surface._keeps, in_flight(program)
        self._first = 0 if C in self._keeps.functions else 1  # contexts, if op times do not depend on them
        self.functions = (C,)[: self._first] + self._keeps.functions
        own = None if program.splits or self._parts > 1 else step_evaluator(program, model)
        self._tables = PrefillTables(own, self._keeps) if own and has_tables(own) else None
        self._decoding = DecodeTimes(self.surface._plan(True, False), self._keeps)

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from the start of this step to the start of the next."""
        kept = sums[1:] if self._first else sums
        if not chunks:
            return self._decodes(decodes, kept)
        if self._tables is None:
            return self.micro_batch(decodes, sums, (chunks,))[0]
        if min(chunks)[0] == 1:
            decodes, kept, chunks = self._joined(decodes, kept, chunks)
        return self._tables(decodes, kept, chunks) if chunks else self._decodes(decodes, kept)

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of one micro-batch and of each pipeline stage; `ranks` contains the chunks of each rank."""
        kept = sums[1:] if self._first else sums
        every: list[tuple[tuple[int, int, int], ...]] = []
        for chunks in ranks:
            decodes, kept, more = self._joined(decodes, kept, chunks)
            if more:
                every.append(tuple((n, *chunk) for chunk, n in Counter(more).items()))
        own = kept if decodes else ()
        if not every:
            return self.surface.micro_batch(decodes, own, ())
        slowest: dict[tuple[tuple[int, int, int], ...], tuple[float, ...]] = {}
        for i, some in enumerate(every):
            if some not in slowest:
                others = [chunk for j, those in enumerate(every) if j != i for chunk in those]
                slowest[some] = self.surface.on_rank(decodes, own, some, others)
        return tuple(map(max, zip(*slowest.values(), strict=True)))

    def _joined(
        self, decodes: D, kept: Sequence[Number], chunks: Chunks
    ) -> tuple[D, Sequence[Number], Chunks]:
        """A chunk of one token counts as a decoding sequence."""
        if ones := [cached for new, cached in chunks if new == 1]:
            more = self._keeps.sums(ones)
            kept = [a + b for a, b in zip(kept, more, strict=True)] if decodes else more
            decodes, chunks = decodes + len(ones), [chunk for chunk in chunks if chunk[0] > 1]
        return decodes, kept, chunks

    def _decodes(self, decodes: int, kept: Sequence[Number]) -> Number:
        parts = min(self._parts, decodes)
        own = kept if parts == 1 else [total / parts for total in kept]
        found = self._decoding(decodes / parts if parts > 1 else decodes, own)
        return found[0] if len(found) == 1 else Timing(found, parts).period


def in_flight(program: Program) -> int:
    """The number of micro-batches in a pipeline at once: the number of stages by default."""
    return program.micro_batches if program.micro_batches > 1 else len(program.entries)


# Speculative steps


class SpeculativeEstimator:
    """Steps in which each decoding sequence has one row for its last token and one row for each draft.

    All decoding sequences are estimated at their mean context; this overestimates windows that some sequences
    have not filled. A step with prefill is a step of the program, plus the logits for the rows of drafts. The
    drafter also prefills the prompts, in the step of the first draft of each sequence.
    """

    functions: tuple[Dim, ...] = (C,)

    def __init__(self, program: Program, model: DeviceCostModel, drafts: Drafts) -> None:
        self.drafts, self._plain = drafts, ProgramEstimator(program, model)
        new = drafts.rows
        self._verify, self._last = (
            _VerifyStep(batch_program(of, [(1, new, 1)], "")[0], model, new)
            for of in (drafts.verify, program)
        )
        drafter = draft_program(program, drafts.drafter)
        self._draft = _VerifyStep(batch_program(drafter, [(1, 1, 1)], "")[0], model, 1) if drafter else None
        self._reads = ProgramEstimator(drafter, model) if drafter else None
        self._rows = ContextRows(self._seconds)
        self._drafts = ContextRows(self._drafting)
        self._logits: dict[int, float] = {}

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from the start of this step to the start of the next."""
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
        """In a step with prefill, the additional seconds for the logits of all rows, and for all drafts after
        the first.
        """
        first, _, drafts = self._drafts(decodes, context, context)
        return self._heads(decodes) + drafts[context - first] * (1 - 1 / self.drafts.tokens)

    def _decodes(self, decodes: int, kept: Number) -> Number:
        """Seconds of a step that only decodes; values between integer mean contexts are interpolated."""
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
        """Seconds to generate all drafts of a step, one after another."""
        if self._draft is None:
            return np.zeros(len(contexts))
        return self.drafts.tokens * self._draft.many(decodes, contexts)

    def _reading(self, decodes: int, context: int, chunks: Chunks) -> Number:
        """Seconds in which the drafter prefills chunks of prompts and generates one draft per sequence."""
        if self._reads is None:
            return 0.0
        sums = [decodes * Binding(C=context)(function) for function in self._reads.functions]
        return self._reads(decodes, sums if decodes else (), chunks)

    def _heads(self, decodes: int) -> float:
        """Seconds for the logits of all rows, minus the seconds for one row per sequence."""
        if decodes not in self._logits:
            at = np.array([1])
            more = self._verify.many(decodes, at) - self._last.many(decodes, at)
            self._logits[decodes] = max(0.0, float(more[0]))
        return self._logits[decodes]

    def micro_batch(
        self, decodes: float, sums: Sequence[Number], ranks: Sequence[Chunks]
    ) -> tuple[float, ...]:
        """Seconds of a step, and of its only stage; ranks share the decoding sequences evenly."""
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


class _VerifyStep:
    """Seconds of steps in which all sequences have `new` tokens."""

    def __init__(self, program: Program, model: DeviceCostModel, new: int) -> None:
        self._plan: StepEvaluator = step_evaluator(program, model)
        self._new = new
        self._codes: dict[bool, TwoPartFunction] = {}

    def many(self, sequences: int, contexts: Array) -> Array:
        """Seconds of a step with `sequences` sequences, at each context."""
        of = self._plan
        graph = bool(of.host and of.captured(Binding(B=sequences, T=self._new, C=1)))
        if graph not in self._codes:
            tape = Tape(SCALARS)
            at = Binding(B=tape.symbol("B"), T=self._new, C=tape.symbol("C"))
            stages = of.timing(at, of.launched(at, graph), graph).stages
            self._codes[graph] = TwoPartFunction(tape, ("B",), ("C",), stages)
        (seconds,) = self._codes[graph].many((sequences,), (contexts,))
        return np.broadcast_to(seconds, len(contexts)).astype(float)
