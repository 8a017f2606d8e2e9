"""slice-sends: between stages, each tensor-parallel rank sends one slice of a replicated value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement
from llmir.ir.tools.loops import copied, in_slices
from llmir.ir.tools.pipeline import Pass


@dataclass(frozen=True)
class SliceSends(Pass):
    """Send one slice of each replicated value per tensor-parallel rank; the next stage gathers the slices.

    The network then transfers each value once, as in vLLM and SGLang (`GroupCoordinator.send_tensor_dict`).
    If the number of ranks does not divide the size of a value, each rank sends the whole value. Run this pass
    after `stages` and `shard`.
    """

    name: ClassVar[str] = "slice-sends"

    def __call__(self, program: Program) -> Program:
        """Insert a slice before each send, and a gather after each receive."""
        stages = [program[entry] for entry in program.entries]
        cuts: list[Mapping[int, Placement]] = [{}]
        for graph in stages[:-1]:
            found = {i: copied(graph.type(v), program.mesh) for i, v in enumerate(graph.outputs)}
            cuts.append({i: over for i, over in found.items() if over})
        if not any(cuts):
            return program
        made = (in_slices(graph, *each) for graph, each in zip(stages, pairwise([*cuts, {}]), strict=True))
        return program.replace(graphs={**program.graphs, **{graph.name: graph for graph in made}})
