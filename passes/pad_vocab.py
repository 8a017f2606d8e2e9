"""pad-vocab: pad the rows of embedding and head to a multiple, and cut the logits to the vocabulary size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder, Operands
from llmir.ir.tools.pipeline import Pass, option

_AXIS = "vocab"


@dataclass(frozen=True)
class PadVocab(Pass):
    """Pad embedding, head and bias to a multiple of `to` rows; cut logits where a rank has all of them.

    vLLM and SGLang pad to a multiple of 64 for any tp (DEFAULT_VOCAB_PADDING_SIZE in
    vocab_parallel_embedding.py), and their `LogitsProcessor` cuts the gathered logits. TensorRT-LLM pads to a
    multiple of tp, as `shard` does.
    """

    name: ClassVar[str] = "pad-vocab"

    to: int = option(64, least=1, most=1 << 20)

    def __call__(self, program: Program) -> Program:
        """Pad the tables of each graph."""
        odd = sorted(
            {n for graph in program.graphs.values() for n in map(_rows, graph.sources) if n % self.to}
        )
        if not odd and self != PadVocab():
            raise PassError(f"pad-vocab: to {self.to}: {program.name} has no vocabulary to pad")
        if not odd:
            return program
        graphs = {name: self._graph(graph) for name, graph in program.graphs.items()}
        notes = [f"vocabulary of {n:,} padded to {n + -n % self.to:,}, a multiple of {self.to}" for n in odd]
        return program.replace(graphs=graphs, notes=tuple(dict.fromkeys((*program.notes, *notes))))

    def _graph(self, graph: Graph) -> Graph:
        if not any(_rows(node) % self.to for node in graph.sources):
            return graph

        def visit(b: Builder, node: Node, operands: Operands) -> Sequence[Value] | None:
            if node.op.source:
                rows = _rows(node)
                return b.apply(node.op.widened(_AXIS, -rows % self.to), name=node.name) if rows else None
            made = b.apply(node.op, *operands, name=node.name)
            return [_cut(b, v, old, graph) for v, old in zip(made, node.values, strict=True)]

        return Builder.rebuild(graph, visit)


def _rows(source: Node) -> int:
    """The vocabulary size of a table; 0 for other sources."""
    axes, shape = source.op.axes, source.results[0].shape
    size = shape[axes.index(_AXIS)] if source.op.role == "weight" and _AXIS in axes else 0
    return size if isinstance(size, int) else 0


def _cut(b: Builder, value: Value, old: Value, graph: Graph) -> Value:
    """Cut a value to its original width; for a split value, cut where a later op has the whole value."""
    due, now = graph.type(old), b.type(value)
    if due.shape == now.shape or now.placements[-1]:
        return value
    how: dict[str, Any] = {"elements": due.shape[-1], "block": graph[old.node].op.block}
    return b.cut(value, name=f"cut_{old.node}", **how)
