"""unroll: replace each `repeat` by one copy of its body per iteration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.program import Program
from llmir.ir.tools.loops import iteration
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.verify import MOST_OPS

LONG = 50_000  # a number of ops whose unrolling takes seconds, as does each later pass
LOG = logging.getLogger("llmir")


def written_out(program: Program, name: str) -> int:
    """The number of ops of a graph after unrolling."""
    graph = program[name]
    bodies = (
        (p.times, written_out(program, p.body) - len(program[p.body].inputs)) for p in graph.loops.values()
    )
    return len(graph.nodes) - len(graph.loops) + sum(times * ops for times, ops in bodies)


def _flatten(program: Program, graph: Graph) -> Graph:
    flat: list[Node] = []
    renamed: dict[Value, Value] = {}

    def place(nodes: Iterable[Node], loops: Mapping[str, Layers]) -> None:
        for node in nodes:
            operands = tuple(renamed.get(v, v) for v in node.operands)
            if not (loop := node.op.loop):
                flat.append(Node(node.name, node.op, operands, node.results))
                continue
            given: tuple[Value, ...] = ()
            for layer in loops[node.name]:
                inner = iteration(program, node, loop, layer, operands)
                place(inner.nodes, inner.loops)
                given = tuple(renamed.get(v, v) for v in inner.outputs)
                operands = (*given[: loop.carried], *operands[loop.carried :])
            renamed.update(zip(node.values, given, strict=True))

    place(graph.nodes, program.iterations(graph, Layers()))
    # Sources come first, as in every graph.
    flat.sort(key=lambda n: not n.op.source)
    return Graph(graph.name, flat, (renamed.get(v, v) for v in graph.outputs))


@dataclass(frozen=True)
class Unroll(Pass):
    """Unroll each entry into one flat graph, with unchanged costs.

    The pass announces long work on the logger `llmir`, at level info.
    """

    name: ClassVar[str] = "unroll"

    def __call__(self, program: Program) -> Program:
        """Unroll each entry."""
        if not any(n.op.loop for g in program.graphs.values() for n in g.nodes):
            return program
        ops = sum(written_out(program, entry) for entry in program.entries)
        if ops > MOST_OPS:
            raise PassError(f"unroll: {program.name} has {ops:,} unrolled ops; the limit is {MOST_OPS:,}")
        if ops > LONG:
            LOG.info("unroll writes out %s ops", f"{ops:,}")
        return program.replace(graphs={e: _flatten(program, program[e]) for e in program.entries})
