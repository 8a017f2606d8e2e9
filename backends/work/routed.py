"""What an op among routed experts cannot say alone: the types its layer multiplies, and rows of others."""

from __future__ import annotations

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.mesh import Mesh
from llmir.ir.sizes.polynomial import Size
from llmir.ir.sizes.ragged import most

_BETWEEN = ("moe", "elementwise", "collective")  # kinds of ops that rows go through


@dataclass(frozen=True)
class Experts:
    """Types of the `rows` and `weights` that the grouped products around an op multiply.

    `away` rows belong to experts of other ranks: where ranks slice what all of them have, kernels walk over
    all rows and leave out what is not theirs. An exchange brings a rank its own rows, or its own tokens,
    alone.
    """

    rows: DType
    weights: DType
    away: Size


def experts(graph: Graph, node: Node, mesh: Mesh) -> Experts | None:
    """Of an op from what `dispatch` takes to `combine`; None for all others."""
    before = _before(graph, node)
    first = before[-1] if before[-1].op.copies else None
    product = next((n for n in before if _multiplies(n)), None)
    if product is None and (first or any(user.op.copies for user, _ in graph.users[node.name])):
        product = _after(graph, node)
    if product is None:
        return None
    rows, weights, *_ = graph.operand_types(product)
    away: Size = 0
    if first and not any(n.op.routing and n.op.exchanges for n in before):
        chosen, rows = (graph.type(v) for v in (first.operands[1], first.values[0]))
        came = graph[first.operands[1].node].op.routing
        there = most(rows.shape[0], mesh.size(chosen.placements[0])) if came else chosen.local(mesh).elements
        away = there - rows.local(mesh).shape[0]
    return Experts(rows.dtype, weights.dtype, away)


def _multiplies(node: Node) -> bool:
    """Whether it multiplies routed rows."""
    return bool(node.op.routing and node.op.matrices)


def _before(graph: Graph, node: Node) -> list[Node]:
    """The node and those that brought its rows, as far as `dispatch`."""
    found = [node]
    while not found[-1].op.copies and found[-1].operands:
        earlier = graph[found[-1].operands[0].node]
        if earlier.op.kind not in _BETWEEN or earlier.op.combines:
            break
        found.append(earlier)
    return found


def _after(graph: Graph, node: Node) -> Node | None:
    """The first grouped product that uses what a node gives."""
    names = [node.name]
    for name in names:
        if _multiplies(graph[name]):
            return graph[name]
        names.extend(user.name for user, _ in graph.users[name] if user.name not in names)
    return None
