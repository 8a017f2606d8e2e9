"""Graphs that repeat others, rewritten after them: what a body gives is what a `repeat` hands out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.program import Program

T = TypeVar("T")


def inner_first(program: Program, change: Callable[[Graph], Graph]) -> dict[str, Graph]:
    """Each graph as `change` has it, bodies first; it is given graphs that hand out what those then give."""
    done: dict[str, Graph] = {}

    def walk(name: str, path: tuple[str, ...]) -> None:
        graph = program[name]
        for body in {loop.body for loop in graph.loops.values()} - done.keys() - {*path, name}:
            walk(body, (*path, name))
        done[name] = change(_handing(graph, done))

    for name in program.graphs:
        if name not in done:
            walk(name, ())
    return {name: done[name] for name in program.graphs}


def ending(
    program: Program, last: Callable[[Program, str, set[str]], T | None], left: set[str]
) -> dict[str, T]:
    """What `last` finds at the end of each graph, but for those that are left out."""
    return {name: found for name in program.graphs if (found := last(program, name, left)) is not None}


def consistent(
    find: Callable[[set[str]], dict[str, T]], against: Callable[[dict[str, T]], set[str]]
) -> dict[str, T]:
    """What `find` says of bodies, when it is told which to leave out, with none that `against` objects to."""
    left: set[str] = set()
    while True:
        found = find(left)
        if not (more := against(found)):
            return found
        left |= more


def _handing(graph: Graph, bodies: Mapping[str, Graph]) -> Graph:
    """`graph`, with the types that its repeats hand out as the bodies have them."""
    nodes = [_handed(node, bodies) for node in graph.nodes]
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else Graph(graph.name, nodes, graph.outputs)


def _handed(node: Node, bodies: Mapping[str, Graph]) -> Node:
    loop = node.op.loop
    if not loop or not loop.gives or loop.body not in bodies:
        return node
    body = bodies[loop.body]
    gives = tuple(map(body.type, body.outputs[loop.carried :]))
    if gives == loop.gives:
        return node
    op: Any = node.op
    results = (*node.results[: loop.carried], *gives)
    return Node(node.name, replace(op, gives=gives), node.operands, results)
