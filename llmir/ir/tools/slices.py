"""What several ranks hold crosses to the next stage in slices, one from each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.tensor import Placement, Tensor

from .build import Builder


def copied(type: Tensor, mesh: Mesh) -> Placement:
    """The axes of tp over which a value is copied, if they can split its last dimension."""
    over = tuple(axis for axis in mesh.atoms("tp") if axis not in type.spread)
    size = type.shape[-1]
    parts = mesh.size((*type.placements[-1], *over))
    return over if isinstance(size, int) and size % parts == 0 else ()


def in_slices(graph: Graph, received: Mapping[int, Placement], sent: Mapping[int, Placement]) -> Graph:
    """A stage that takes and gives slices: by the number of an input or output, the axes they are over."""
    b = Builder(graph.name)
    new: dict[Value, Value] = {}
    pieces = {graph.inputs[i].values[0]: over for i, over in received.items()}
    ends = {graph.outputs[i].node: over for i, over in sent.items()}
    for node in graph.nodes:
        operands = tuple(new[v] for v in node.operands)
        values = node.values
        if values[0] in pieces:
            op: Any = node.op
            placements = op.type.placements
            split = (*placements[:-1], (*placements[-1], *pieces[values[0]]))
            type = op.type.laid(split, op.type.partial, op.type.tokens)
            made = b.insert(Node(node.name, replace(op, type=type), (), (type,)))
        elif node.operands and node.operands[0] in pieces:
            made = b.apply(node.op, *operands, name=node.name)
            how: dict[str, Any] = {"over": pieces[node.operands[0]], "block": node.op.block}
            last = len(node.results[0].shape) - 1
            made = (b.all_gather(made[0], dim=last, name=f"all_gather_{node.name}", **how),)
        elif node.name in ends:
            how = {"over": ends[node.name], "block": node.op.block}
            last = len(node.results[0].shape) - 1
            piece = b.slice(operands[0], dim=last, name=f"slice_{node.name}", **how)
            made = b.apply(node.op, piece, name=node.name)
        else:
            made = b.insert(Node(node.name, node.op, operands, node.results))
        new |= zip(values, made, strict=True)
    b.output(*(new[v] for v in graph.outputs))
    return b.graph()
