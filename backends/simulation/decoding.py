"""Steps that only decode: what reads caches as code, and the rest by how many sequences there are."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from llmir.backends.analysis.keeps import Keeps, Kept
from llmir.backends.analysis.plan import Plan
from llmir.backends.analysis.surface_code import Code
from llmir.backends.cost.tape import Tape
from llmir.dim import Binding, Number
from llmir.namespace import SCALARS

COUNTS = 128  # numbers of sequences that are priced together when one is asked for


class Decoding:
    """Seconds of a micro-batch on each stage of a plan, of sequences with one new token each.

    Most prices do not read caches. They are evaluated for many numbers of sequences at once, which takes less
    time than to record them, and code has the others and what an engine adds.
    """

    def __init__(self, of: Plan, keeps: Keeps) -> None:
        self.of, self.keeps = of, keeps
        self._known: dict[float, tuple[Code, tuple[float, ...]]] = {}
        self._codes: dict[bool, Code] = {}

    def __call__(self, sequences: float, sums: Sequence[Number]) -> tuple[Number, ...]:
        """Of so many sequences, which keep such sums: arrays where these are arrays."""
        if sequences not in self._known:
            self._price(sequences)
        code, few = self._known[sequences]
        return (code.many if sums and isinstance(sums[0], np.ndarray) else code)(few, sums)

    def _price(self, sequences: float) -> None:
        """What does not read caches, of so many and of others about as many."""
        counts = sequences - (ceil(sequences) - 1) % COUNTS + np.arange(COUNTS)
        of, at = self.of, Binding(B=counts, T=1, C=0)
        graphs = np.broadcast_to(of.captured(at) if of.host else False, counts.shape)
        for graph in set(graphs.tolist()):
            code = self._codes[graph] = self._codes.get(graph) or self._code(graph)
            rest = np.broadcast_arrays(counts, *of.launched(at, graph, late=False))
            own = zip(*(each[graphs == graph].tolist() for each in rest), strict=True)
            self._known.update((few[0], (code, few)) for few in own)

    def _code(self, graph: bool) -> Code:
        """What each stage takes in a graph or without, of such sums, the sequences and what is known of them."""
        of, tape = self.of, Tape(SCALARS)
        names, few = [f"s{i}" for i in range(len(self.keeps.functions))], [f"t{i}" for i in range(of.depth)]
        at = Kept(self.keeps, tape.symbol("B"), [tape.symbol(name) for name in names])
        late = of.launched(at, graph, late=True)
        busy = tuple(tape.symbol(name) + more for name, more in zip(few, late, strict=True))
        return Code(tape, ("B", *few), names, of.timing(at, busy, graph).stages)
