"""dce: remove ops that no output needs, and graphs that are not used."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Value
from llmir.ir.core.program import Program
from llmir.ir.tools.pipeline import Pass


def _cached(graph: Graph, value: Value) -> bool:
    """Whether a value is stored in a cache for the next step."""
    return graph.origin(value).op.role == "cache"


def _live(graph: Graph) -> Graph:
    kept = {n.name for n in graph.inputs}  # the signature of the graph stays
    written = [v for n in graph.nodes for v in n.values if n.operands and _cached(graph, v)]
    kept |= {value.node for value in (*graph.outputs, *written)}
    for node in reversed(graph.nodes):  # operands precede their users
        if node.name in kept:
            kept |= {value.node for value in node.operands}
    nodes = [n for n in graph.nodes if n.name in kept]
    return graph if len(nodes) == len(graph.nodes) else Graph(graph.name, nodes, graph.outputs)


@dataclass(frozen=True)
class DeadCode(Pass):
    """Removes ops that no output needs, and graphs that are not used."""

    name: ClassVar[str] = "dce"
    encodes: ClassVar[bool] = False  # the last norm of a tower, which is not used, is loaded with it

    def __call__(self, program: Program) -> Program:
        """Retain the nodes that the entries reach."""
        graphs: dict[str, Graph] = {}
        waiting = list(program.entries)
        while waiting:
            name = waiting.pop(0)
            if name not in graphs:
                graphs[name] = _live(program[name])
                waiting += [n.op.loop.body for n in graphs[name].nodes if n.op.loop]
        ordered = {n: graphs[n] for n in program.graphs if n in graphs}
        same = all(ordered.get(n) is g for n, g in program.graphs.items())
        return program if same else program.replace(graphs=ordered)
