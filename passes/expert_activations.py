"""expert-activations: quantize the inputs of experts to 8 bits if their weights have fewer bits, as engines
do.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import Pass

from .quantize import Quantize


@dataclass(frozen=True)
class ExpertActivations(Pass):
    """Quantize the inputs of routed experts with weights of one dtype to `activations`, if they are not
    quantized yet.

    A program without these experts is unchanged.
    """

    name: ClassVar[str] = "expert-activations"

    weights: str = "mxfp4"
    activations: str = "fp8"

    def __call__(self, program: Program) -> Program:
        """Quantize the inputs of each expert product with these weights."""
        graphs = program.graphs.values()
        nodes = [node for graph in graphs for node in graph.nodes if self._reads(graph, node)]
        names = {node.name.rpartition(".")[2] for node in nodes}
        return Quantize(plan={name: {"activations": self.activations} for name in sorted(names)})(program)

    def _reads(self, graph: Graph, node: Node) -> bool:
        """Whether this is a matrix product of experts with 16-bit inputs and weights of this dtype."""
        op = node.op
        if not op.routing or not op.matrices:
            return False
        types = graph.operand_types(node)
        rows, *weights = (types[i] for i in (0, *op.matrices))
        return not rows.dtype.low and all(w.dtype.short == self.weights for w in weights)
