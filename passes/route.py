"""route: experts that are not equally popular, and thus ranks that are not equally busy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from llmir.build import Builder
from llmir.errors import PassError
from llmir.graph import Graph, Node, Program, Value
from llmir.op import Op
from llmir.ops.collective import AllToAll
from llmir.ops.moe import Dispatch, GroupedLinear
from llmir.ops.source import Source
from llmir.pipeline import Pass

MOST = 10.0  # past this, all tokens choose the same experts
_NOTE = "routing: "


@dataclass(frozen=True)
class Route(Pass):
    """Experts' popularity follows Zipf's law, rank^-skew; work and memory are those of the busiest rank.

    Options: skew, of which 0 is the uniform and even routing of a program that says nothing.
    """

    name: ClassVar[str] = "route"

    skew: float = 0.0

    def __call__(self, program: Program) -> Program:
        """Tell the ops that route, before or after they are laid over ranks."""
        if not (math.isfinite(self.skew) and 0 <= self.skew <= MOST):
            raise PassError(f"route: skew is {self.skew:g}, expected a number from 0 to {MOST:g}")
        grouped = [n for g in program.graphs.values() for n in g.nodes if isinstance(n.op, GroupedLinear)]
        if not grouped and self.skew:
            raise PassError("route: the program routes no tokens to experts")
        if all(n.op.skew == self.skew for n in grouped if isinstance(n.op, GroupedLinear)):
            return program
        notes = tuple(n for n in program.notes if not n.startswith(_NOTE))
        law = f"{_NOTE}experts' popularity falls as rank^-{self.skew:g}; figures are the busiest rank's"
        graphs = {name: self._graph(graph) for name, graph in program.graphs.items()}
        return program.replace(graphs=graphs, notes=(*notes, law) if self.skew else notes)

    def _graph(self, graph: Graph) -> Graph:
        """The graph with its types inferred anew: rows that are split by expert are split unevenly."""
        told = {name: op for node in graph.nodes for name, op in self._told(graph, node)}
        if not told:
            return graph
        b = Builder(graph.name)
        new: dict[Value, Value] = {}
        for node in graph.nodes:
            op = told.get(node.name, node.op)
            operands = (new[v] for v in node.operands)
            values = b.insert(node) if isinstance(op, Source) else b.apply(op, *operands, name=node.name)
            new.update(zip(node.values, values, strict=True))
        b.output(*(new[v] for v in graph.outputs))
        return b.graph()

    def _told(self, graph: Graph, node: Node) -> list[tuple[str, Op]]:
        """A grouped product, and the ops that bring its rows, as they are under the skew."""
        op = node.op
        if not isinstance(op, GroupedLinear):
            return []
        found: list[tuple[str, Op]] = [(node.name, replace(op, skew=self.skew))]
        experts, top_k = (op.experts, op.top_k) if self.skew else (0, 0)
        before = {node.name}
        while before:
            earlier = graph[before.pop()]
            if isinstance(earlier.op, AllToAll):
                told = replace(earlier.op, top_k=top_k, experts=experts, skew=self.skew)
                found.append((earlier.name, told))
            if isinstance(earlier.op, Dispatch):
                found.append((earlier.name, replace(earlier.op, experts=experts, skew=self.skew)))
            elif not isinstance(earlier.op, Source):
                before |= {v.node for v in earlier.operands}
        return found
