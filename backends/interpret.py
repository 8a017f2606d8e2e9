"""The meaning of a program: run it in numpy, in float64, on small sizes and on all ranks in lockstep.

This is how passes are proved: sharded = unsharded, fused = unfused, rolled = unrolled, one piece = in chunks,
and the program of a config = the transformers model with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from llmir.backends.ranks import Ranks, Spread
from llmir.dim import Binding
from llmir.errors import InputError
from llmir.graph import Graph, Node, Program, Value
from llmir.op import Array, Place
from llmir.ops.collective import Collective
from llmir.ops.region import Repeat
from llmir.ops.rounding import rounded
from llmir.ops.source import Cache, Weight
from llmir.tensor import Tensor

Weights = Callable[[str, Tensor], Array]


@dataclass
class _Run:
    program: Program
    weights: Weights
    caches: Mapping[str, Spread]
    at: Binding
    written: dict[str, Spread] = field(default_factory=dict)

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.program.mesh)

    def graph(self, graph: Graph, prefix: str, layer: int, inputs: Mapping[str, Spread]) -> list[Spread]:
        """The outputs of one execution of `graph`."""
        held: dict[Value, Spread] = {}
        for node in graph.nodes:
            op, path = node.op, prefix + node.name
            operands = [held[v] for v in node.operands]
            if op.opcode == "input":
                results = [inputs[node.name]]
            elif isinstance(op, Weight):
                name = op.param.replace("{layer}", str(layer)) or path
                results = [self.weight(name, node.results[0])]
            elif isinstance(op, Cache):
                results = [self.cache(path, node.results[0])]
            elif isinstance(op, Repeat):
                results = self.repeat(op, path, operands)
            elif isinstance(op, Collective):
                results = [self.ranks.run(op, operands[0], int(self.at.symbols["T"]))]
            else:
                results = self.compute(graph, node, operands)
            for value, result in zip(node.values, results, strict=True):
                held[value] = result
                origin = graph.origin(value)
                if isinstance(origin.op, Cache):
                    self.written[prefix + origin.name] = result
        return [held[v] for v in graph.outputs]

    def compute(self, graph: Graph, node: Node, operands: list[Spread]) -> list[Spread]:
        """An ordinary op, rank by rank."""
        types = graph.operand_types(node)
        each = [
            node.op.evaluate([o[i] for o in operands], node.results, self.place(node, types, rank))
            for i, rank in enumerate(self.ranks.all)
        ]
        return [list(result) for result in zip(*each, strict=True)]

    def place(self, node: Node, types: tuple[Tensor, ...], rank: dict[str, int]) -> Place:
        """Where the local axes of `node` begin on a rank."""
        origins = {
            d.axes[0]: self.ranks.piece(self.at(size), rank, placement).start
            for term, type in zip(node.op.equation(types).operands, types, strict=True)
            for d, size, placement in zip(term, type.shape, type.placements, strict=True)
            if placement
        }
        leads = self.ranks.index(rank, node.results[0].partial) == 0
        return Place(int(self.at.symbols["C"]), origins, leads)

    def repeat(self, op: Repeat, path: str, operands: list[Spread]) -> list[Spread]:
        """The body, once for each iteration."""
        body = self.program[op.body]
        for layer in range(op.first, op.first + op.times):
            inputs = {node.name: value for node, value in zip(body.inputs, operands, strict=True)}
            operands[: op.carried] = self.graph(body, f"{path}.{layer}.", layer, inputs)
        return operands[: op.carried]

    def weight(self, name: str, type: Tensor) -> Spread:
        """What the caller gives for a weight; `InputError` if it has another shape."""
        found, shape = self.weights(name, type), tuple(map(self.at, type.shape))
        if found.shape != shape:
            raise InputError(f"weight {name}: expected shape {shape}, got {found.shape}")
        return self.ranks.spread(rounded(found, type.dtype), type)

    def cache(self, path: str, type: Tensor) -> Spread:
        """What the caller gave, or a cache before the first step."""
        shape = tuple(map(self.at, type.shape))
        if path not in self.caches and 0 not in shape:
            raise InputError(f"%{path}: a cache of shape {shape} is needed, and none is given")
        return self.caches.get(path) or self.ranks.spread(np.zeros(shape), type)


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    weights: Weights,
    caches: Mapping[str, Spread] | None = None,
) -> tuple[list[Array], dict[str, Spread]]:
    """The outputs of one step, whole, and the caches after it, by rank (which the next step is given).

    `inputs` are whole and by name; their shapes say how many sequences and new tokens there are, and `caches`
    how many tokens came before. `weights` gives the whole array of a checkpoint name (or of a path, for
    weights without one) and a type, to whose element type it is then rounded. Shapes are llmir's own, with
    heads apart.
    """
    (entry,) = program.entries
    graph = program[entry]
    symbols = {"B": 1, "T": 1, "C": 0}
    for node in graph.inputs:
        if node.name not in inputs:
            raise InputError(f"input %{node.name} of @{entry} is not given")
        shape = inputs[node.name].shape
        if len(shape) != len(node.results[0].shape):
            raise InputError(f"input %{node.name}: expected {node.results[0]}, got shape {shape}")
        for size, length in zip(node.results[0].shape, shape, strict=True):
            symbols |= {str(size): length} if str(size) in symbols else {}
    for cache in (caches or {}).values():
        symbols["C"] = cache[0].shape[1]
    run = _Run(program, weights, caches or {}, Binding(**symbols))
    given = {n.name: run.ranks.spread(inputs[n.name], n.results[0]) for n in graph.inputs}
    types = [graph.type(v) for v in graph.outputs]
    outputs = [
        run.ranks.whole(pieces, type, tuple(map(run.at, type.shape)))
        for pieces, type in zip(run.graph(graph, "", 0, given), types, strict=True)
    ]
    return outputs, run.written
