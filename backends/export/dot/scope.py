"""Graphs where they run: a body of `repeat` once, or once an iteration; and where their values are from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.op import Loop
from llmir.ir.core.program import Program


@dataclass(eq=False)
class Scope:
    """A graph where it runs: `path` numbers iterations that are written out, `key` is as in the report."""

    program: Program
    graph: Graph
    unrolled: bool
    path: str = ""
    key: str = ""
    layer: int = 0
    outer: tuple[Scope, Node] | None = None
    previous: Scope | None = None
    runs: dict[str, list[Scope]] = field(default_factory=dict)

    def inner(self, node: Node, loop: Loop) -> list[Scope]:
        """One scope, or one for each iteration if unrolled."""
        if node.name not in self.runs:
            runs: list[Scope] = []
            body, inside = self.program[loop.body], f"{node.name}."
            layers = self.program.iterations(self.graph, Layers(self.layer))[node.name]
            for layer in layers if self.unrolled else [layers.first]:
                path = f"{self.path}{inside}{f'{layer}.' if self.unrolled else ''}"
                before = runs[-1] if runs else None
                key, outer = self.key + inside, (self, node)
                runs.append(Scope(self.program, body, self.unrolled, path, key, layer, outer, before))
            self.runs[node.name] = runs
        return self.runs[node.name]

    def ops(self) -> Iterator[tuple[Scope, Node]]:
        """What runs in it, in schedule order."""
        for node in self.graph.nodes:
            if node.op.loop:
                for scope in self.inner(node, node.op.loop):
                    yield from scope.ops()
            elif node.op.runs:
                yield self, node

    def origin(self, value: Value, name: str = "") -> tuple[str, str] | None:
        """The path of the op or input that gives a value, and what its innermost scope calls it."""
        node = self.graph[value.node]
        if node.op.loop:
            last = self.inner(node, node.op.loop)[-1]
            return last.origin(last.graph.outputs[value.result], name)
        if node.op.role != "activation" or node.op.zero:
            return None
        if node.op.source and self.outer:
            scope, repeat = self.outer
            slot = self.graph.inputs.index(node)
            if self.previous and repeat.op.loop and slot < repeat.op.loop.carried:
                return self.previous.origin(self.graph.outputs[slot], node.name)
            return scope.origin(repeat.operands[slot], node.name)
        if node.op.source and self.previous:
            slot = self.graph.inputs.index(node)
            if slot < len(self.previous.graph.outputs):
                return self.previous.origin(self.previous.graph.outputs[slot], node.name)
        return self.path + node.name, name or (node.name if node.op.source else "hidden")


def scopes(program: Program, *, unrolled: bool) -> list[Scope]:
    """The entries, each after the one whose outputs it is given."""
    found: list[Scope] = []
    for entry in program.entries:
        prefix = program.prefix(entry)
        before = found[-1] if found else None
        found.append(Scope(program, program[entry], unrolled, prefix, prefix, previous=before))
    return found
