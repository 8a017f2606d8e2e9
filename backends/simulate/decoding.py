"""Seconds of steps that only decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from llmir.backends.step.composition import Code
from llmir.backends.step.evaluate import Plan
from llmir.backends.step.keeps import Keeps, Kept
from llmir.backends.tape.record import Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.ir.sizes.binding import Binding

from .load import Array
from .rows import Counts

TOGETHER = 128  # numbers of sequences that are priced at once

Priced = tuple[Code, tuple[float, ...]]  # code for the rest; the sequences, and seconds by stage without it


class Decoding:
    """Seconds of a micro-batch that only decodes, on each pipeline stage of a plan.

    Prices of most ops depend on the number of sequences alone: they are evaluated for many numbers at once.
    Recorded code prices the others, which read the KV cache, and what the engine adds.
    """

    def __init__(self, of: Plan, keeps: Keeps) -> None:
        self.of, self.keeps = of, keeps
        self._priced = Counts(self._prices, TOGETHER)
        self._code = cache(self._recorded)

    def __call__(self, sequences: float, sums: Sequence[Number]) -> tuple[Number, ...]:
        """Seconds by stage of so many sequences with these sums over their contexts; of arrays, arrays."""
        code, few = self._priced[sequences]
        return (code.many if sums and isinstance(sums[0], np.ndarray) else code)(few, sums)

    def _prices(self, counts: Array) -> list[Priced]:
        of, at = self.of, Binding(B=counts, T=1, C=0)
        graphs = np.broadcast_to(of.captured(at) if of.host else False, counts.shape).tolist()
        known: dict[bool, list[tuple[float, ...]]] = {}
        for graph in set(graphs):
            each = np.broadcast_arrays(counts, *of.launched(at, graph, late=False))
            known[graph] = [*zip(*(values.tolist() for values in each), strict=True)]
        return [(self._code(graph), known[graph][i]) for i, graph in enumerate(graphs)]

    def _recorded(self, graph: bool) -> Code:
        """The code of steps that are launched as a graph, or not."""
        of, tape = self.of, Tape(SCALARS)
        names, few = [f"s{i}" for i in range(len(self.keeps.functions))], [f"t{i}" for i in range(of.depth)]
        at = Kept(self.keeps, tape.symbol("B"), [tape.symbol(name) for name in names])
        late = of.launched(at, graph, late=True)
        busy = tuple(tape.symbol(name) + more for name, more in zip(few, late, strict=True))
        return Code(tape, ("B", *few), names, of.timing(at, busy, graph).stages)
