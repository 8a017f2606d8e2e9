"""Copies of experts on other ranks: widened weights, and for each token one of an expert's copies."""

from __future__ import annotations

from typing import Any

from llmir.base.errors import PassError, VerifyError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.program import Program
from llmir.ir.sizes.replicas import Replicas
from llmir.ir.sizes.routing_laws import law
from llmir.ir.tools.build import Builder

_AXIS = "expert"


def replicated(program: Program, redundant: int, ep: int) -> Program:
    """The program with so many `redundant` experts, to be laid over `ep` ranks; PassError where none can be.

    Which experts are copied depends on their loads, and matters to costs alone (`routing.replicas`).
    """
    graphs = program.graphs.values()
    counts = {_count(node) for graph in graphs for node in graph.sources} - {0}
    if not counts:
        raise PassError(f"shard: redundant is {redundant}, but {program.name} has no experts")
    if any(node.op.routing.startswith(Replicas.word) for graph in graphs for node in graph.nodes):
        raise PassError(f"shard: redundant is {redundant}, but {program.name} has copies of experts already")
    if ep == 1:
        raise PassError(f"shard: redundant is {redundant}, and copies lie on other ranks; say ep too")
    for count in counts:
        if (count + redundant) % ep or redundant > count * (ep - 1):
            first, *more = range(-count % ep or ep, count * (ep - 1) + 1, ep)
            fit = f"{first}, {first + ep}, … {more[-1]}" if more else str(first)
            fact = f"{count} experts and {redundant} copies do not lie evenly on {ep} ranks"
            raise PassError(f"shard: redundant: {fact}; expected {fit}")
    notes = [
        f"{n} experts and {redundant} copies of the busiest on {ep} ranks, {(n + redundant) // ep} each"
        for n in sorted(counts)
    ]
    try:
        graphs_after = {name: _graph(graph, redundant) for name, graph in program.graphs.items()}
    except VerifyError as error:
        raise PassError(f"shard: redundant: {error}") from None
    return program.replace(graphs=graphs_after, notes=tuple(dict.fromkeys((*program.notes, *notes))))


def _count(source: Node) -> int:
    """The experts of a weight; 0 of what has none."""
    axes, shape = source.op.axes, source.results[0].shape
    size = shape[axes.index(_AXIS)] if source.op.role == "weight" and _AXIS in axes else 0
    return size if isinstance(size, int) else 0


def _graph(graph: Graph, redundant: int) -> Graph:
    if not any(map(_count, graph.sources)):
        return graph
    b = Builder(graph.name)
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        op: Any = node.op
        operands = [new[v] for v in node.operands]
        if op.source:
            op = op.widened(_AXIS, redundant) if _count(node) else op
            made = b.insert(Node(node.name, op, (), (op.type,)))
        else:
            if op.copies and op.routing:
                how: dict[str, Any] = {"experts": op.experts, "places": op.experts + redundant}
                how |= {"block": op.block, "name": f"pick_replica_{node.name}"}
                operands[1] = b.pick_replica(operands[1], **how)
            if op.routing:
                op = op.routed_by(str(Replicas(op.experts + redundant, law(op.routing))))
            made = b.apply(op, *operands, name=node.name)
        new.update(zip(node.values, made, strict=True))
    b.output(*(new[v] for v in graph.outputs))
    return b.graph()
