"""What a picture of a step contains: ops as boxes in sections, and the dataflow between them.

Order of the file: `Scope`, a graph at its place of execution, once per body or once per iteration; boxes and
sections, with equal layers and stages folded (`Box`, `LayerSection`); and `StepOutline`, built by `outline`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import prod

import networkx as nx

from llmir.backends.export import wording
from llmir.backends.step.evaluate import OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Graph, Node, Value
from llmir.ir.core.layers import Layers
from llmir.ir.core.op import Loop, Op
from llmir.ir.core.program import Program
from llmir.ir.core.tensor import Tensor

# Graphs at their places of execution


@dataclass(eq=False)
class Scope:
    """A graph at its place of execution: `path` contains the numbers of unrolled iterations, and `key` is the
    name in the report.
    """

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
        """One scope; if layers are unrolled, one scope for each iteration."""
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
        """The executed ops, in schedule order."""
        for node in self.graph.nodes:
            if node.op.loop:
                for scope in self.inner(node, node.op.loop):
                    yield from scope.ops()
            elif node.op.runs:
                yield self, node

    def origin(self, value: Value, name: str = "") -> tuple[str, str] | None:
        """The path of the op or input that produces a value, and the value's name in the innermost scope."""
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
    """The entries; each entry comes after the one that supplies its inputs."""
    found: list[Scope] = []
    for entry in program.entries:
        prefix = program.prefix(entry)
        before = found[-1] if found else None
        found.append(Scope(program, program[entry], unrolled, prefix, prefix, previous=before))
    return found


# Boxes and sections


@dataclass(frozen=True)
class OpTensor:
    """A weight or cache that an op reads or writes: its role, its name, and the part that one rank has."""

    role: str
    name: str
    type: Tensor


@dataclass(frozen=True, eq=False)
class Box:
    """A row of the report as it is drawn: an op with its results, or overhead without an op; a step runs it
    `times` times, and each run takes `cost.time_s`.
    """

    id: str
    path: str
    cost: OpCost
    times: int
    group: str
    note: str = ""
    op: Op | None = None
    results: tuple[Tensor, ...] = ()
    equation: str = ""
    held: tuple[OpTensor, ...] = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def total_s(self) -> float:
        """Seconds of all its runs in a step."""
        return self.times * float(self.cost.time_s)

    @property
    def bytes(self) -> float:
        """Bytes that one run reads and writes."""
        return float(self.cost.read_bytes + self.cost.write_bytes)

    @property
    def likeness(self) -> tuple[object, ...]:
        """A key that is equal for ops of different layers with the same work and cost."""
        return (self.name, self.op, self.results, self.cost.time_s, self.bytes, self.cost.repeat)


@dataclass(frozen=True, eq=False)
class LayerSection:
    """Ops in schedule order in one layer, or outside the layers (with empty `prefix`).

    `folded` contains the full paths of the layers that the section stands for, including the layers of equal
    `stages`. `nest` contains the numbers of iterations of the surrounding loops, the outermost first, and
    `body` is the name of the graph. A body that occurs in several `places` of the pattern is drawn once, and
    `nest` refers to the first place.
    """

    prefix: str
    boxes: tuple[Box, ...]
    folded: tuple[str, ...]
    micro_batches: int = 1
    stages: int = 1
    nest: tuple[int, ...] = ()
    body: str = ""
    places: int = 1

    @property
    def id(self) -> str:
        """The name of a section, which is the name of its first op; it is unique among sections."""
        return self.boxes[0].id

    @property
    def times(self) -> int:
        """The number of times that a step runs this layer."""
        return min(b.times for b in self.boxes)

    @property
    def period(self) -> tuple[str, int] | None:
        """The body of several layers that contains this layer, and its number of runs; None if there is only
        one layer.
        """
        nested = len(self.nest) > 1 and self.places == 1
        return (self.prefix.rpartition(".")[0], prod(self.nest[:-1])) if nested else None

    @property
    def sees(self) -> str:
        """The remark on the attention of the layer, such as its window; or an empty text."""
        notes = [b.note for b in self.boxes if b.note and b.cost.kind == "attention"]
        return f", {notes[0]}" if notes else ""

    @property
    def title(self) -> str:
        """The name; the word `layer` is added if the name does not contain it."""
        words = self.prefix.split(".")
        if len(self.folded) > 1 and words[-1].isdigit():
            words.pop()
        name = words[-1] if len(self.nest) > 1 else " ".join(words)
        return name if "layer" in name else f"{name} layer"

    @property
    def count(self) -> str:
        """The number of times that a micro-batch runs it, on each of its stages."""
        nest = f" = {' × '.join(map(str, self.nest))}" if self.period and self.nest[-1] > 1 else ""
        return f"× {self.times // self.micro_batches // self.stages}{nest}"

    @property
    def likeness(self) -> tuple[object, ...]:
        """A key that is equal for layers with the same work and cost, wherever and however often they run."""
        ops = ((b.name, type(b.op), b.results, b.cost.time_s, b.bytes) for b in self.boxes)
        return (self.prefix, *ops)

    @property
    def total_s(self) -> float:
        """Seconds of all its runs in a step."""
        return sum(b.total_s for b in self.boxes)

    @property
    def groups(self) -> dict[str, tuple[Box, ...]]:
        """Its ops, grouped by part of the layer; parts are in the order in which they first occur."""
        names = dict.fromkeys(b.group for b in self.boxes)
        return {name: tuple(b for b in self.boxes if b.group == name) for name in names}


def unique_bodies(sections: Sequence[LayerSection]) -> Iterator[LayerSection]:
    """Each body once, if some bodies occur in several places of a pattern; otherwise all sections."""
    found: dict[object, list[LayerSection]] = {}
    for section in sections:
        ops = (b.likeness[:-1] for b in section.boxes)  # the same, except how often a step runs each
        found.setdefault((section.body, *ops) if section.body else section, []).append(section)
    if all(len(alike) == 1 for alike in found.values()):
        yield from sections
        return
    for first, *others in found.values():
        boxes = tuple(
            replace(b, times=b.times + sum(s.boxes[i].times for s in others))
            for i, b in enumerate(first.boxes)
        )
        folded = (*first.folded, *(path for s in others for path in s.folded))
        places = max(len(alike) for alike in found.values())
        yield replace(first, boxes=boxes, folded=folded, places=places if first.body else 1)


def group_norms(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """The boxes; a norm belongs to the part of the layer for which it prepares the input."""
    found: list[Box] = []
    following = ""
    for box in reversed(list(boxes)):
        own = "" if box.group in ("norm", "streams") else box.group
        following = own or following
        found.append(replace(box, group=following or box.group))
    return tuple(reversed(found))


def fold_sections(sections: Iterable[LayerSection]) -> Iterator[LayerSection]:
    """Consecutive equal layers as one section each."""

    def likeness(section: LayerSection) -> object:
        stem = re.sub(r"(^|\.)\d+$", r"\1", section.prefix)
        return (stem, *(b.likeness for b in section.boxes))

    for _, run in groupby(sections, likeness):
        first, *others = run
        folds = 1 + len(others)
        boxes = tuple(replace(b, times=b.times * folds) for b in first.boxes)
        yield replace(first, boxes=boxes, folded=(*first.folded, *(p for s in others for p in s.folded)))


def fold_stages(
    stages: Iterable[tuple[LayerSection, ...]],
) -> Iterator[tuple[tuple[int, ...], tuple[LayerSection, ...]]]:
    """Merge consecutive equal pipeline stages: their numbers, and the sections of the first."""

    def likeness(numbered: tuple[int, tuple[LayerSection, ...]]) -> object:
        return [(s.likeness, *(b.times for b in s.boxes)) for s in numbered[1]]

    for _, run in groupby(enumerate(stages), likeness):
        numbers, (first, *others) = zip(*run, strict=True)
        count = len(numbers)
        merged = tuple(
            replace(
                s,
                boxes=tuple(replace(b, times=b.times * count) for b in s.boxes),
                folded=(*s.folded, *(p for other in others for p in other[i].folded)),
                stages=count,
            )
            for i, s in enumerate(first)
        )
        yield numbers, merged


# Outline of a step

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
class DataEdge:
    """Dataflow from one box or inlet to another; `values` contains the values by name, with their types.

    `like` means that one of the values has the type of the head's result.
    """

    tail: str
    head: str
    values: tuple[tuple[str, Tensor], ...] = ()
    like: bool = False


@dataclass(frozen=True, eq=False)
class StageOutline:
    """The numbers of equal pipeline stages, the layers of the first one, and their content."""

    numbers: tuple[int, ...]
    layers: str
    sections: tuple[LayerSection, ...]
    overheads: tuple[Box, ...]

    @property
    def boxes(self) -> Iterator[Box]:
        """Its rows."""
        yield from (b for s in self.sections for b in s.boxes)
        yield from self.overheads


@dataclass(frozen=True, eq=False)
class StepOutline:
    """The content of a picture of one step."""

    report: Report
    stages: tuple[StageOutline, ...]
    inlets: tuple[Inlet, ...]
    links: tuple[DataEdge, ...]

    @cached_property
    def shapes(self) -> dict[Tensor, str]:
        """A cache of texts that describe types."""
        return {}

    @cached_property
    def sections(self) -> tuple[LayerSection, ...]:
        """The sections of all stages."""
        return tuple(section for stage in self.stages for section in stage.sections)

    @property
    def boxes(self) -> Iterator[Box]:
        """All ops and overheads."""
        return (b for stage in self.stages for b in stage.boxes)

    @cached_property
    def longest_s(self) -> float:
        """The longest time of an op in seconds, with all its runs."""
        return max((b.total_s for b in self.boxes if b.op), default=0.0)

    def share(self, seconds: float) -> float:
        """The share of `seconds` in the step on all stages."""
        whole = float(self.report.all_stages_s)
        return seconds / whole if whole else 0.0

    @cached_property
    def spine(self) -> dict[str, int]:
        """The nodes on the longest path, with their positions on it."""
        flow = nx.DiGraph()
        flow.add_nodes_from(b.id for b in self.boxes)
        flow.add_edges_from((x.tail, x.head) for x in self.links)
        return {name: i for i, name in enumerate(nx.dag_longest_path(flow))}

    def role(self, link: DataEdge) -> str:
        """The kind of an edge: `spine`; `residual`, if it skips ops of the spine and is added again; or
        `side`.
        """
        gap = self.spine.get(link.head, -1) - self.spine.get(link.tail, len(self.spine))
        if gap == 1:
            return "spine"
        return "residual" if gap > 1 and link.like else "side"


def pattern(program: Program) -> str:
    """The layers in order, as nested repeats; empty if all layers are equal."""

    def words(name: str) -> str:
        loops = program[name].loops.values()
        return " · ".join(f"{loop.times} × {inner(loop.body)}".removeprefix("1 × ") for loop in loops)

    def inner(body: str) -> str:
        return f"({words(body)})" if program[body].loops else body.removesuffix("_layer")

    first = program[program.entries[0]].loops.values()
    alike = len(first) < 2 and not any(program[loop.body].loops for loop in first)
    return "" if alike or len(program.entries) > 1 else words(program.entries[0])


def outline(report: Report, ids: str, *, unrolled: bool = False) -> StepOutline:
    """The outline of a step; node names begin with `ids`. Equal layers are drawn once, or all layers are
    drawn if `unrolled` is set.
    """
    program = report.program
    costs = {op.name: op for op in report.work}
    entries = scopes(program, unrolled=unrolled)
    places: list[tuple[Scope, Node]] = []
    stages: list[tuple[LayerSection, ...]] = []
    for entry in entries:
        boxes = []
        for scope, node in entry.ops():
            boxes.append(_box(f"{ids}{len(places)}", scope, node, costs[scope.key + node.name], unrolled))
            places.append((scope, node))
        runs = (
            _section(path, tuple(run), program)
            for path, run in groupby(boxes, lambda b: b.path.rpartition(".")[0])
        )
        stages.append(tuple(runs) if unrolled else tuple(unique_bodies(list(fold_sections(runs)))))
    alike = (((i,), sections) for i, sections in enumerate(stages)) if unrolled else fold_stages(stages)
    found = tuple(
        StageOutline(numbers, _layers(program, numbers), sections, tuple(_overheads(report, numbers, ids)))
        for numbers, sections in alike
    )
    inlets, links = _links(tuple(s for stage in found for s in stage.sections), places, ids)
    return StepOutline(report, found, inlets, links)


def _layers(program: Program, numbers: tuple[int, ...]) -> str:
    """The layers of some stages, as `layers 20–59`; empty if there are no layers."""
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
        tuple(_stored_operands(scope, node)),
    )


def _stored_operands(scope: Scope, node: Node) -> Iterator[OpTensor]:
    """The weights and caches among the operands of an op."""
    for value in dict.fromkeys(node.operands):
        op = scope.graph[value.node].op
        if op.source and op.role != "activation":
            yield OpTensor(op.role, value.node, scope.graph.type(value).local(scope.program.mesh))


def _overheads(report: Report, numbers: tuple[int, ...], ids: str) -> Iterator[Box]:
    """The overhead of some stages, with one box for each kind."""
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
            wording.OVERHEADS[name],
        )


def _section(path: str, boxes: tuple[Box, ...], program: Program) -> LayerSection:
    stage, _, inside = path.partition(".")
    prefix = path if len(program.entries) == 1 or stage not in program.entries else inside
    nest, body = _nest(program, path) if prefix else ((), "")
    own = group_norms(boxes) if prefix else boxes
    return LayerSection(prefix, own, (path,), program.micro_batches, nest=nest, body=body)


def _nest(program: Program, path: str) -> tuple[tuple[int, ...], str]:
    """For each repeat on a path, the number of iterations; and the body of the last repeat.

    Empty if the path contains numbers of iterations or the name of a stage.
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
class _Operand:
    """An operand of a drawn op: the path of the op that produces it, and its name in that op's graph."""

    head: Box
    origin: str
    name: str
    value: str
    type: Tensor


def _uses(places: Iterable[tuple[Scope, Node]], drawn: dict[str, Box]) -> Iterator[_Operand]:
    """All operands except weights and caches, and except operands of layers that are not drawn."""
    for scope, node in places:
        path = scope.path + node.name
        if drawn[path].path == path:
            for value in node.operands:
                if origin := scope.origin(value):
                    yield _Operand(drawn[path], *origin, str(value)[1:], scope.graph.type(value))


def _links(
    sections: tuple[LayerSection, ...], places: list[tuple[Scope, Node]], ids: str
) -> tuple[tuple[Inlet, ...], tuple[DataEdge, ...]]:
    """The dataflow; values from outside of a layer or the program enter at an inlet."""
    drawn = {f"{p}.{b.name}" if p else b.path: b for s in sections for b in s.boxes for p in s.folded}
    home = {b.id: s for s in sections for b in s.boxes}
    inlets: dict[tuple[str, str], Inlet] = {}
    links: dict[tuple[str, str], DataEdge] = {}

    def link(tail: str, head: str, use: _Operand, like: bool) -> None:
        known = links.get((tail, head)) or DataEdge(tail, head)
        values = tuple(dict.fromkeys((*known.values, (use.value, use.type))))
        links[tail, head] = DataEdge(tail, head, values, known.like or like)

    before = {below.id: above for above, below in pairwise(sections)}
    for use in _uses(places, drawn):
        section, tail = home[use.head.id], drawn.get(use.origin)
        if tail and home[tail.id].places > 1 and home[tail.id] is not section:
            # the layer that is drawn before, whatever the pattern
            tail = before[section.id].boxes[-1]
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
