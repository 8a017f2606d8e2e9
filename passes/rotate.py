"""rotate: move the residual add that ends a layer to the start of the next layer, before its norm.

Layers are bodies of loops, so the last add of one layer and the first norm of the next are in one graph only
after the loop is rotated. The loop then carries the two summands instead of their sum, as the layers of vLLM,
SGLang and TensorRT-LLM pass on `hidden_states` and `residual`. Before the first layer, one summand is zero.
After the last layer, the add comes before the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.op import Loop
from llmir.ir.core.program import Program
from llmir.ir.ops.elementwise import Add
from llmir.ir.ops.norm import RmsNorm
from llmir.ir.tools.build import Builder, Operands, Replacement
from llmir.ir.tools.loops import consistent, ending
from llmir.ir.tools.pipeline import Pass

FEW = 3  # Each layer transfers one hidden state less to or from memory; the additional sum transfers three.


@dataclass(frozen=True)
class Rotate(Pass):
    """Move the final sum of a layer to the next layer, so that `fuse` can merge the sum and the norm."""

    name: ClassVar[str] = "rotate"

    def __call__(self, program: Program) -> Program:
        """Rotate bodies that end in a sum and begin with a norm, and adapt the graphs that repeat them."""
        sums = _sums(program)
        inner = {name for name, g in program.graphs.items() if any(p.body in sums for p in g.loops.values())}
        if not inner:
            return program
        graphs = {
            n: _RotatedGraph(g, sums).done() if n in inner | {*sums} else g for n, g in program.graphs.items()
        }
        return program.replace(graphs=graphs)


def _sums(program: Program) -> dict[str, Node]:
    """The bodies to rotate, with their final sums; only loops with enough iterations for a benefit."""

    def short(sums: dict[str, Node]) -> set[str]:
        found: set[str] = set()
        for name, graph in program.graphs.items():
            here = [p for p in graph.loops.values() if name not in sums and p.body in sums]
            if sum(p.times * program.depth(p.body) for p in here) <= FEW:
                found |= {p.body for p in here}
        return found

    return consistent(lambda left: ending(program, _sum, left), short)


def _sum(program: Program, name: str, left: set[str]) -> Node | None:
    """The final sum of a body's last layer; None unless each layer in the body can be rotated."""
    if name in left:
        return None
    graph = program[name]
    runs = [p for g in program.graphs.values() for p in g.loops.values() if p.body == name]
    if name in program.entries or not runs or any(p.carried > 1 for p in runs) or not graph.inputs:
        return None
    given, out = graph.inputs[0].values[0], graph.outputs[0]
    users = [node for node in graph.nodes if given in node.operands]
    last = graph[out.node]
    if given in graph.outputs or out in graph.outputs[1:] or any(out in n.operands for n in graph.nodes):
        return None
    if loop := last.op.loop:
        whole = out.result == 0 and all(node.op.loop and given == node.operands[0] for node in users)
        layers = [_sum(program, p.body, left) for p in graph.loops.values()]
        return layers[-1] if loop and whole and all(layers) else None
    alike = {graph.type(v) for v in (given, *last.operands)} == {graph.type(given)}
    begins = any(isinstance(n.op, RmsNorm) and n.op.over == 1 and len(n.operands) > 1 for n in users)
    return last if isinstance(last.op, Add) and alike and begins else None


class _RotatedGraph:
    """Rebuilds a graph whose rotated layers return a pair of summands; the sum is built on first use."""

    def __init__(self, graph: Graph, sums: dict[str, Node]) -> None:
        self.graph, self.sums = graph, sums
        self.end = sums.get(graph.name)  # the sum that ends the last layer of a body to rotate
        self.pairs: dict[Value, tuple[Value, Value]] = {}

    def done(self) -> Graph:
        """Rebuild the graph in schedule order."""
        return Builder.rebuild(self.graph, self._visit, self._outputs)

    def _visit(self, b: Builder, node: Node, operands: Operands) -> Sequence[Replacement] | None:
        loop = node.op.loop
        if self.end and node == self.graph.inputs[0]:
            (residual,) = b.insert(node)
            added = b.input(node.results[0], name=f"{node.name}_added", axes=node.op.axes)
            return [self._pair(b, node, (residual, added), self.end)]
        if loop and loop.body in self.sums:
            return self._repeat(b, node, loop, operands)
        if self.end and node.values[0] == self.graph.outputs[0]:
            residual, added = operands
            return [self._pair(b, node, (residual, added), self.end)]
        return None

    def _outputs(self, _: Builder, values: Operands) -> Sequence[Value]:
        return [*self.pairs[self.graph.outputs[0]], *values[1:]] if self.end else values

    def _repeat(self, b: Builder, node: Node, loop: Loop, operands: Operands) -> Sequence[Replacement]:
        """Rebuild a `repeat` whose layers take and return a pair: the residual, and its next summand."""
        last = self.sums[loop.body]
        if (pair := self.pairs.get(node.operands[0])) is None:
            pair = operands[0], b.zeros(operands[0], block=last.op.block)
        op = node.op.looping(loop._replace(carried=2))
        residual, added, *others = b.apply(op, *pair, *operands[1:], name=node.name)
        return [self._pair(b, node, (residual, added), last), *others]

    def _pair(self, b: Builder, node: Node, pair: tuple[Value, Value], last: Node) -> Replacement:
        """Replace the first result of a node by a pair of summands; their sum is built on first use."""
        self.pairs[node.values[0]] = pair
        return lambda: b.apply(last.op, *pair, name=last.name)[0]
