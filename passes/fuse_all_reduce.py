"""fuse-all-reduce: the all-reduce, the residual add, the norm and its quantization in one kernel.

If `rotate` moved the residual add into the next layer, the all-reduce at the end of a layer moves there
first, so that both are in one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.program import Program
from llmir.ir.ops.norm import AddRmsNorm, AllReduceAddRmsNorm
from llmir.ir.ops.quant import Quantize
from llmir.ir.tools.build import Builder, Operands, Replacement
from llmir.ir.tools.loops import consistent, ending
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .dce import DeadCode
from .fuse_attention import rewrite_graphs

# --- Deferred sums ---

ADDED = 1  # the summand for the residual in the pair that rotated layers return


def defer_sums(program: Program) -> Program:
    """The program in which bodies return partial sums; unchanged if no body can."""
    sums = _sums(program)
    runs = {n for n, g in program.graphs.items() if any(p.body in sums for p in g.loops.values())}
    graphs = {
        n: _DeferredGraph(g, sums).off() if n in runs | {*sums} else g for n, g in program.graphs.items()
    }
    return program.replace(graphs=graphs) if sums else program


def _sums(program: Program) -> dict[str, Node]:
    """The bodies, each with the final sum of its last layer; a body is excluded if something needs its whole
    value.
    """

    def whole(sums: dict[str, Node]) -> set[str]:
        return {
            loop.body
            for name, graph in program.graphs.items()
            for node in graph.nodes
            if (loop := node.op.loop) and loop.body in sums and not _starts(graph, node, sums, name in sums)
        }

    return consistent(lambda left: ending(program, _sum, left), whole)


def _starts(graph: Graph, node: Node, sums: dict[str, Node], inner: bool) -> bool:
    """Whether the first summand of the layers is zero, or is the result of such layers."""
    value = node.operands[ADDED]
    before = graph[value.node]
    loop = before.op.loop
    handed = bool(loop and loop.body in sums and value.result == ADDED)
    return handed or before.op.zero or (inner and before == graph.inputs[ADDED])


def _sum(program: Program, name: str, left: set[str]) -> Node | None:
    """The all_reduce at the end of a body's last layer, if it can move to the next layer; otherwise None."""
    graph = program[name]
    runs = [p for g in program.graphs.values() for p in g.loops.values() if p.body == name]
    if name in left or not runs or any(p.carried != ADDED + 1 for p in runs):
        return None
    given, out = graph.inputs[ADDED].values[0], graph.outputs[ADDED]
    users = [node for node in graph.nodes if given in node.operands]
    last = graph[out.node]
    if any(out in n.operands for n in graph.nodes) or graph.outputs.count(out) > 1 or given in graph.outputs:
        return None
    if last.op.loop:
        layers = [_sum(program, p.body, left) for p in graph.loops.values()]
        inner = all(node.op.loop and node.operands[ADDED] == given for node in users)
        return layers[-1] if inner and out.result == ADDED and all(layers) else None
    return last if users and _adds(graph, last) else None


def _adds(graph: Graph, node: Node) -> bool:
    """Whether an op only sums its operand over ranks."""
    if not node.op.exchanges or len(node.operands) != 1:
        return False
    type = graph.type(node.operands[0])
    return bool(type.partial) and type.laid(type.placements, (), type.tokens) == node.results[0]


class _DeferredGraph:
    """A graph whose layers pass on partial sums; the ranks add them at the first use."""

    def __init__(self, graph: Graph, sums: dict[str, Node]) -> None:
        self.graph, self.sums = graph, sums
        self.end = sums.get(graph.name)  # the sum that ends its last layer, if it is deferred
        self.partial: dict[Value, Value] = {}

    def off(self) -> Graph:
        """The graph, rebuilt in order."""
        return Builder.rebuild(self.graph, self._visit, self._outputs)

    def _visit(self, b: Builder, node: Node, operands: Operands) -> Sequence[Replacement] | None:
        loop = node.op.loop
        if self.end and node == self.graph.inputs[ADDED]:
            type = node.results[0]
            op = node.op.typed(type.laid(type.placements, self.end.op.joins, type.tokens))
            return [self._defer(b, node.values[0], b.apply(op, name=node.name)[0], self.end)]
        if self.end and node.values[0] == self.graph.outputs[ADDED]:
            return [self._defer(b, node.values[0], operands[0], self.end)]
        if loop and loop.body in self.sums:
            return self._repeat(b, node, self.sums[loop.body], operands)
        return None

    def _outputs(self, _: Builder, values: Operands) -> Sequence[Value]:
        if not self.end:
            return values
        return [*values[:ADDED], self.partial[self.graph.outputs[ADDED]], *values[ADDED + 1 :]]

    def _repeat(self, b: Builder, node: Node, last: Node, operands: Operands) -> Sequence[Replacement]:
        if (partial := self.partial.get(node.operands[ADDED])) is not None:
            pair = operands[0], partial
        else:  # zeros: before the first layer there is nothing to add
            pair = self._begin(b, node, last, operands)
        first, added, *others = b.apply(node.op, *pair, *operands[ADDED + 1 :], name=node.name)
        return [first, self._defer(b, node.values[ADDED], added, last), *others]

    def _begin(self, b: Builder, node: Node, last: Node, operands: Operands) -> tuple[Value, Value]:
        """The residual with zeros as partial sum; or zeros with the partial sum before it, if only these
        layers use it.
        """
        first, over = node.operands[0], last.op.joins
        before = self.graph[first.node]
        alone = all(first not in n.operands or n == node or n.op.zero for n in self.graph.nodes)
        if before.op.joins == over and _adds(self.graph, before) and alone:
            partial = operands.copy_of(before.operands[0])
            return b.zeros(partial, block=last.op.block), partial
        return operands[0], b.zeros(operands[0], over=over, block=last.op.block)

    def _defer(self, b: Builder, value: Value, partial: Value, last: Node) -> Replacement:
        """Replace a value by a partial sum, which the ranks add at the first use."""
        self.partial[value] = partial
        return lambda: b.apply(last.op, partial, name=last.name)[0]


# --- Fusion ---


def _sum_norm(p: Any, x: Value, y: Value, w: Value) -> Any:
    total, normed = p.add_rms_norm(x, p.all_reduce(y, label="sum"), w, results=2, label="norm")
    return total, normed


def _summed_norm(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    norm, over = match.op("norm", AddRmsNorm), match["sum"].op.joins
    how: dict[str, Any] = {"eps": norm.eps, "offset": norm.offset, "block": norm.block, "over": over}
    return b.all_reduce_add_rms_norm(y, x, w, name=f"all_reduce_{match['norm'].name}", **how)


def _sum_narrow(p: Any, x: Value, y: Value, w: Value) -> Any:
    total, normed = p.all_reduce_add_rms_norm(y, x, w, results=2, label="norm")
    return total, p.quantize(normed, label="narrow")


def _summed_narrow(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    norm, narrow = match.op("norm", AllReduceAddRmsNorm), match.op("narrow", Quantize)
    how: dict[str, Any] = {"eps": norm.eps, "offset": norm.offset, "block": norm.block, "over": norm.over}
    how |= {"to": narrow.to, "static": narrow.static, "name": f"{match['norm'].name}_quantize"}
    return b.all_reduce_add_rms_norm_quantize(y, x, w, **how)


RULES = (
    Rule("all-reduce-norm", _sum_norm, _summed_norm),
    Rule("all-reduce-norm-quantize", _sum_narrow, _summed_narrow),
)


@dataclass(frozen=True)
class FuseAllReduce(Pass):
    """Fuse an all_reduce with the residual add and the norm after it; runs after `fuse` and `shard`.

    FlashInfer, vLLM and TensorRT-LLM have this kernel, and one that also quantizes the norm for the next
    product. After `rotate`, layers end in partial sums, which the next layer adds in its first norm.
    """

    name: ClassVar[str] = "fuse-all-reduce"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once; PassError without a sum over ranks."""
        if program.mesh.devices == 1:
            raise PassError(f"fuse-all-reduce: {program.name} runs on one rank; shard it first")
        return rewrite_graphs(DeadCode()(defer_sums(program)), RULES)
