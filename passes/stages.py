"""stages: pipeline parallelism, one entry for each stage, a run of layers each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from llmir import convert
from llmir.build import Builder
from llmir.dataclass import dataclass
from llmir.errors import PassError
from llmir.graph import Graph, Node, Program, Value
from llmir.layers import Layers
from llmir.op import Loop
from llmir.pipeline import Pass, option
from llmir.tensor import Tensor

from .unroll import iteration

_MOST = 10_000  # stages, which are machines of their own


@dataclass(frozen=True)
class Stages(Pass):
    """Splits the layers over pipeline stages, each on ranks of its own, with sends and receives between them.

    Options: pp stages of as equal sizes as can be (the last ones but one have a layer more, as in vLLM, since
    the last has the head), or `layers=(30, 32, 32, 32)`, and micro_batches, the parts a step's batch is
    sent through in. A tied embedding lies on the first stage and on the last.
    """

    name: ClassVar[str] = "stages"
    encodes: ClassVar[bool] = False  # it lies on the first stage

    pp: int = option(1, least=1, most=_MOST)
    layers: str | Sequence[int] = ""
    micro_batches: int = option(1, least=1, most=1 << 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = _sizes(self.layers)
        if sizes and self.pp not in (1, len(sizes)):
            raise PassError(f"stages: pp is {self.pp}, but layers has {len(sizes)} stages: {_sum(sizes)}")
        object.__setattr__(self, "layers", f"({', '.join(map(str, sizes))})" if sizes else "")

    def __call__(self, program: Program) -> Program:
        """Cut the entry between layers."""
        sizes = _sizes(self.layers)
        if self.pp > 1 or sizes:
            program = _staged(program, sizes, self.pp)
        if self.micro_batches == 1:
            return program
        return program.replace(micro_batches=self.micro_batches * program.micro_batches)


def _sizes(layers: str | Sequence[int]) -> tuple[int, ...]:
    """Layers of each stage, from `(3, 4)`, `3,4` or numbers."""
    if isinstance(layers, str):
        layers = [convert.read(n.strip()) for n in layers.strip().strip("()").split(",") if n.strip()]
    found = convert.items(
        "stages: layers", layers, "numbers such as (30, 32, 32, 32)", most=_MOST, error=PassError
    )
    return tuple(convert.integer("stages: layers", n, 1, error=PassError) for n in found)


def _sum(sizes: Sequence[int]) -> str:
    return " + ".join(map(str, sizes))


def even(layers: int, stages: int) -> tuple[int, ...]:
    """So many layers over so many stages; of what is left over, the stages before the last have one each.

    >>> even(126, 4), even(7, 3)
    ((31, 32, 32, 31), (2, 3, 2))
    """
    size, more = divmod(layers, stages)
    return tuple(size + (stages - 1 - more <= i < stages - 1) for i in range(stages))


def _staged(program: Program, sizes: tuple[int, ...], pp: int) -> Program:
    if len(program.entries) > 1:
        raise PassError(f"stages: {program.name} is in {len(program.entries)} stages already")
    (entry,) = program.entries
    graph = program[entry]
    if not any(n.op.loop for n in graph.nodes):
        raise PassError(f"stages: {program.name} has no repeated layers to split; stages go before unroll")
    layers = program.depth(entry)
    stages = len(sizes) or pp
    if stages > layers:
        raise PassError(f"stages: {stages} stages for {program.name}, which has {layers} layers")
    if sizes and sum(sizes) != layers:
        raise PassError(f"stages: {_sum(sizes)} is {sum(sizes)}, but {program.name} has {layers} layers")
    if stages == 1:
        return program
    cut = _Cut(program, graph, sizes or even(layers, stages))
    graphs = {g.name: g for g in map(cut.stage, range(stages))}
    bodies = {name: g for name, g in program.graphs.items() if name != entry}
    if taken := graphs.keys() & bodies.keys():
        raise PassError(f"stages: {program.name} has a graph @{min(taken)} already")
    return program.replace(graphs=graphs | bodies, entries=tuple(graphs))


class _Cut:
    """An entry in pieces: which op runs on which stage, and what crosses from each stage to the next."""

    def __init__(self, program: Program, graph: Graph, sizes: tuple[int, ...]) -> None:
        self.program, self.last = program, len(sizes) - 1
        self.types: dict[Value, Tensor] = {}
        self.axes: dict[Value, tuple[str, ...]] = {}  # the logical axes of what a `repeat` takes and gives
        self.sources: list[Node] = []
        self.pieces: list[tuple[int, Node]] = []
        self.rooms = list(sizes)  # how many layers this stage and those after it have yet to take
        self.layer = 0  # which one would follow in the graph of this stage
        self.renamed: dict[Value, Value] = {}
        self._cut(graph.nodes, program.iterations(graph, Layers()))
        self.outputs = tuple(self.renamed.get(v, v) for v in graph.outputs)
        self.used = {v.node for _, node in self.pieces for v in node.operands}
        self.used |= {v.node for v in self.outputs}
        made: dict[Value, int] = {}  # the stage that gave a value last
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
        """Hand out ops to stages in schedule order."""
        for node in nodes:
            operands = tuple(self.renamed.get(v, v) for v in node.operands)
            self.types |= zip(node.values, node.results, strict=True)
            if loop := node.op.loop:
                given = self._split(node, loop, loops[node.name], operands)
                self.renamed |= zip(node.values, given, strict=True)
            elif node.op.source:
                self.sources.append(node)
            else:
                self.pieces.append((self._now, Node(node.name, node.op, operands, node.results)))

    def _split(
        self, node: Node, loop: Loop, layers: Layers, operands: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """What a `repeat` gives after each stage's piece; an iteration in two stages is written out."""
        op: Any = node.op
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
                part = replace(op, times=times, first=None if first == self.layer else first)
                self.pieces.append((self._now, Node(node.name, part, operands, node.results)))
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
        for node in self._mine(number):
            values = b.apply(node.op, *(new[v] for v in node.operands), name=node.name)
            new |= zip(node.values, values, strict=True)
        if number == self.last:
            b.output(*(new[v] for v in self.outputs))
        else:
            b.output(*(b.send(new[v], to=number + 1, block="pipeline") for v in self.crossing[number]))
        return b.graph()

    def _mine(self, number: int) -> Iterator[Node]:
        """The ops of a stage."""
        return (node for stage, node in self.pieces if stage == number)

    def _sources(self, number: int) -> Iterator[Node]:
        """The sources that a stage uses; the first has those that nothing uses, too."""
        used = {v.node for node in self._mine(number) for v in node.operands}
        if number == self.last:
            used |= {v.node for v in self.outputs}
        return (n for n in self.sources if n.name in used or (not number and n.name not in self.used))
