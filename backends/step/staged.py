"""Pipeline stages by arithmetic: what each takes and holds, from one program that is not cut.

Stages run the bodies that the whole runs, each so many times; beside that they differ in the few ops of the
entry that are theirs, in what they receive and in what they send. Equal to what the passes `stages` and
`slice-sends` make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from llmir.backends.cost.op_time import Model
from llmir.backends.memory.caches import CachePolicy, policy
from llmir.backends.memory.lifetimes import Lifetimes, lifetimes
from llmir.backends.memory.liveness import Memory, state
from llmir.backends.work.nodes import Ranks, ranks
from llmir.backends.work.rows import Row, needs
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.base.names import layered
from llmir.base.values import Figures
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.layers import Layers
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import work
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size
from llmir.ir.tools.loops import Cut

from . import costs
from .costs import StageCost
from .evaluate import Plan, plan
from .placement import for_ranks
from .timing import Part, StageKind, Timing

ALONE = Layers()


class Run(NamedTuple):
    """An op of a graph where a stage runs it, in so many `layers`, counted from the stage's first."""

    path: str
    graph: Graph
    node: Node
    layers: Layers

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes a weight or a cache of a stage the same in two phases."""
        return self.node.op.param or self.path, self.layers, self.node.results[0]

    @property
    def once(self) -> bool:
        """Whether it is a weight that all layers share."""
        name = self.node.op.param
        return self.node.op.role == "weight" and bool(name) and not layered(name)


class Kind(NamedTuple):
    """What stages that are alike have: the graph of one of them, and what that holds while its ops run."""

    graph: Graph
    lifetimes: Lifetimes


@dataclass(frozen=True, eq=False)
class Share:
    """What a stage runs of a program, and holds of it; `times` says how often it runs its loops."""

    program: Program
    kind: Kind
    times: Mapping[str, int]

    @property
    def runs(self) -> Iterator[Run]:
        """Its ops."""
        return _inside(self.program, self.kind.graph, self.times)

    @cached_property
    def kept(self) -> tuple[Run, ...]:
        """Its weights and caches."""
        return tuple(_kept(self.program, self.kind.graph, self.times))


class Known:
    """What was found of the stages of a program, by `Cut.kind`, and by that and how often they run loops."""

    def __init__(self, program: Program, by: CachePolicy) -> None:
        self.program, self.by = program, by
        self.kinds: dict[tuple[object, ...], Kind] = {}
        self.shares: dict[tuple[object, ...], Share] = {}
        self.sizes: dict[tuple[Share, tuple[Share, ...]], tuple[Size, Size]] = {}

    def share(self, cut: Cut, number: int) -> Share:
        """That of one stage of a program that is cut so."""
        alike = cut.kind(number)
        times = {node.name: loop.times for node in cut.run_by(number) if (loop := node.op.loop)}
        key = alike, tuple(times.values())
        if key not in self.shares:
            if alike not in self.kinds:
                graph = cut.sliced(number)
                self.kinds[alike] = Kind(graph, lifetimes(self.program, graph, self.by))
            self.shares[key] = Share(self.program, self.kinds[alike], times)
        return self.shares[key]

    def held(self, own: Share, beside: tuple[Share, ...]) -> tuple[Size, Size]:
        """Bytes of weights and caches, with those that other phases have and this one has not."""
        key = own, beside
        if key not in self.sizes:
            self.sizes[key] = self._held(own, beside)
        return self.sizes[key]

    def _held(self, own: Share, beside: tuple[Share, ...]) -> tuple[Size, Size]:
        mesh, seen = self.program.mesh, {run.identity for run in own.kept}
        added = {run.identity: run for share in beside for run in share.kept if run.identity not in seen}
        runs = (*own.kept, *added.values())
        caches = [run for run in runs if run.node.op.role == "cache"]
        states = [state(self.program, at.graph, at.node, at.path, at.layers.count) for at in caches]
        once = {(at.node.op.param, at.node.results[0]) for at in own.kept if at.once}
        weights = sum((type.local(mesh).bytes for _, type in once), start=0)
        for at in (at for at in runs if at.node.op.role == "weight"):
            if not at.once or at.identity in added:
                weights += at.node.results[0].local(mesh).bytes * at.layers.count
        return weights, self.by.reserved(states)


_known = lru_cache(maxsize=1024)(Known)
_cut = lru_cache(maxsize=1024)(Cut)


@dataclass(frozen=True, eq=False)
class Staged(Plan):
    """The plan of a program in stages of so many layers each; the program itself is in one."""

    sizes: tuple[int, ...] = (1,)

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return len(self.sizes)

    @cached_property
    def _shares(self) -> tuple[Share, ...]:
        cut, known = _cut(self.program, self.sizes), _known(self.program, policy(self.cache_policy))
        return tuple(known.share(cut, number) for number in range(self.depth))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops."""
        return tuple(row for number in range(self.depth) for row in self._rows(number))

    def _rows(self, number: int) -> Iterator[Row]:
        """The ops of a stage."""
        mesh, share = self.program.mesh, self._shares[number]
        ends = self._ends(number)
        for path, graph, node, layers in share.runs:
            if node.op.runs:
                row = needs(graph, mesh)[node.name].at(f"stage{number}.{path}", number, node, layers.count)
                sent = node.name in ends and graph is share.kind.graph
                yield _sent(row, number + 1, mesh) if sent else row

    def _ends(self, number: int) -> set[str]:
        """The ops of a stage that send."""
        graph = self._shares[number].kind.graph
        return {value.node for value in graph.outputs} if number < self.depth - 1 else set()

    def kinds_of_stages(self) -> Iterator[StageKind]:
        """Those with the same share of the program that send equally fast."""
        found: dict[tuple[Share, bool, Part], list[int]] = {}
        for number, share in enumerate(self._shares):
            found.setdefault((share, not number, self._sends(number)), []).append(number)
        for (_, first, _), numbers in found.items():
            yield StageKind(self._parts(numbers[0]), len(numbers), first)

    def _parts(self, number: int) -> list[tuple[Part, int]]:
        """What a stage runs, and how often: its graph but for what that sends, this, and bodies."""
        share, ends = self._shares[number], self._ends(number)
        if self.model.asks:
            return [(self._part(self._rows(number)), 1)]
        _, *bodies = self.program.runs(share.kind.graph, share.times).items()
        rest = (row for name, row in needs(share.kind.graph, self.program.mesh).items() if name not in ends)
        return [(self._part(rest), 1), (self._sends(number), 1), *((self._body(g), n) for g, n in bodies)]

    def _body(self, graph: Graph) -> Part:
        """The ops of a body, in any of the stages."""
        if graph not in self._bodies:
            self._bodies[graph] = self._part(needs(graph, self.program.mesh).values())
        return self._bodies[graph]

    @cached_property
    def _bodies(self) -> dict[Graph, Part]:
        return {}

    def _part(self, rows: Iterable[Row]) -> Part:
        rows = tuple(rows)
        return Part([*zip(rows, self.model.prices(rows), strict=True)])

    def _sends(self, number: int) -> Part:
        """What a stage sends: one and the same for those of which that is equally fast."""
        size, node = self.program.mesh.devices, self.model.device.node
        start = number * size % node.devices if node else 0
        key = self._shares[number].kind.graph, number if self.model.asks else start
        if key not in self._sent:
            graph, mesh = key[0], self.program.mesh
            rows = (needs(graph, mesh)[name].at(name, number, graph[name], 1) for name in self._ends(number))
            part = self._part(_sent(row, number + 1, mesh) for row in rows)
            alike = (each for each in self._sent.values() if each.prices == part.prices)
            self._sent[key] = next(alike, part)
        return self._sent[key]

    @cached_property
    def _sent(self) -> dict[tuple[Graph, int], Part]:
        return {}  # those that lie alike in their nodes are one

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """What each stage must hold."""
        by = policy(self.cache_policy)
        known, phases = _known(self.program, by), self.program.phases
        whole = [_whole(phase) for name, phase in phases.items() if name == "encode"]
        cuts = [(_known(p, by), _cut(p, self.sizes)) for name, p in phases.items() if name != "encode"]
        found = []
        for number, share in enumerate(self._shares):
            beside = (*(of.share(cut, number) for of, cut in cuts), *(whole if not number else ()))
            found.append(Memory(*known.held(share, beside), share.kind.lifetimes))
        return tuple(found)


@lru_cache(maxsize=64)
def _whole(program: Program) -> Share:
    """What one stage runs of a program that is not cut."""
    graph = program[program.entries[0]]
    return Share(program, Kind(graph, Lifetimes((), ())), {})


def _sent(row: Row, to: int, mesh: Mesh) -> Row:
    """The row of a `send` to another stage than that of its kind."""
    op: Any = row.node.op
    node = replace(row.node, op=replace(op, to=to))
    return replace(row, node=node, work=work(node.op, node.results, node.results, mesh))


def _inside(
    program: Program, graph: Graph, times: Mapping[str, int], path: str = "", start: Layers = ALONE
) -> Iterator[Run]:
    """The ops of a graph, those of bodies in their place; `times` says how often where not the ops do."""
    before = 0
    for node in graph.nodes:
        yield Run(path + node.name, graph, node, start)
        if loop := node.op.loop:
            often, size = times.get(node.name, loop.times), program.depth(loop.body)
            layers = start.inside(before, often, size)
            yield from _inside(program, program[loop.body], {}, f"{path}{node.name}.", layers)
            before += often * size


def _kept(
    program: Program, graph: Graph, times: Mapping[str, int], path: str = "", start: Layers = ALONE
) -> Iterator[Run]:
    """The weights and caches among those."""
    before = 0
    for node in graph.sources:
        if node.op.role in ("weight", "cache"):
            yield Run(path + node.name, graph, node, start)
    for name, loop in graph.loops.items():
        often, size = times.get(name, loop.times), program.depth(loop.body)
        layers = start.inside(before, often, size)
        yield from _kept(program, program[loop.body], {}, f"{path}{name}.", layers)
        before += often * size


@dataclass(frozen=True)
class InStages(Figures):
    """A step of a program in pipeline stages of so many `layers` each; figures as a `Report` has them."""

    layers: tuple[int, ...]
    time_s: Number
    period_s: Number
    interval_s: Number
    bubble: Number
    peak_memory_bytes: Number
    stages: tuple[StageCost, ...]


def staged(program: Program, model: Model, sizes: tuple[int, ...], cache_policy: str = "exact") -> Plan:
    """The plan in stages; HardwareError if its ranks do not fit the device's nodes."""
    if len(sizes) == 1:
        return plan(program, model, cache_policy)
    if "draft" in program.phases:
        raise PassError(f"stages: the phase that drafts is one stage; load {program.name} without it")
    rows = Staged(program, model, cache_policy, sizes).rows if getattr(model, "of_links", ()) else ()
    sent = [row for row in rows if row.work.wire]
    on_nodes = for_ranks(_ranks(program, sizes), model, program, sent)
    return Staged(program, on_nodes, cache_policy, sizes)


def _ranks(program: Program, sizes: tuple[int, ...]) -> Ranks:
    """Those of a program in stages, with those that gather what they have sent in slices."""
    cut = _cut(program, sizes)
    over = {over for number in range(len(sizes)) for over in cut.slices(number).values()}
    one = ranks(program).staged(len(sizes))
    groups = one.groups.union(map(program.mesh.group, over))
    return one._replace(joins=one.joins.union(map(frozenset, over)), groups=groups)


def in_stages(of: Plan, sizes: tuple[int, ...], at: Binding) -> InStages:
    """What a plan in stages says of a step."""
    seconds = of.seconds(at)
    timing = Timing(seconds.whole, of.program.micro_batches)
    return InStages(
        sizes,
        timing.step,
        timing.period,
        timing.interval,
        timing.bubble,
        of.fullest(lambda memory: memory.peak(at), at),
        costs.stages(timing, of.overheads(at, seconds), of.memories, at),
    )
