"""Independent ranks: data-parallel ranks that no op connects. Engines run these ranks as separate servers."""

from __future__ import annotations

from functools import lru_cache

from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement, Tensor


@lru_cache(maxsize=256)
def independent_ranks(*programs: Program) -> tuple[int, tuple[Program, ...]]:
    """Split programs that run together into independent parts: the number of parts, and the programs of one.

    The programs are those of a model and of its draft models. The parts differ along the data-parallel mesh
    axes that no op connects. Without such an axis, there is one part, which consists of the given programs.
    """
    phases = [phase for each in programs for phase in (each, *each.phases.values())]
    nodes = (node for phase in phases for graph in phase.graphs.values() for node in graph.nodes)
    joined = {axis for node in nodes for axis in node.op.joins}
    mesh = programs[0].mesh
    apart = frozenset(mesh.atoms("dp")) - joined
    return mesh.size(apart), tuple(_without(each, apart) if apart else each for each in programs)


def _without(program: Program, axes: frozenset[str]) -> Program:
    """A program without some of the axes of its mesh."""
    left = tuple(axis for axis in program.mesh.axes if axis[0] not in axes)
    return program.replace(
        mesh=Mesh(left, program.mesh.ep, program.mesh.sp),
        graphs={name: _graph(graph, axes) for name, graph in program.graphs.items()},
        phases={name: _without(phase, axes) for name, phase in program.phases.items()},
    )


def _graph(graph: Graph, axes: frozenset[str]) -> Graph:
    def kept(placement: Placement) -> Placement:
        return tuple(axis for axis in placement if axis not in axes)

    def laid(type: Tensor) -> Tensor:
        return type.laid(map(kept, type.placements), kept(type.partial), kept(type.tokens))

    def changed(node: Node) -> Node:
        results, op = tuple(map(laid, node.results)), node.op
        if op.source:
            op = op.typed(results[0])
        elif op.loop:
            op = op.looping(op.loop._replace(gives=tuple(map(laid, op.loop.gives))))
        return Node(node.name, op, node.operands, results)

    return Graph(graph.name, map(changed, graph.nodes), graph.outputs)
