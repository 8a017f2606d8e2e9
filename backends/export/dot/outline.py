"""What a picture shows of a report: its ops as boxes in sections, and the dataflow between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise

import networkx as nx

from llmir.backends.analysis.costs import OVERHEAD, OpCost
from llmir.backends.analysis.report import Report
from llmir.backends.export import facts, units
from llmir.graph import Node, Program
from llmir.tensor import Tensor

from .scope import Scope, scopes
from .sections import Box, Section, folded, gathered, grouped, over_stages

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
    """Dataflow from one box or inlet to another. `like` says that the head's result has the value's type."""

    tail: str
    head: str
    like: bool = False


@dataclass(frozen=True, eq=False)
class Outline:
    """All that is drawn of one step."""

    report: Report
    sections: tuple[Section, ...]
    inlets: tuple[Inlet, ...]
    links: tuple[Link, ...]

    @property
    def boxes(self) -> Iterator[Box]:
        """All ops."""
        return (b for s in self.sections for b in s.boxes)

    @cached_property
    def longest_s(self) -> float:
        """The most seconds that an op takes, all its runs together."""
        return max((b.total_s for b in self.boxes if b.op), default=0.0)

    @cached_property
    def _homes(self) -> dict[str, str]:
        inlets = {i.id: i.section for i in self.inlets}
        return inlets | {b.id: s.id for s in self.sections for b in s.boxes}

    def section_of(self, name: str) -> str:
        """The id of the section that a box or inlet lies in."""
        return self._homes[name]

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
    places = [place for entry in entries for place in entry.ops()]
    boxes = [
        _box(f"{ids}{i}", scope, node, costs[scope.key + node.name], unrolled)
        for i, (scope, node) in enumerate(places)
    ]
    runs = [
        _section(path, tuple(run), program)
        for path, run in groupby(boxes, lambda b: b.path.rpartition(".")[0])
    ]
    sections = tuple(runs) if unrolled else tuple(gathered(over_stages(folded(runs))))
    inlets, links = _links(sections, places, ids)
    return Outline(report, (*sections, *_overheads(report, ids)), inlets, links)


def _box(name: str, scope: Scope, node: Node, cost: OpCost, unrolled: bool) -> Box:
    note = node.op.remark(scope.graph.operand_types(node))
    group = _GROUPS.get(node.op.block, node.op.block)
    times = scope.program.micro_batches if unrolled else cost.repeat
    return Box(name, scope.path + node.name, cost, times, group, note, node.op, node.results)


def _overheads(report: Report, ids: str) -> Iterator[Section]:
    """What is no op, as boxes after all others: each kind on all stages together."""
    rows: dict[str, list[OpCost]] = {}
    for row in report.ops:
        if row.kind == OVERHEAD:
            rows.setdefault(row.name.rpartition(".")[2], []).append(row)
    for name, (first, *others) in rows.items():
        cost = replace(first, name=name)
        if others:
            total = sum(float(row.total_s) for row in (first, *others))
            cost = replace(cost, time_s=total, repeat=1)
        box = Box(f"{ids}{name}", name, cost, cost.repeat, first.block, _note(report, [first, *others]))
        yield Section("", (box,), (), report.program.micro_batches)


def _note(report: Report, rows: Sequence[OpCost]) -> str:
    """What an overhead is made of."""
    if rows[0].bound != OVERHEAD:
        return f"stages wait {units.percent(report.bubble)} of the step"
    return " · ".join(facts.overhead_parts(report))


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
    type: Tensor


def _uses(places: Iterable[tuple[Scope, Node]], drawn: dict[str, Box]) -> Iterator[_Use]:
    """All operands but weights and caches, without those of layers that are folded away."""
    for scope, node in places:
        path = scope.path + node.name
        if drawn[path].path == path:
            for value in node.operands:
                if origin := scope.origin(value):
                    yield _Use(drawn[path], *origin, scope.graph.type(value))


def _links(
    sections: tuple[Section, ...], places: list[tuple[Scope, Node]], ids: str
) -> tuple[tuple[Inlet, ...], tuple[Link, ...]]:
    """Dataflow; what enters a layer from outside goes through an inlet."""
    drawn = {f"{p}.{b.name}" if p else b.path: b for s in sections for b in s.boxes for p in s.folded}
    home = {b.id: s for s in sections for b in s.boxes}
    inlets: dict[tuple[str, str], Inlet] = {}
    links: dict[tuple[str, str], bool] = {}  # (tail, head) -> whether some value is like the result

    before = {below.id: above for above, below in pairwise(sections)}
    for use in _uses(places, drawn):
        section, tail = home[use.head.id], drawn.get(use.origin)
        if tail and home[tail.id].places > 1 and home[tail.id] is not section:
            tail = before[section.id].boxes[-1]  # layers as they are drawn, whatever the pattern is
        source = tail.id if tail else None
        if section.prefix and (tail is None or home[tail.id] is not section):
            new = Inlet(f"{ids}in{len(inlets)}", section.id, use.name, use.type)
            inlet = inlets.setdefault((section.id, use.origin), new)
            if tail:
                links[tail.id, inlet.id] = False
            source = inlet.id
        if source:
            like = use.type == use.head.results[0]
            links[source, use.head.id] = links.get((source, use.head.id), False) or like
    found = tuple(Link(tail, head, like) for (tail, head), like in links.items())
    return tuple(inlets.values()), found
