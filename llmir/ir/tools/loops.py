"""Loops and pipeline cuts: rewrites of graphs with `repeat`, unrolled iterations, and stages.

`inner_first` rewrites bodies before the graphs that repeat them. `iteration` unrolls one iteration of a loop.
`PipelineCut` assigns ops to stages, and finds the values that cross between stages. `in_slices` lets each
tensor-parallel rank send one slice of a replicated value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Loop
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Placement, Tensor

from .build import Builder, Operands

# --- Graphs with repeats ---

T = TypeVar("T")


def inner_first(program: Program, change: Callable[[Graph], Graph]) -> dict[str, Graph]:
    """Apply a function to each graph of a program, bodies of loops first.

    Args:
        program: The program.
        change: The function from a graph to a graph. The `repeat` ops of its argument have the result types
            of their changed bodies.

    Returns:
        The new graphs by name.

    >>> from llmir.api.load import load
    >>> sorted(inner_first(load("gpt2"), lambda graph: graph))
    ['layer', 'main']
    """
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
    """Call `last` for each graph, without the excluded names; return the results that are not None."""
    return {name: found for name in program.graphs if (found := last(program, name, left)) is not None}


def consistent(
    find: Callable[[set[str]], dict[str, T]], against: Callable[[dict[str, T]], set[str]]
) -> dict[str, T]:
    """Repeat `find`, and exclude the names that `against` rejects, until `against` rejects no name."""
    left: set[str] = set()
    while True:
        found = find(left)
        if not (more := against(found)):
            return found
        left |= more


def _handing(graph: Graph, bodies: Mapping[str, Graph]) -> Graph:
    """The graph, in which the result types of each loop are those of its body."""
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
    results = (*node.results[: loop.carried], *gives)
    return Node(node.name, node.op.looping(loop._replace(gives=gives)), node.operands, results)


# --- Slices sent between stages ---


def copied(type: Tensor, mesh: Mesh) -> Placement:
    """The tp axes over which a value is replicated; () if these axes cannot split its last dimension."""
    over = tuple(axis for axis in mesh.atoms("tp") if axis not in type.spread)
    size = type.shape[-1]
    parts = mesh.size((*type.placements[-1], *over))
    return over if isinstance(size, int) and size % parts == 0 else ()


def in_slices(graph: Graph, received: Mapping[int, Placement], sent: Mapping[int, Placement]) -> Graph:
    """Rebuild a stage with sliced inputs and outputs; the arguments map their numbers to the slicing axes."""
    pieces = {graph.inputs[i].values[0]: over for i, over in received.items()}
    ends = {graph.outputs[i].node: over for i, over in sent.items()}

    def visit(b: Builder, node: Node, operands: Operands) -> Sequence[Value] | None:
        type, block = node.results[0], node.op.block
        last = len(type.shape) - 1
        if over := pieces.get(node.values[0]):
            split = (*type.placements[:-1], (*type.placements[-1], *over))
            return b.apply(node.op.typed(type.laid(split, type.partial, type.tokens)), name=node.name)
        if node.operands and (over := pieces.get(node.operands[0])):
            (made,) = b.apply(node.op, *operands, name=node.name)
            return (b.all_gather(made, dim=last, over=over, name=f"all_gather_{node.name}", block=block),)
        if over := ends.get(node.name):
            piece = b.slice(operands[0], dim=last, over=over, name=f"slice_{node.name}", block=block)
            return b.apply(node.op, piece, name=node.name)
        return None

    return Builder.rebuild(graph, visit)


# --- Iterations and pipeline stages ---


@dataclass(frozen=True)
class Iteration:
    """One unrolled iteration of a `repeat`, for insertion into the graph that contains the loop."""

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    loops: dict[str, Layers]  # layer numbers of each nested `repeat`


def iteration(program: Program, node: Node, loop: Loop, layer: int, operands: Sequence[Value]) -> Iteration:
    """Build the ops of one iteration of a loop, for the graph that contains the loop.

    Args:
        program: The program.
        node: The `repeat` op.
        loop: Its loop.
        layer: The first layer of the iteration. It replaces `{layer}` in names of checkpoint tensors.
        operands: The operands of the iteration.

    Returns:
        An `Iteration`. The names of its ops begin with the path of the iteration.

    >>> from llmir.api.load import load
    >>> program = load("gpt2")
    >>> node = next(node for node in program["main"].nodes if node.op.loop)
    >>> iteration(program, node, node.op.loop, 3, node.operands).nodes[0].name.startswith("layer.3.")
    True
    """
    body, prefix = program[loop.body], f"{node.name}.{layer}."
    given = {i.values[0]: value for i, value in zip(body.inputs, operands, strict=True)}

    def value(inner: Value) -> Value:
        return given.get(inner, Value(prefix + inner.node, inner.result))

    nodes = (
        Node(prefix + n.name, n.op.numbered(layer), tuple(map(value, n.operands)), n.results)
        for n in body.nodes
        if n.values[0] not in given
    )
    loops = {prefix + name: found for name, found in program.iterations(body, Layers(layer)).items()}
    return Iteration(tuple(nodes), tuple(map(value, body.outputs)), loops)


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Distribute layers evenly over stages; remaining layers go to the stages just before the last stage.

    >>> even(126, 4), even(7, 3)
    ((31, 32, 32, 31), (2, 3, 2))
    """
    size, more = divmod(layers, stages)
    return tuple(size + (stages - 1 - more <= i < stages - 1) for i in range(stages))


def cut_sizes(program: Program, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """The number of layers in each stage, from explicit numbers or from a number of equal stages.

    Raises PassError if the program cannot be split in this way.
    """
    if len(program.entries) > 1:
        raise PassError(f"stages: {program.name} is in {len(program.entries)} stages already")
    (entry,) = program.entries
    if not program[entry].loops:
        raise PassError(f"stages: {program.name} has no repeated layers to split; run stages before unroll")
    layers = program.depth(entry)
    stages = sizes if isinstance(sizes, int) else len(sizes)
    if stages > layers:
        raise PassError(f"stages: pp {stages}: {program.name} has only {layers} layers")
    if isinstance(sizes, int):
        return even(layers, sizes)
    if sum(sizes) != layers:
        each = f"{' + '.join(map(str, sizes))} is {sum(sizes)}" if stages > 1 else f"{sum(sizes)}"
        raise PassError(f"stages: {each}, but {program.name} has {layers} layers")
    return tuple(sizes)


class Piece(NamedTuple):
    """An op and its stage; a `repeat` contains only the iterations of this stage."""

    stage: int
    node: Node


class PipelineCut:
    """An entry cut into stages: the ops of each stage, and the values that each stage sends to the next."""

    def __init__(self, program: Program, sizes: Sequence[int]) -> None:
        self.program, self.last = program, len(sizes) - 1
        graph = program[program.entries[0]]
        self.types: dict[Value, Tensor] = {}
        self.axes: dict[
            Value, tuple[str, ...]
        ] = {}  # the logical axes of the operands and results of a `repeat`
        self.sources: list[Node] = []
        self.pieces: list[Piece] = []
        self.rooms = list(sizes)  # the remaining layers of this and the later stages
        self.layer = 0  # the next layer number in the graph of this stage
        self.renamed: dict[Value, Value] = {}
        self._cut(graph.nodes, program.iterations(graph, Layers()))
        self.outputs = tuple(self.renamed.get(v, v) for v in graph.outputs)
        self.used = {v.node for _, node in self.pieces for v in node.operands}
        self.used |= {v.node for v in self.outputs}
        made: dict[Value, int] = {}  # the last stage that has a value
        self.crossing: list[dict[Value, None]] = [{} for _ in sizes]

        def need(value: Value, stage: int) -> None:
            for before in range(made.get(value, stage), stage):
                self.crossing[before][value] = None

        for stage, node in self.pieces:
            for value in node.operands:
                need(value, stage)
            made |= dict.fromkeys(node.values, stage)
        for value in self.outputs:
            need(value, self.last)

    @property
    def _now(self) -> int:
        """The stage that the next op runs on."""
        return self.last + 1 - len(self.rooms)

    def _cut(self, nodes: Iterable[Node], loops: Mapping[str, Layers]) -> None:
        """Assign ops to stages in schedule order."""
        for node in nodes:
            operands = tuple(self.renamed.get(v, v) for v in node.operands)
            self.types |= zip(node.values, node.results, strict=True)
            if loop := node.op.loop:
                given = self._split(node, loop, loops[node.name], operands)
                self.renamed |= zip(node.values, given, strict=True)
            elif node.op.source:
                self.sources.append(node)
            else:
                self.pieces.append(Piece(self._now, Node(node.name, node.op, operands, node.results)))

    def _split(
        self, node: Node, loop: Loop, layers: Layers, operands: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Split a `repeat` over stages, and unroll iterations that span two stages; return its results."""
        size, done = self.program.depth(loop.body), 0
        axes = [source.op.axes for source in self.program[loop.body].inputs]
        given: tuple[Value, ...] = ()
        while done < loop.times:
            if not self.rooms[0]:
                self.rooms.pop(0)
                self.layer = 0
            self.axes |= zip(operands, axes, strict=True)
            first, times = layers.first + done * size, min(self.rooms[0] // size, loop.times - done)
            if times:
                begins = None if first == self.layer else first
                part = node.op.looping(loop._replace(times=times, first=begins))
                self.pieces.append(Piece(self._now, Node(node.name, part, operands, node.results)))
                self.rooms[0] -= times * size
                self.layer = first + times * size
                given = node.values
            else:
                inner = iteration(self.program, node, loop, first, operands)
                self._cut(inner.nodes, inner.loops)
                times, given = 1, tuple(self.renamed.get(v, v) for v in inner.outputs)
            done += times
            operands = (*given[: loop.carried], *operands[loop.carried :])
            self.axes |= zip(given[: loop.carried], axes, strict=False)
        return given

    def stage(self, number: int) -> Graph:
        """The graph of one stage."""
        b = Builder(f"stage{number}")
        new: dict[Value, Value] = {}
        for value in self.crossing[number - 1] if number else ():
            axes = self.axes.get(value, ())
            new[value] = b.recv(b.input(self.types[value], name="received", axes=axes), block="pipeline")
        for node in self._sources(number):
            new |= zip(node.values, b.insert(node), strict=True)
        for node in self.run_by(number):
            values = b.apply(node.op, *(new[v] for v in node.operands), name=node.name)
            new |= zip(node.values, values, strict=True)
        if number == self.last:
            b.output(*(new[v] for v in self.outputs))
        else:
            b.output(*(b.send(new[v], to=number + 1, block="pipeline") for v in self.crossing[number]))
        return b.graph()

    def sliced(self, number: int) -> Graph:
        """The graph of a stage after the pass `slice-sends`: ranks send slices of replicated values."""
        received, sent = self.slices(number - 1) if number else {}, self.slices(number)
        graph = self.stage(number)
        return in_slices(graph, received, sent) if received or sent else graph

    def slices(self, number: int) -> dict[int, Placement]:
        """The slicing mesh axes of each value that a stage sends in slices, by the number of the value."""
        found = {i: copied(self.types[v], self.program.mesh) for i, v in enumerate(self.crossing[number])}
        return {i: over for i, over in found.items() if over}

    def run_by(self, number: int) -> Sequence[Node]:
        """The ops that a stage runs."""
        return self._by_stage[number]

    @cached_property
    def _by_stage(self) -> list[list[Node]]:
        found: list[list[Node]] = [[] for _ in range(self.last + 1)]
        for stage, node in self.pieces:
            found[stage].append(node)
        return found

    def kind(self, number: int) -> tuple[object, ...]:
        """A key that is equal for stages that differ only in stage number and layer numbers.

        Three iterations represent a loop: the first, a middle and the last iteration.
        """
        ops = ((n.name, n.operands, min(n.op.loop.times, 3) if n.op.loop else 0) for n in self.run_by(number))
        received = tuple(self.crossing[number - 1]) if number else ()
        sent = tuple(self.crossing[number]) if number < self.last else ()
        return tuple(ops), received, sent, not number, number == self.last

    def _sources(self, number: int) -> Iterator[Node]:
        """The sources that a stage uses; the first stage also has all unused sources."""
        used = {v.node for node in self.run_by(number) for v in node.operands}
        if number == self.last:
            used |= {v.node for v in self.outputs}
        return (n for n in self.sources if n.name in used or (not number and n.name not in self.used))
