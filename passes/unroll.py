"""unroll: bodies of `repeat` written out, one copy an iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from llmir.graph import Graph, Node, Program, Value
from llmir.op import Op
from llmir.ops.region import Repeat
from llmir.ops.source import Source, Weight
from llmir.pipeline import Pass


def _numbered(op: Op, layer: int) -> Op:
    """The op with `{layer}` of its checkpoint name filled in."""
    if not isinstance(op, Weight) or "{layer}" not in op.param:
        return op
    return replace(op, param=op.param.replace("{layer}", str(layer)))


def _flatten(program: Program, graph: Graph) -> Graph:
    nodes: list[Node] = []
    renamed: dict[Value, Value] = {}

    def place(node: Node, prefix: str, layer: int, names: dict[Value, Value]) -> None:
        operands = tuple(names.get(v, v) for v in node.operands)
        if isinstance(node.op, Repeat):
            for value, carried in zip(node.values, expand(node, node.op, prefix, operands), strict=True):
                names[value] = carried
            return
        copy = Node(prefix + node.name, _numbered(node.op, layer), operands, node.results)
        names.update(zip(node.values, copy.values, strict=True))
        nodes.append(copy)

    def expand(node: Node, op: Repeat, prefix: str, operands: tuple[Value, ...]) -> tuple[Value, ...]:
        body = program[op.body]
        for i in range(op.times):
            names = {n.values[0]: v for n, v in zip(body.inputs, operands, strict=True)}
            for inner in body.nodes:
                if inner.op.opcode != "input":
                    place(inner, f"{prefix}{node.name}.{op.first + i}.", op.first + i, names)
            operands = (*(names[v] for v in body.outputs), *operands[op.carried :])
        return operands[: op.carried]

    for node in graph.nodes:
        place(node, "", 0, renamed)
    # Sources first, as everywhere.
    nodes.sort(key=lambda n: not isinstance(n.op, Source))
    return Graph(graph.name, nodes, (renamed.get(v, v) for v in graph.outputs))


@dataclass(frozen=True)
class Unroll(Pass):
    """One flat graph for each entry; every cost stays what it was."""

    name: ClassVar[str] = "unroll"

    def __call__(self, program: Program) -> Program:
        """Write out each entry."""
        if not any(isinstance(n.op, Repeat) for g in program.graphs.values() for n in g.nodes):
            return program
        return program.replace(graphs={e: _flatten(program, program[e]) for e in program.entries})
