"""Run a program in NumPy, in float64, on small sizes and on all ranks in lockstep.

`interpret` runs one step and returns outputs and caches. Tests use it to check passes: sharded equals
unsharded, fused equals unfused, rolled equals unrolled, chunks equal the whole prompt, and a program equals
the transformers model with equal weights.

`MeshRanks` stores values on all ranks of a mesh: a value is a list with one array per rank. Pieces have the
length `ceildiv`; the last ones may be shorter. Collectives move real data between the arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from llmir.base.arguments import array
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import read_only
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, ExecutionPlace, Loop, Op, RankGroup
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.ops.collective import flat
from llmir.ir.ops.quant import round_trip
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import T, after_step

# Values on all ranks

Spread = list[Array]


@dataclass(frozen=True)
class MeshRanks:
    """The ranks of a mesh, first axis outermost."""

    mesh: Mesh

    @cached_property
    def all(self) -> list[dict[str, int]]:
        """Each rank's coordinate on each axis."""
        names = [name for name, _ in self.mesh.axes]
        sizes = [range(size) for _, size in self.mesh.axes]
        return [dict(zip(names, at, strict=True)) for at in itertools.product(*sizes)]

    def index(self, rank: dict[str, int], over: Placement) -> int:
        """The index of the piece over some axes on a rank."""
        place = 0
        for axis in over:
            place = place * self.mesh.size((axis,)) + rank[axis]
        return place

    def piece(self, length: int, rank: dict[str, int], over: Placement) -> slice:
        """A piece of a dimension."""
        size = -(-length // self.mesh.size(over))
        start = min(self.index(rank, over) * size, length)
        return slice(start, min(start + size, length))

    def local(self, whole: Array, type: Tensor, rank: dict[str, int]) -> Array:
        """The part of a global array on a rank."""
        lengths = zip(whole.shape, type.placements, strict=True)
        part = whole[tuple(self.piece(n, rank, p) for n, p in lengths)]
        return self.tokens(part, rank, type.tokens) if type.tokens else part

    def tokens(self, x: Array, rank: dict[str, int], over: Placement) -> Array:
        """A rank's piece of sequences × positions, along the first dimension."""
        whole = flat(x)
        return whole[self.piece(len(whole), rank, over)]

    def spread(self, whole: Array, type: Tensor) -> Spread:
        """A global array on all ranks."""
        return [self.local(whole, type, rank) for rank in self.all]

    def whole(self, pieces: Spread, type: Tensor, shape: tuple[int, ...]) -> Array:
        """The global array of these pieces; `type` is not a partial sum and its tokens are whole."""
        found = np.zeros(shape)
        for rank, piece in zip(self.all, pieces, strict=True):
            lengths = zip(shape, type.placements, strict=True)
            found[tuple(self.piece(n, rank, p) for n, p in lengths)] = piece
        return found

    def groups(self, over: Placement) -> list[list[int]]:
        """The groups of ranks that differ only in `over`, in the order of their pieces."""
        found: dict[tuple[int, ...], list[int]] = {}
        for i, rank in enumerate(self.all):
            found.setdefault(tuple(v for k, v in rank.items() if k not in over), []).append(i)
        return [sorted(g, key=lambda i: self.index(self.all[i], over)) for g in found.values()]

    def run(self, op: Op, pieces: Spread, at: RankGroup) -> Spread:
        """A collective on all ranks."""
        found = list(pieces)
        for group in self.groups(op.joins):
            members = [pieces[i] for i in group]
            for place, i in enumerate(group):
                found[i] = op.meet(members, place, at)
        return found


# One step of a program

Weights = Callable[[str, Tensor], Array]


@dataclass
class _Run:
    program: Program
    weights: Weights
    caches: Mapping[str, Spread]
    at: Binding
    seen: dict[str, Array] | None = None
    written: dict[str, Spread] = field(default_factory=dict)

    @cached_property
    def meeting(self) -> RankGroup:
        return RankGroup(int(self.at.symbols["T"]))

    @cached_property
    def ranks(self) -> MeshRanks:
        return MeshRanks(self.program.mesh)

    def step(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The whole outputs of one micro-batch through every stage."""
        handed: list[Spread] = []
        for entry in self.program.entries:
            graph = self.program[entry]
            received, asked = graph.inputs[: len(handed)], graph.inputs[len(handed) :]
            given = {n.name: self.ranks.spread(inputs[n.name], n.results[0]) for n in asked}
            given |= {n.name: x for n, x in zip(received, handed, strict=True)}
            handed = self.graph(graph, "", 0, given)
        types = [graph.type(v) for v in graph.outputs]
        shapes = [tuple(map(self.at, t.shape)) for t in types]
        return [self.ranks.whole(*each) for each in zip(handed, types, shapes, strict=True)]

    def graph(self, graph: Graph, prefix: str, layer: int, inputs: Mapping[str, Spread]) -> list[Spread]:
        """The outputs of one execution of `graph`, whose path is `layer`."""
        loops = self.program.iterations(graph, Layers(layer))
        held: dict[Value, Spread] = {}
        for node in graph.nodes:
            op, path = node.op.numbered(layer), prefix + node.name
            operands = [held[v] for v in node.operands]
            if op.source:
                results = [inputs.get(node.name) or self.held(op, path, node.results[0])]
            elif op.loop:
                results = self.repeat(op.loop, path, operands, loops[node.name])
            elif op.joins:
                tokens = node.results[0].shape[1:2] or (T,)  # of a sequence, if they are split together
                meeting = replace(self.meeting, positions=int(self.at(tokens[0])))
                moved = [
                    self.ranks.run(op, x, meeting) for x in operands[: len(node.results) if op.moves else 1]
                ]
                results = moved if op.moves else self.compute(op, graph, node, [*moved, *operands[1:]])
            else:
                results = self.compute(op, graph, node, operands)
            for value, result in zip(node.values, results, strict=True):
                held[value] = result
                self.see(prefix + str(value)[1:], graph.type(value), result)
                origin = graph.origin(value)
                if origin.op.role == "cache":
                    self.written[prefix + origin.name] = self.kept(origin.results[0], result)
        return [held[v] for v in graph.outputs]

    def kept(self, type: Tensor, pieces: Spread) -> Spread:
        """The last rows of a cache, as many as its type has after the step."""
        for dim, (size, over) in enumerate(zip(type.shape, type.placements, strict=True)):
            most = int(self.at(after_step(size)))
            if not over and size != after_step(size):
                pieces = [x.take(range(max(x.shape[dim] - most, 0), x.shape[dim]), dim) for x in pieces]
        return pieces

    def see(self, path: str, type: Tensor, pieces: Spread) -> None:
        """Record a value if this is requested and the value can be assembled (it is no partial sum and has no
        routed rows).
        """
        if self.seen is None or type.partial or type.tokens:
            return
        whole = np.empty(tuple(map(self.at, type.shape)))
        places = (self.ranks.local(whole, type, rank).shape for rank in self.ranks.all)
        if all(piece.shape == shape for piece, shape in zip(pieces, places, strict=True)):
            self.seen[path] = self.ranks.whole(pieces, type, whole.shape)

    def compute(self, op: Op, graph: Graph, node: Node, operands: list[Spread]) -> list[Spread]:
        """Run an ordinary op rank by rank, with the attributes of its layer."""
        types = graph.operand_types(node)
        try:
            each = [
                op.evaluate([o[i] for o in operands], node.results, self.place(node, types, rank))
                for i, rank in enumerate(self.ranks.all)
            ]
        except IndexError as error:  # the table lacks this row
            raise InputError(f"%{node.name}: {error}") from None
        return [list(result) for result in zip(*each, strict=True)]

    def place(self, node: Node, types: tuple[Tensor, ...], rank: dict[str, int]) -> ExecutionPlace:
        """The first indices of the local axes of `node` on a rank."""
        new = int(self.at.symbols["T"])
        origins: dict[str, int] = {}
        for term, type in zip(node.op.equation(types).operands, types, strict=True):
            for d, size, placement in zip(term, type.shape, type.placements, strict=True):
                # A layer that sees fewer tokens sees the last ones.
                before = max(new - int(self.at(size)), 0) if d.axes[0] == "t" else 0
                if placement or before:
                    start = self.ranks.piece(self.at(size), rank, placement).start
                    origins[d.axes[0]] = before + start
        leads = self.ranks.index(rank, node.results[0].partial) == 0
        return ExecutionPlace(int(self.at.symbols["C"]), new, origins, leads)

    def repeat(self, loop: Loop, path: str, operands: list[Spread], layers: Layers) -> list[Spread]:
        """The results of the body, once for each iteration."""
        body = self.program[loop.body]
        for layer in layers:
            inputs = {node.name: value for node, value in zip(body.inputs, operands, strict=True)}
            results = self.graph(body, f"{path}.{layer}.", layer, inputs)
            operands[: loop.carried] = results[: loop.carried]
        return results

    def held(self, op: Op, path: str, type: Tensor) -> Spread:
        """A weight, by its name in a checkpoint or its path, or a cache."""
        return self.cache(path, type) if op.role == "cache" else self.weight(op, op.param or path)

    def weight(self, op: Any, name: str) -> Spread:
        """The caller's value of a weight; InputError if it has another shape."""
        own: Tensor = op.own
        found, shape = array(f"weight {name}", self.weights(name, own)), tuple(map(self.at, own.shape))
        if found.shape != shape:
            raise InputError(f"weight {name}: expected shape {shape}, got {found.shape}")
        return self.ranks.spread(op.filled(round_trip(found, own.dtype)), op.type)

    def cache(self, path: str, type: Tensor) -> Spread:
        """The caller's value, or an empty cache before the first step."""
        shape = tuple(map(self.at, type.shape))
        if path not in self.caches and self.at.symbols["C"]:
            raise InputError(f"%{path}: a cache of shape {shape} is required, and none is given")
        empty = self.ranks.spread(np.zeros(shape), type)
        found = self.caches.get(path) or empty
        for given, due in zip(found, empty, strict=True):
            if given.shape != due.shape:
                after = f"after {self.at.symbols['C']} tokens"
                raise InputError(f"%{path}: expected a cache of shape {due.shape} {after}, got {given.shape}")
        return found


def interpret(
    program: Program,
    inputs: Mapping[str, Array],
    weights: Weights,
    caches: Mapping[str, Spread] | None = None,
    *,
    context: int = 0,
    phase: str = "",
    seen: dict[str, Array] | None = None,
) -> tuple[list[Array], dict[str, Spread]]:
    """Run one step. Return the whole outputs, and the caches after the step by rank.

    Each micro-batch passes through the entries in sequence, on the ranks of each entry.

    Args:
        inputs: Whole arrays by name. Their shapes give the numbers of sequences and new tokens.
        weights: Returns the whole array for a checkpoint name (or a path, for weights without one) and a
            type; the array is rounded to the dtype. Shapes are llmir's, with separate heads.
        caches: The caches of the previous step, by rank.
        context: The number of earlier tokens.
        phase: The phase. The default is decode for one new token per sequence, else prefill.
        seen: Receives each value of the last micro-batch that is not a partial sum, by path.
    """
    if not phase:
        most = max((x.shape[1] for x in inputs.values() if x.ndim > 1), default=1)
        phase = "decode" if most == 1 else "prefill"
    program = program.phase(phase)
    symbols = {"B": 1, "T": 1, "C": context}
    for node in caller_inputs(program):
        if node.name not in inputs:
            raise InputError(f"input %{node.name} is not given")
        shape, type = inputs[node.name].shape, node.results[0]
        if type.dtype.kind == "int" and not (
            inputs[node.name].dtype.kind in "iu" and np.all(inputs[node.name] >= 0)
        ):
            raise InputError(f"input %{node.name}: expected integers from 0 up, as {type} holds")
        if len(shape) != len(node.results[0].shape):
            raise InputError(f"input %{node.name}: expected {node.results[0]}, got shape {shape}")
        for size, length in zip(node.results[0].shape, shape, strict=True):
            symbols |= {str(size): length} if str(size) in symbols else {}
    for path, cache in (caches or {}).items():
        if len(cache) != program.mesh.devices:
            raise InputError(f"%{path}: expected a cache for each of {program.mesh.devices} ranks")
    parts = program.micro_batches
    if symbols["B"] % parts:
        raise InputError(f"{symbols['B']} sequences cannot go in {parts} equal micro-batches")
    symbols["B"] //= parts
    found: list[list[Array]] = []
    written: dict[str, Spread] = {}
    for part in range(parts):
        key = f"{part}/" if parts > 1 else ""
        ours = {k.removeprefix(key): v for k, v in (caches or {}).items() if k.startswith(key)}
        run = _Run(program, weights, ours, Binding(**symbols), seen)
        found.append(
            run.step({n.name: _part(inputs[n.name], n, part, parts) for n in caller_inputs(program)})
        )
        written |= {key + k: v for k, v in run.written.items()}
    types = [program[program.entries[-1]].type(v) for v in program[program.entries[-1]].outputs]
    whole = zip(types, zip(*found, strict=True), strict=True)
    outputs = [np.concatenate(each, axis=_batch(t)) if parts > 1 else each[0] for t, each in whole]
    # Copies, because values that pass through belong to the caller.
    kept = {path: [read_only(np.array(x)) for x in pieces] for path, pieces in written.items()}
    return list(map(read_only, outputs)), kept


def caller_inputs(program: Program) -> list[Node]:
    """The inputs that the caller supplies: those of each entry, except the results of the previous entry."""
    handed = [0, *(len(program[entry].outputs) for entry in program.entries[:-1])]
    pairs = zip(program.entries, handed, strict=True)
    return [node for entry, count in pairs for node in program[entry].inputs[count:]]


def _batch(type: Tensor) -> int:
    """The dimension that counts sequences."""
    return [str(size) for size in type.shape].index("B")


def _part(x: Array, node: Node, part: int, parts: int) -> Array:
    """A micro-batch of an input; the whole input if it has no sequences."""
    type = node.results[0]
    return np.split(x, parts, axis=_batch(type))[part] if parts > 1 and "B" in map(str, type.shape) else x
