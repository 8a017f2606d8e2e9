"""route: set the routing law, by which tokens choose experts; the law determines the load of each rank."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError, VerifyError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.program import Program
from llmir.ir.sizes.routing_laws import CHANCE, MAX_SKEW, Law, Zipf, law
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.pipeline import Pass, option

_NOTE = "routing: "


@dataclass(frozen=True)
class Route(Pass):
    """Set the routing law; work and memory are those of the busiest rank.

    Options: skew (the popularity of the i-th most popular expert is i^-skew); or routing, the text of any
    law: chance (the default), even, zipf:skew or zipf(skew), power_law:exponent, groups.
    """

    name: ClassVar[str] = "route"

    skew: float = option(0.0, least=0, most=MAX_SKEW)
    routing: str = ""

    def __call__(self, program: Program) -> Program:
        """Set the law of the routing ops, before or after sharding."""
        by = self._law()
        nodes = [n for graph in program.graphs.values() for n in graph.nodes]
        grouped = [n.op for n in nodes if n.op.routing and n.op.matrices]
        if not grouped and (self.skew or self.routing):
            said = f"routing {self.routing}" if self.routing else f"skew {self.skew:g}"
            raise PassError(f"route: {said}: program {program.name!r} routes no tokens to experts")
        if all(op.routing == _instead(op.routing, by) for op in grouped):
            return program
        notes = tuple(n for n in program.notes if not n.startswith(_NOTE))
        note = f"{_NOTE}{by.about}; figures are the busiest rank's"
        graphs = {name: self._graph(graph, by) for name, graph in program.graphs.items()}
        return program.replace(graphs=graphs, notes=notes if by == CHANCE else (*notes, note))

    def _law(self) -> Law:
        try:
            if self.routing:
                if self.skew:
                    raise PassError("route: skew cannot be combined with routing; leave one of them out")
                by = law(self.routing)
                if by.alone:
                    raise PassError(f"route: {by} describes the tokens of one rank, not all tokens")
                if by.instead(CHANCE) != CHANCE:
                    raise PassError(
                        f"route: {by} states the places of experts; shard{{redundant=…}} copies experts"
                    )
                return by
            return Zipf(self.skew) if self.skew else CHANCE
        except VerifyError as error:
            raise PassError(f"route: {error}") from None

    def _graph(self, graph: Graph, by: Law) -> Graph:
        """Infer the types of a graph again, because the law changes how routed rows are split by expert."""
        if not any(node.op.routing for node in graph.nodes):
            return graph

        def visit(b: Builder, node: Node, operands: Operands) -> tuple[Value, ...] | None:
            if not node.op.routing:
                return None
            return b.apply(node.op.routed_by(_instead(node.op.routing, by)), *operands, name=node.name)

        return Builder.rebuild(graph, visit)


def _instead(routing: str, by: Law) -> str:
    """Replace a law, and keep the placement of experts."""
    return str(law(routing).instead(by))
