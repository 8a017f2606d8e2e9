"""slice-sends: what all tensor-parallel ranks hold goes to the next stage once, a slice from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from llmir.build import Builder
from llmir.dataclass import dataclass
from llmir.graph import Graph, Node, Program, Value
from llmir.mesh import Mesh
from llmir.pipeline import Pass
from llmir.tensor import Placement, Tensor


@dataclass(frozen=True)
class SliceSends(Pass):
    """Each tp rank sends a slice of what all of them hold, and the next stage gathers them.

    So do vLLM and SGLang (`send_tensor_dict` of their `GroupCoordinator`): the network carries each value
    once. A size that the ranks do not divide is sent whole. Runs after `stages` and `shard`.
    """

    name: ClassVar[str] = "slice-sends"

    def __call__(self, program: Program) -> Program:
        """Slice before each send, gather after each receive."""
        stages = [program[entry] for entry in program.entries]
        cuts: list[Mapping[int, Placement]] = [{}]
        for graph in stages[:-1]:
            found = {i: _copied(graph.type(v), program.mesh) for i, v in enumerate(graph.outputs)}
            cuts.append({i: over for i, over in found.items() if over})
        if not any(cuts):
            return program
        made = (_stage(graph, *each) for graph, each in zip(stages, pairwise([*cuts, {}]), strict=True))
        return program.replace(graphs={**program.graphs, **{graph.name: graph for graph in made}})


def _copied(type: Tensor, mesh: Mesh) -> Placement:
    """The axes of tp over which a value is copied, if they can split its last dimension."""
    over = tuple(axis for axis in mesh.atoms("tp") if axis not in type.spread)
    size = type.shape[-1]
    parts = mesh.size((*type.placements[-1], *over))
    return over if isinstance(size, int) and size % parts == 0 else ()


def _stage(graph: Graph, received: Mapping[int, Placement], sent: Mapping[int, Placement]) -> Graph:
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
