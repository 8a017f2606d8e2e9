"""The meaning of a program: run it in numpy, in float64, on small sizes.

This is how passes are proved: fused = unfused, rolled = unrolled, one piece = in chunks, and the
program of a config = the transformers model with the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from llmir.dim import Binding
from llmir.errors import InputError
from llmir.graph import Graph, Program, Value
from llmir.op import Array, Place
from llmir.ops.region import Repeat
from llmir.ops.rounding import rounded
from llmir.ops.source import Cache, Weight
from llmir.tensor import Tensor

Weights = Callable[[str, Tensor], Array]


@dataclass
class _Run:
    program: Program
    weights: Weights
    caches: dict[str, Array]
    at: Binding
    place: Place
    written: dict[str, Array] = field(default_factory=dict)

    def graph(self, graph: Graph, prefix: str, layer: int, inputs: Mapping[str, Array]) -> list[Array]:
        """The outputs of one execution of `graph`."""
        held: dict[Value, Array] = {}
        for node in graph.nodes:
            op, path = node.op, prefix + node.name
            if op.opcode == "input":
                results: tuple[Array, ...] = (inputs[node.name],)
            elif isinstance(op, Weight):
                name = op.param.replace("{layer}", str(layer)) or path
                results = (rounded(self.weights(name, node.results[0]), node.results[0].dtype),)
            elif isinstance(op, Cache):
                results = (self.cache(path, node.results[0]),)
            elif isinstance(op, Repeat):
                results = tuple(self.repeat(op, path, [held[v] for v in node.operands]))
            else:
                results = op.evaluate([held[v] for v in node.operands], node.results, self.place)
            for value, result, type in zip(node.values, results, node.results, strict=True):
                expected = tuple(map(self.at, type.shape))
                assert result.shape == expected, f"%{path}: {result.shape} is not {expected}"
                held[value] = result
                origin = graph.origin(value)
                if isinstance(origin.op, Cache):
                    self.written[prefix + origin.name] = result
        return [held[v] for v in graph.outputs]

    def repeat(self, op: Repeat, path: str, operands: list[Array]) -> list[Array]:
        """The body, once for each iteration."""
        body = self.program[op.body]
        for layer in range(op.first, op.first + op.times):
            inputs = {node.name: value for node, value in zip(body.inputs, operands, strict=True)}
            operands[: op.carried] = self.graph(body, f"{path}.{layer}.", layer, inputs)
        return operands[: op.carried]

    def cache(self, path: str, type: Tensor) -> Array:
        """What the caller gave, or a cache before the first step."""
        shape = tuple(map(self.at, type.shape))
        if path not in self.caches and 0 not in shape:
            raise InputError(f"%{path}: a cache of shape {shape} is needed, and none is given")
        return self.caches.get(path, np.zeros(shape))


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    weights: Weights,
    caches: Mapping[str, Array] | None = None,
) -> tuple[list[Array], dict[str, Array]]:
    """The outputs of one step, and the caches after it (which the next step is given).

    `inputs` are by name; their shapes say how many sequences and new tokens there are, and `caches` how many
    tokens came before. `weights` gives the array of a checkpoint name (or of a path, for weights without
    one) and a type, to whose element type it is then rounded. Shapes are llmir's own, with heads apart.
    """
    (entry,) = program.entries
    symbols = {"B": 1, "T": 1, "C": 0}
    for node in program[entry].inputs:
        if node.name not in inputs:
            raise InputError(f"input %{node.name} of @{entry} is not given")
        for size, length in zip(node.results[0].shape, inputs[node.name].shape, strict=True):
            symbols |= {str(size): length} if str(size) in symbols else {}
    for cache in (caches or {}).values():
        symbols["C"] = cache.shape[1]
    run = _Run(program, weights, dict(caches or {}), Binding(**symbols), Place(cached=symbols["C"]))
    return run.graph(program[entry], "", 0, inputs), run.written
