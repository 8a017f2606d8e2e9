"""Seconds of a step by a cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from llmir.backends.cost.op_time import Model
from llmir.backends.step.evaluate import plan
from llmir.backends.step.surface import Surface
from llmir.backends.step.timing import Timing
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.ir.core.program import Program
from llmir.ir.sizes.polynomial import C

from .decoding import Decoding
from .prices import Chunks
from .step_times import Tables, tabled

D = TypeVar("D", int, float)


class PricedStep:
    """Steps of a program. Each sequence that decodes counts with its own context.

    Steps that read prompts are looked up in tables, where prices allow that (`tabled`). Sequences that decode
    are spread evenly over data-parallel ranks and micro-batches. A step that only decodes ends when the first
    micro-batch may begin again: it is through the pipeline, and the first stage is free.
    """

    def __init__(self, program: Program, model: Model) -> None:
        if not model.symbolic:
            raise InputError(f"simulate: {model.name} is a model of numbers; steps are of llmir's own")
        self.model, self.surface = model, Surface(program, model)
        self._keeps, self._parts = self.surface._keeps, in_flight(program)
        self._first = 0 if C in self._keeps.functions else 1  # contexts, where prices do not read them
        self.functions = (C,)[: self._first] + self._keeps.functions
        own = None if program.splits or self._parts > 1 else plan(program, model)
        self._tables = Tables(own, self._keeps) if own and tabled(own) else None
        self._decoding = Decoding(self.surface._plan(True, False), self._keeps)

    def __call__(self, decodes: int, sums: Sequence[Number], chunks: Chunks) -> Number:
        """Seconds from this step to the next."""
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
        """Seconds of one micro-batch, and of each of its pipeline stages; `ranks` has the chunks of each."""
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
        """Chunks of one token are priced as sequences that decode."""
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
    """Micro-batches that are in a pipeline at once: as many as there are stages, unless stated."""
    return program.micro_batches if program.micro_batches > 1 else len(program.entries)
