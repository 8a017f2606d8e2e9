"""What a picture shows of a report: its ops as boxes in sections, and the dataflow between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import groupby, pairwise

import networkx as nx

from llmir.backends.export import wording
from llmir.backends.step.costs import OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Node
from llmir.ir.core.layers import Layers
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor

from .scope import Scope, scopes
from .sections import Box, Held, Section, folded, gathered, grouped, over_stages

_GROUPS = {
    "attention_core": "attention",
    "compressor": "attention",
    "indexer": "attention",
    "router": "experts",
    "routed_experts": "experts",
    "shared_experts": "experts",
}


@dataclass(frozen=True)
class Inlet:
    """A value that enters a layer from outside."""

    id: str
    section: str
    name: str
    type: Tensor


@dataclass(frozen=True)
class Link:
    """Dataflow from one box or inlet to another: `values` by name, each as the program has it.

    `like` says that the head's result has the type of one of them.
    """

    tail: str
    head: str
    values: tuple[tuple[str, Tensor], ...] = ()
    like: bool = False


@dataclass(frozen=True, eq=False)
class Stage:
    """Pipeline stages that do alike, by their numbers, the layers of the first, and what each does."""

    numbers: tuple[int, ...]
    layers: str
    sections: tuple[Section, ...]
    overheads: tuple[Box, ...]

    @property
    def boxes(self) -> Iterator[Box]:
        """Its rows."""
        yield from (b for s in self.sections for b in s.boxes)
        yield from self.overheads


@dataclass(frozen=True, eq=False)
class Outline:
    """All that is drawn of one step."""

    report: Report
    stages: tuple[Stage, ...]
    inlets: tuple[Inlet, ...]
    links: tuple[Link, ...]

    @cached_property
    def shapes(self) -> dict[Tensor, str]:
        """Words for the types of values, once they have been asked for."""
        return {}

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Those of all stages."""
        return tuple(section for stage in self.stages for section in stage.sections)

    @property
    def boxes(self) -> Iterator[Box]:
        """All ops and overheads."""
        return (b for stage in self.stages for b in stage.boxes)

    @cached_property
    def longest_s(self) -> float:
        """The most seconds that an op takes, all its runs together."""
        return max((b.total_s for b in self.boxes if b.op), default=0.0)

    def share(self, seconds: float) -> float:
        """The part of `whole_s` that `seconds` are."""
        return seconds / self.whole_s if self.whole_s else 0.0

    @cached_property
    def whole_s(self) -> float:
        """What shares are of: the step, or where launches are hidden all that adds seconds."""
        return max(float(self.report.all_stages_s), sum(b.total_s for b in self.boxes if b.total_s > 0))

    @cached_property
    def spine(self) -> dict[str, int]:
        """The nodes on the longest path, with their places on it."""
        flow = nx.DiGraph()
        flow.add_nodes_from(b.id for b in self.boxes)
        flow.add_edges_from((x.tail, x.head) for x in self.links)
        return {name: i for i, name in enumerate(nx.dag_longest_path(flow))}

    def role(self, link: Link) -> str:
        """`spine`, `residual` (jumps over ops of the spine to be merged unchanged in kind), or `side`."""
        gap = self.spine.get(link.head, -1) - self.spine.get(link.tail, len(self.spine))
        if gap == 1:
            return "spine"
        return "residual" if gap > 1 and link.like else "side"


def pattern(program: Program) -> str:
    """The layers in order, as repeats of repeats; nothing where all are alike."""

    def words(name: str) -> str:
        loops = program[name].loops.values()
        return " · ".join(f"{loop.times} × {inner(loop.body)}".removeprefix("1 × ") for loop in loops)

    def inner(body: str) -> str:
        return f"({words(body)})" if program[body].loops else body.removesuffix("_layer")

    first = program[program.entries[0]].loops.values()
    alike = len(first) < 2 and not any(program[loop.body].loops for loop in first)
    return "" if alike or len(program.entries) > 1 else words(program.entries[0])


def outline(report: Report, ids: str, *, unrolled: bool = False) -> Outline:
    """The outline of a step; node names begin with `ids`. Equal layers are folded, or all `unrolled`."""
    program = report.program
    costs = {op.name: op for op in report.work}
    entries = scopes(program, unrolled=unrolled)
    places: list[tuple[Scope, Node]] = []
    stages: list[tuple[Section, ...]] = []
    for entry in entries:
        boxes = []
        for scope, node in entry.ops():
            boxes.append(_box(f"{ids}{len(places)}", scope, node, costs[scope.key + node.name], unrolled))
            places.append((scope, node))
        runs = (
            _section(path, tuple(run), program)
            for path, run in groupby(boxes, lambda b: b.path.rpartition(".")[0])
        )
        stages.append(tuple(runs) if unrolled else tuple(gathered(list(folded(runs)))))
    alike = (((i,), sections) for i, sections in enumerate(stages)) if unrolled else over_stages(stages)
    found = tuple(
        Stage(numbers, _layers(program, numbers), sections, tuple(_overheads(report, numbers, ids)))
        for numbers, sections in alike
    )
    inlets, links = _links(tuple(s for stage in found for s in stage.sections), places, ids)
    return Outline(report, found, inlets, links)


def _layers(program: Program, numbers: tuple[int, ...]) -> str:
    """The layers of some stages: `layers 20–59`; nothing where there are none."""
    graphs = [program[program.entries[number]] for number in numbers]
    starts = [layer for g in graphs for of in program.iterations(g, Layers()).values() for layer in of]
    if not starts:
        return ""
    deepest = max(program.depth(loop.body) for g in graphs for loop in g.loops.values())
    first, last = min(starts), max(starts) + deepest - 1
    return f"layers {first}–{last}" if last > first else f"layer {first}"


def _box(name: str, scope: Scope, node: Node, cost: OpCost, unrolled: bool) -> Box:
    types = scope.graph.operand_types(node)
    group = _GROUPS.get(node.op.block, node.op.block)
    times = scope.program.micro_batches if unrolled else cost.repeat
    return Box(
        name,
        scope.path + node.name,
        cost,
        times,
        group,
        node.op.remark(types),
        node.op,
        node.results,
        str(node.op.equation(types)),
        tuple(_held(scope, node)),
    )


def _held(scope: Scope, node: Node) -> Iterator[Held]:
    """The weights and caches among the operands of an op."""
    for value in dict.fromkeys(node.operands):
        op = scope.graph[value.node].op
        if op.source and op.role != "activation":
            yield Held(op.role, value.node, scope.graph.type(value).local(scope.program.mesh))


def _overheads(report: Report, numbers: tuple[int, ...], ids: str) -> Iterator[Box]:
    """What is no op on some stages, each kind as one box."""
    rows: dict[str, list[OpCost]] = {}
    for row in report.ops:
        if row.kind == OVERHEAD and row.stage in numbers:
            rows.setdefault(row.name.rpartition(".")[2], []).append(row)
    for name, (first, *others) in rows.items():
        cost = replace(first, name=name)
        end = f"_{numbers[0]}" if numbers[0] else ""
        yield Box(
            f"{ids}{name}{end}",
            name,
            cost,
            cost.repeat * (1 + len(others)),
            first.block,
            _note(report, first),
        )


def _note(report: Report, row: OpCost) -> str:
    """What an overhead is made of."""
    if row.bound != OVERHEAD:
        return "waits for other stages"
    parts = wording.overhead_parts(report) if len(report.stages) == 1 else []
    return " · ".join(parts)


def _section(path: str, boxes: tuple[Box, ...], program: Program) -> Section:
    stage, _, inside = path.partition(".")
    prefix = path if len(program.entries) == 1 or stage not in program.entries else inside
    nest, body = _nest(program, path) if prefix else ((), "")
    own = grouped(boxes) if prefix else boxes
    return Section(prefix, own, (path,), program.micro_batches, nest=nest, body=body)


def _nest(program: Program, path: str) -> tuple[tuple[int, ...], str]:
    """How often each repeat on a path runs, and the body of the last.

    Nothing for a path that numbers iterations or names a stage.
    """
    graph, times = program[program.entries[0]], []
    for name in path.split("."):
        loop = graph.loops.get(name)
        if loop is None:
            return (), ""
        times.append(loop.times)
        graph = program[loop.body]
    return tuple(times), graph.name


@dataclass(frozen=True)
class _Use:
    """An operand of a drawn op: the path of its producer, and what the op's graph calls it."""

    head: Box
    origin: str
    name: str
    value: str
    type: Tensor


def _uses(places: Iterable[tuple[Scope, Node]], drawn: dict[str, Box]) -> Iterator[_Use]:
    """All operands but weights and caches, without those of layers that are folded away."""
    for scope, node in places:
        path = scope.path + node.name
        if drawn[path].path == path:
            for value in node.operands:
                if origin := scope.origin(value):
                    yield _Use(drawn[path], *origin, str(value)[1:], scope.graph.type(value))


def _links(
    sections: tuple[Section, ...], places: list[tuple[Scope, Node]], ids: str
) -> tuple[tuple[Inlet, ...], tuple[Link, ...]]:
    """Dataflow; what enters a layer, or the program, from outside goes through an inlet."""
    drawn = {f"{p}.{b.name}" if p else b.path: b for s in sections for b in s.boxes for p in s.folded}
    home = {b.id: s for s in sections for b in s.boxes}
    inlets: dict[tuple[str, str], Inlet] = {}
    links: dict[tuple[str, str], Link] = {}

    def link(tail: str, head: str, use: _Use, like: bool) -> None:
        known = links.get((tail, head)) or Link(tail, head)
        values = tuple(dict.fromkeys((*known.values, (use.value, use.type))))
        links[tail, head] = Link(tail, head, values, known.like or like)

    before = {below.id: above for above, below in pairwise(sections)}
    for use in _uses(places, drawn):
        section, tail = home[use.head.id], drawn.get(use.origin)
        if tail and home[tail.id].places > 1 and home[tail.id] is not section:
            tail = before[section.id].boxes[-1]  # layers as they are drawn, whatever the pattern is
        source = tail.id if tail else None
        outside = tail is None or (section.prefix and home[tail.id] is not section)
        if outside:
            new = Inlet(f"{ids}in{len(inlets)}", section.id, use.name, use.type)
            inlet = inlets.setdefault((section.id, use.origin), new)
            if tail:
                link(tail.id, inlet.id, use, False)
            source = inlet.id
        if source:
            link(source, use.head.id, use, use.type == use.head.results[0])
    return tuple(inlets.values()), tuple(links.values())
