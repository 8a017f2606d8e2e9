"""Pipeline stages by arithmetic: what each takes and holds, from one program that is not cut.

Stages run the bodies that the whole runs, each so many times; beside that they differ in the few ops of the
entry that are theirs, in what they receive and in what they send. Equal to what the passes `stages` and
`slice-sends` make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from llmir.backends.analysis import costs
from llmir.backends.analysis.caches import CachePolicy, policy
from llmir.backends.analysis.costs import StageCost
from llmir.backends.analysis.liveness import Bodies, Memory, Moment, moments, state
from llmir.backends.analysis.plan import Plan, for_ranks, plan
from llmir.backends.analysis.timing import StageKind
from llmir.backends.cost import Model, Price, Row
from llmir.backends.cost.nodes import Ranks, ranks
from llmir.backends.cost.rows import needs
from llmir.cut import Cut
from llmir.dataclass import dataclass
from llmir.dim import Binding, Number, Size
from llmir.errors import PassError
from llmir.frozen import Figures
from llmir.graph import Graph, Node, Program
from llmir.layers import Layers
from llmir.mesh import Mesh
from llmir.names import layered
from llmir.op import work

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
    moments: tuple[Moment, ...]


@dataclass(frozen=True, eq=False)
class Share:
    """What a stage runs of a program, and holds of it."""

    kind: Kind
    runs: tuple[Run, ...]

    @cached_property
    def kept(self) -> tuple[Run, ...]:
        """Its weights and caches."""
        return tuple(run for run in self.runs if run.node.op.role in ("weight", "cache"))


class Known:
    """What was found of the stages of a program, by `Cut.kind`, and by that and how often they run loops."""

    def __init__(self, program: Program, by: CachePolicy) -> None:
        self.program, self.by = program, by
        self.kinds: dict[tuple[object, ...], Kind] = {}
        self.shares: dict[tuple[object, ...], Share] = {}
        self.bodies = Bodies(program, by)
        self.sizes: dict[tuple[Share, tuple[Share, ...]], tuple[Size, Size]] = {}

    def share(self, cut: Cut, number: int) -> Share:
        """That of one stage of a program that is cut so."""
        alike = cut.kind(number)
        times = {node.name: loop.times for node in cut.run_by(number) if (loop := node.op.loop)}
        key = alike, tuple(times.values())
        if key not in self.shares:
            if alike not in self.kinds:
                graph = cut.sliced(number)
                self.kinds[alike] = Kind(graph, moments(self.bodies, graph))
            kind = self.kinds[alike]
            self.shares[key] = Share(kind, tuple(_inside(self.program, kind.graph, times)))
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


@lru_cache(maxsize=1024)
def _priced(program: Program, model: Model) -> dict[tuple[int, int], tuple[Row, Price]]:
    """The prices that were found of a program's ops, in whatever stages."""
    whole = Plan(program, model)
    return {row.op: (row, price) for row, price in zip(whole.rows, whole.made, strict=True)}


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
                needed = needs(graph, mesh)[node.name]
                row = Row(f"stage{number}.{path}", number, node, layers.count, *needed)
                sent = node.name in ends and graph is share.kind.graph
                yield _sent(row, number + 1, mesh) if sent else row

    def _ends(self, number: int) -> set[str]:
        """The ops of a stage that send."""
        graph = self._shares[number].kind.graph
        return {value.node for value in graph.outputs} if number < self.depth - 1 else set()

    @cached_property
    def made(self) -> tuple[Price, ...]:
        """What the model makes of each row: of an op of a body, what it has made of it in one stage."""
        return self._prices(self.rows)

    def _prices(self, rows: Sequence[Row]) -> tuple[Price, ...]:
        known = _priced(self.program, self.model)
        prices = self.model.prices(rows, {op: price for op, (_, price) in known.items()})
        known.update((row.op, (row, price)) for row, price in zip(rows, prices, strict=True))
        return prices

    def kinds_of_stages(self) -> Iterator[StageKind]:
        """Those with the same share of the program that send equally fast."""
        found: dict[tuple[object, ...], list[int]] = {}
        for number, share in enumerate(self._shares):
            found.setdefault((share, not number, *self._sends(number)), []).append(number)
        for (_, first, *_), numbers in found.items():
            rows = tuple(self._rows(numbers[0]))
            yield StageKind([*zip(rows, self._prices(rows), strict=True)], len(numbers), bool(first))

    def _sends(self, number: int) -> Iterator[Price]:
        """The prices of what a stage sends."""
        graph, mesh = self._shares[number].kind.graph, self.program.mesh
        for name in self._ends(number):
            row = Row(name, number, graph[name], 1, *needs(graph, mesh)[name])
            yield from self.model.prices([_sent(row, number + 1, mesh)])

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
            found.append(Memory(*known.held(share, beside), share.kind.moments))
        return tuple(found)


@lru_cache(maxsize=64)
def _whole(program: Program) -> Share:
    """What one stage runs of a program that is not cut."""
    graph = program[program.entries[0]]
    return Share(Kind(graph, ()), tuple(_inside(program, graph, {})))


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
    timing = of.timing(at, seconds[1])
    return InStages(
        sizes,
        timing.step,
        timing.period,
        timing.interval,
        timing.bubble,
        of.fullest(lambda memory: memory.peak(at), at),
        costs.stages(timing, of.overheads(at, seconds), of.memories, at),
    )
