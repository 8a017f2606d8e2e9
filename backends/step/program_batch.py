"""Steps of many programs at once, and pipeline stages by arithmetic.

`PlanStages`: programs of a search share most of their op times. Distinct op times are columns, and their
numbers of executions per stage form a matrix; the product of both gives the seconds of all stages
(`BatchPoints`, `BatchMemory`).

`StageEvaluator`: the stages of a program, derived from the unsplit program. Stages run the same bodies a
different number of times. They also differ in the few ops of their entries, and in the values that they
receive and send. The result equals that of the passes `stages` and `slice-sends`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.batch import BindingStack, OpTimeStack
from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.memory.caches import CachePolicy, policy
from llmir.backends.memory.liveness import Lifetimes, RankMemory, cache_state, lifetimes
from llmir.backends.work.network import RankTopology, rank_topology
from llmir.backends.work.rows import Row, op_rows
from llmir.base.array_namespace import ARRAYS, Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.base.names import is_layered
from llmir.base.values import Figures
from llmir.ir.core.graph import Graph, Node
from llmir.ir.core.layers import Layers
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import work
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, Size, monomials
from llmir.ir.tools.loops import PipelineCut

from . import evaluate
from .evaluate import StageCost, StepEvaluator, collective_skew, place_ranks, step_evaluator
from .timing import StageKind, StagePart, Timing

# Steps of many programs

Array = Any  # float64
_SELECTIONS = 8  # number of cached selections of columns: one of a step, the others of a decode


class MicroBatchSizes(NamedTuple):
    """The parameters on which the sizes of an op time depend."""

    micro_batches: int
    padded: tuple[int, ...] = ()  # graph sizes that pad this step; empty without padding


def launch_key(of: StepEvaluator) -> tuple[int, ...]:
    """The properties on which it depends which steps run as a graph, and with which number of sequences."""
    degrees = of.program.parallelism
    return of.program.micro_batches, degrees.dp, degrees.tp, id(of.model)


Runs = tuple[dict[int, int], int, float]  # op times by index, with counts; kernels; rank skew in seconds


class PlanStage(NamedTuple):
    """Equal stages of a plan, with `kernels` kernels and a rank skew; and whether the stage is first."""

    plan: int
    kernels: int
    late: float
    first: bool


class PlanStages:
    """All distinct stages of several plans, and how often each runs each op time."""

    def __init__(self, plans: Sequence[StepEvaluator]) -> None:
        self.plans = plans
        self.sizes: dict[
            MicroBatchSizes, tuple[int, StepEvaluator]
        ] = {}  # with their numbers, and a plan that contains them
        self.distinct: dict[OpTime, int] = {}
        self._known: dict[int, tuple[OpTime, int]] = {}  # by identity; the reference prevents reuse of the id
        # The sizes and op times of the stages, numbered by the share that a graph hides.
        self.prices: dict[float, dict[tuple[int, int], int]] = {}
        self._places: dict[
            tuple[object, ...], tuple[Row, int, float]
        ] = {}  # with rows, which keeps their ids valid
        found = [kind for number, of in enumerate(plans) for kind in self._alike(number, of)]
        self.each = [stage for stage, _, _ in found]
        self.of = np.array([stage.plan for stage in self.each])
        self.starts = np.flatnonzero(np.diff(self.of, prepend=-1))
        columns = [times for *_, times in found], [s.kernels for s in self.each], [s.late for s in self.each]
        self.times, self.kernels, self.late = (np.array(column, dtype=np.float64) for column in columns)
        self.runs = {hidden: np.zeros((len(found), len(known))) for hidden, known in self.prices.items()}
        for i, (stage, counts, _) in enumerate(found):
            self.runs[_hidden(plans[stage.plan])][i, [*counts]] = [*counts.values()]
        self._stacks: dict[int, dict[float, OpTimeStack]] = {}
        self._columns: dict[tuple[int, tuple[int, ...]], Array] = {}

    def _alike(self, number: int, of: StepEvaluator) -> Iterator[tuple[PlanStage, dict[int, int], int]]:
        """The distinct stages of a plan: how often each runs each op time, and how many stages are equal to
        it.
        """
        known = self.prices.setdefault(_hidden(of), {})
        parts = of.program.micro_batches
        usual, padded = (
            self.sizes.setdefault(MicroBatchSizes(parts, key), (len(self.sizes), of))[0]
            for key in ((), launch_key(of))
        )
        own: dict[StagePart, Runs] = {}
        for kind in of.kinds_of_stages():
            counts: dict[int, int] = {}
            kernels, lateness = 0, 0.0
            for part, times in kind.parts:
                if part not in own:
                    own[part] = self._runs(of, part, (usual, padded), known)
                places, launches, waits = own[part]
                for place, often in places.items():
                    counts[place] = counts.get(place, 0) + times * often
                kernels += times * launches
                lateness += times * waits
            yield PlanStage(number, kernels, lateness, kind.first), counts, kind.times

    def _runs(
        self, of: StepEvaluator, part: StagePart, sizes: tuple[int, int], known: dict[tuple[int, int], int]
    ) -> Runs:
        """How often a part of a plan runs each op time, its number of kernels, and its rank skew."""
        counts: dict[int, int] = {}
        kernels, lateness = 0, 0.0
        for row, price in part.priced:
            key = row.op, id(price), sizes, _hidden(of)
            if key not in self._places:
                number = sizes[of.padding(row)], self._one(price)
                self._places[key] = row, known.setdefault(number, len(known)), collective_skew(row)
            _, place, waits = self._places[key]
            counts[place] = counts.get(place, 0) + row.repeat
            kernels += row.repeat
            lateness += row.repeat * waits
        return counts, kernels, lateness

    def _one(self, price: OpTime) -> int:
        """The index of an op time; equal ones share it."""
        if id(price) not in self._known:
            self._known[id(price)] = price, self.distinct.setdefault(price, len(self.distinct))
        return self._known[id(price)][1]

    def stacks(self, axes: int) -> Mapping[float, OpTimeStack]:
        """The op times as columns, for points with `axes` axes, grouped by the share of the launch that a
        graph hides.
        """
        if axes not in self._stacks:
            prices = [*self.distinct]
            self._stacks[axes] = {
                hidden: OpTimeStack([(sizes, prices[i]) for sizes, i in known], axes)
                for hidden, known in self.prices.items()
            }
        return self._stacks[axes]

    def groups(self, axes: int) -> list[tuple[float, list[int]]]:
        """For each group of the stacks, the hidden launch share and the indices of its op times."""
        stacks = self.stacks(axes).items()
        return [(hidden, places) for hidden, stack in stacks for places, _ in stack.groups]

    def columns(self, axes: int, groups: tuple[int, ...]) -> Array:
        """The executions per stage of the op times in the given groups."""
        key = axes, groups
        if key not in self._columns:
            known = self.groups(axes)
            each = [self.runs[hidden][:, places] for hidden, places in (known[group] for group in groups)]
            if len(self._columns) >= _SELECTIONS:
                self._columns.clear()
            self._columns[key] = np.concatenate(each, axis=1)
        return self._columns[key]

    @cached_property
    def hosts(self) -> Sequence[tuple[EngineCpu, Array, Sequence[Array]]]:
        """Each engine's model of CPU time, the stages that it launches, and which of them are first
        stages.
        """
        groups: dict[EngineCpu, list[int]] = {}
        for i, stage in enumerate(self.each):
            if host := self.plans[stage.plan].host:
                groups.setdefault(host, []).append(i)
        found = []
        for host, some in groups.items():
            first: dict[tuple[int, ...], list[int]] = {}
            for i in some:
                if self.each[i].first:
                    first.setdefault(launch_key(self.plans[self.of[i]]), []).append(i)
            found.append((host, np.array(some), [*map(np.array, first.values())]))
        return found


def _hidden(of: StepEvaluator) -> float:
    """The share of the kernel launches that a graph hides."""
    return of.host.hidden if of.host else 0.0


def _in_graph(at: Binding, hidden: float, price: OpTime) -> tuple[Any, Any]:
    return price.in_graph(at, hidden)


class BatchPoints:
    """Points at which all plans are evaluated: the sizes of a micro-batch, for each number of
    micro-batches.
    """

    def __init__(self, stages: PlanStages, at: Mapping[int, Binding]) -> None:
        self.stages, self.at = stages, at
        self.shape = next(iter(at.values())).shape
        self.column = (-1, *(1,) * len(self.shape))
        parts = [of.program.micro_batches for of in stages.plans]
        self.parts = np.array(parts, dtype=np.float64).reshape(self.column)

    def timing(self) -> tuple[Array, Array]:
        """For each plan, the seconds of all stages together for a micro-batch, and the seconds of the slowest
        stage.
        """
        alone, together = self._sums(lambda values: values)
        seconds = np.where(self._captured, together, alone)
        for host, some, _ in self.stages.hosts:
            seconds[some] = host.kernel_time(seconds[some], self._kernels[some], ARRAYS)
        seconds = self._served(seconds)
        whole = np.add.reduceat(seconds * self.stages.times.reshape(self.column), self.stages.starts)
        return whole, np.maximum.reduceat(seconds, self.stages.starts)

    def whole(self) -> Array:
        """The seconds of all stages, summed along the last axis, such as the contexts of a decode.

        Most stages take longer than their launches at all points; only the others are summed op by op.
        """
        count, stages = self.shape[-1], self.stages
        if self._captured.shape[-1] != 1 or self._beside.shape[-1] != 1:
            return self.timing()[0].sum(axis=-1)
        captured = self._captured[..., 0]

        def sums(figure: Callable[[Array], Array | None]) -> Array:
            alone, together = (np.asarray(each) for each in self._sums(figure))
            return np.where(captured, together, alone)

        same = sums(_same)
        seconds, least, most = (sums(partial(_varied, figure)) for figure in (np.sum, np.min, np.max))
        seconds, least, most = seconds + count * same, least + same, most + same
        for host, some, _ in stages.hosts:
            if (type(host).kernel_time, type(host).exposed_cpu_time) != (
                EngineCpu.kernel_time,
                EngineCpu.exposed_cpu_time,
            ):
                return self.timing()[0].sum(axis=-1)
            launches = np.broadcast_to(
                host.kernel_time(0.0, self._kernels[some], ARRAYS)[..., 0], least[some].shape
            )
            seconds[some] = np.where(most[some] <= launches, count * launches, seconds[some])
            now_and_then = (least[some] < launches) & (most[some] > launches)
            for place in np.argwhere(now_and_then):
                i, at = int(some[place[0]]), tuple(map(int, place[1:]))
                whole = i, *at
                seconds[whole] = np.maximum(self._along(i, at), launches[tuple(place)]).sum()
        seconds = (seconds + count * self._beside[..., 0]) * stages.times.reshape(self.column[:-1])
        return np.add.reduceat(seconds, stages.starts)

    def _along(self, stage: int, at: tuple[int, ...]) -> Array:
        """Seconds of a stage's kernels along the last axis, at one index on the other axes."""
        captured = np.broadcast_to(self._captured, (len(self.stages.each), *self.shape[:-1], 1))
        here = stage, *at, 0
        which = int(captured[here])
        total = np.zeros(self.shape[-1])
        for (hidden, places), both in zip(self.stages.groups(len(self.shape)), self._priced, strict=True):
            values = np.broadcast_to(both[which], (len(both[which]), *self.shape[:-1], both[which].shape[-1]))
            place: Any = (slice(None), *at)
            total += self.stages.runs[hidden][stage, places] @ values[place]
        return total

    @cached_property
    def _kernels(self) -> Array:
        """The number of kernel launches of each stage; a graph has none."""
        return np.where(self._captured, 0.0, self.stages.kernels.reshape(self.column))

    @cached_property
    def _beside(self) -> Array:
        """The overhead of an engine, without the cases in which launches delay kernels."""
        return self._served(np.zeros((len(self.stages.each), *(1,) * len(self.shape))))

    def _served(self, seconds: Array) -> Array:
        """The time of each stage with rank skew and engine CPU time."""
        found: Any = seconds.copy()
        for host, some, first in self.stages.hosts:
            found[some] += host.skew_time(self.stages.late[some].reshape(self.column))
            for those in first:
                of = self.stages.plans[self.stages.of[those[0]]]
                sequences = of.sequences(self.at[of.program.micro_batches])
                exposed = np.asarray(host.exposed_cpu_time(found[those], sequences, ARRAYS))
                more = np.zeros((len(found), *exposed.shape[exposed.ndim - len(self.shape) :]))
                more[those] = exposed
                found = found + more
        return found

    @cached_property
    def _captured(self) -> Array:
        """Whether a step runs as a graph on each stage."""
        known: dict[tuple[int, ...], Any] = {}
        found = []
        for of in self.stages.plans:
            key = launch_key(of) if of.host else ()
            if key not in known:
                known[key] = of.captured(self.at[of.program.micro_batches]) if key else False
            found.append(known[key])
        _, *each = np.broadcast_arrays(np.empty((1,) * len(self.shape)), *found)
        return np.stack(each)[self.stages.of]

    @cached_property
    def _priced(self) -> Sequence[list[Array]]:
        """The op times of each group of the stacks: alone, and in a graph."""
        pairs = ((sizes, of, self.at[sizes.micro_batches]) for sizes, (_, of) in self.stages.sizes.items())
        at = BindingStack([of.runs(at) if sizes.padded else at for sizes, of, at in pairs])
        return [
            both
            for hidden, stack in self.stages.stacks(len(self.shape)).items()
            for _, both in stack.each(partial(_in_graph, at, hidden))
        ]

    def _sums(self, figure: Callable[[Array], Array | None]) -> tuple[Any, Any]:
        """Seconds of the ops of each stage, alone and in a graph; 0 for a kind of time that no stage
        needs.
        """
        needed = not self._captured.all(), self._captured.any()
        alone, together = (self._sum(which, figure) if is_ else 0.0 for which, is_ in enumerate(needed))
        return alone, together

    def _sum(self, which: int, figure: Callable[[Array], Array | None]) -> Array:
        """The sum over the op times of each stage for which `figure` returns values, grouped by shape."""
        alike: dict[tuple[int, ...], dict[int, Array]] = {}
        for group, both in enumerate(self._priced):
            if (values := figure(both[which])) is not None:
                alike.setdefault(values.shape[1:], {})[group] = values.reshape(len(values), -1)
        total: Any = 0.0
        for shape, values in alike.items():
            runs = self.stages.columns(len(self.shape), tuple(values))
            total = total + (runs @ np.concatenate([*values.values()])).reshape(-1, *shape)
        return total


def _same(values: Array) -> Array | None:
    """For values that are constant along the last axis, one value each; None for other values."""
    return values[..., 0] if values.shape[-1] == 1 else None


def _varied(figure: Any, values: Array) -> Array | None:
    """A figure along the last axis, for the other values."""
    return figure(values, axis=-1) if values.shape[-1] > 1 else None


class BatchMemory:
    """The memory of all stages of some plans, as coefficients of the sizes that it depends on."""

    def __init__(self, plans: Sequence[StepEvaluator]) -> None:
        sizes: dict[Size, int] = {}
        known: dict[tuple[int, ...], int] = {}
        held = []
        for of in plans:
            own: dict[int, None] = {}
            for memory in of.memories:
                each = memory.weights, memory.caches, 0, *memory.lifetimes.sizes
                places = tuple(sizes.setdefault(size, len(sizes)) for size in each)
                own[known.setdefault(places, len(known))] = None
            held.append([*own])
        self.reads = monomials(sizes)
        columns = {size.terms[0][0]: i for i, size in enumerate(self.reads, 1)} | {(): 0}
        self.coefficients = np.zeros((len(sizes), len(columns)))
        for size, i in sizes.items():
            for monomial, coefficient in size.terms if isinstance(size, Dim) else (((), size),):
                self.coefficients[i, columns[monomial]] = coefficient
        self.resident = np.array([places[:2] for places in known]).T
        self.moments = np.array([place for places in known for place in places[2:]])
        self.starts = np.cumsum([0, *(len(places) - 2 for places in known)])[:-1]
        self.held = np.array([i for each in held for i in each])
        self.of = np.cumsum([0, *map(len, held)])[:-1]
        self.parts = [of.program.micro_batches for of in plans]

    def peaks(self, points: BatchPoints) -> Array:
        """Bytes of the fullest stage of each plan, at the moment with the most memory."""
        found = {parts: self._peaks(at) for parts, at in points.at.items()}
        one, *others = found.values()
        return np.stack([found[parts][i] for i, parts in enumerate(self.parts)]) if others else one

    def _peaks(self, at: Binding) -> Array:
        """The peaks with a number of sequences in a micro-batch."""
        values = np.stack(np.broadcast_arrays(np.ones(at.shape), *map(at, self.reads)))
        bytes = np.tensordot(self.coefficients, values, 1)
        weights, caches = (bytes[part] for part in self.resident)
        most = weights + caches + np.maximum.reduceat(bytes[self.moments], self.starts)
        return np.maximum.reduceat(most[self.held], self.of)


# Pipeline stages of one program

SINGLE_LAYER = Layers()


class StageOp(NamedTuple):
    """An op of a graph on a stage, with its `layers`, counted from the first layer of the stage."""

    path: str
    graph: Graph
    node: Node
    layers: Layers

    @property
    def identity(self) -> tuple[object, ...]:
        """The key by which two phases recognize a shared weight or cache of a stage."""
        return self.node.op.param or self.path, self.layers, self.node.results[0]

    @property
    def once(self) -> bool:
        """Whether it is a weight that all layers share."""
        name = self.node.op.param
        return self.node.op.role == "weight" and bool(name) and not is_layered(name)


class StageGraph(NamedTuple):
    """What equal stages have in common: the graph of one of them, and the lifetimes of its tensors."""

    graph: Graph
    lifetimes: Lifetimes


@dataclass(frozen=True, eq=False)
class StageProgram:
    """The part of a program that a stage runs and stores; `times` contains the iterations of its loops."""

    program: Program
    kind: StageGraph
    times: Mapping[str, int]

    @property
    def runs(self) -> Iterator[StageOp]:
        """Its ops."""
        return _inside(self.program, self.kind.graph, self.times)

    @cached_property
    def kept(self) -> tuple[StageOp, ...]:
        """Its weights and caches."""
        return tuple(_stored(self.program, self.kind.graph, self.times))


class StageMemo:
    """A cache of the stages of a program: by `Cut.kind`, and by kind and loop iterations."""

    def __init__(self, program: Program, by: CachePolicy) -> None:
        self.program, self.by = program, by
        self.kinds: dict[tuple[object, ...], StageGraph] = {}
        self.shares: dict[tuple[object, ...], StageProgram] = {}
        self.sizes: dict[tuple[StageProgram, tuple[StageProgram, ...]], tuple[Size, Size]] = {}

    def share(self, cut: PipelineCut, number: int) -> StageProgram:
        """The stage with an index in a cut program."""
        alike = cut.kind(number)
        times = {node.name: loop.times for node in cut.run_by(number) if (loop := node.op.loop)}
        key = alike, tuple(times.values())
        if key not in self.shares:
            if alike not in self.kinds:
                graph = cut.sliced(number)
                self.kinds[alike] = StageGraph(graph, lifetimes(self.program, graph, self.by))
            self.shares[key] = StageProgram(self.program, self.kinds[alike], times)
        return self.shares[key]

    def held(self, own: StageProgram, beside: tuple[StageProgram, ...]) -> tuple[Size, Size]:
        """Bytes of weights and caches, including those that only other phases have."""
        key = own, beside
        if key not in self.sizes:
            self.sizes[key] = self._held(own, beside)
        return self.sizes[key]

    def _held(self, own: StageProgram, beside: tuple[StageProgram, ...]) -> tuple[Size, Size]:
        mesh, seen = self.program.mesh, {run.identity for run in own.kept}
        added = {run.identity: run for share in beside for run in share.kept if run.identity not in seen}
        runs = (*own.kept, *added.values())
        caches = [run for run in runs if run.node.op.role == "cache"]
        states = [cache_state(self.program, at.graph, at.node, at.path, at.layers.count) for at in caches]
        once = {(at.node.op.param, at.node.results[0]) for at in own.kept if at.once}
        weights = sum((type.local(mesh).bytes for _, type in once), start=0)
        for at in (at for at in runs if at.node.op.role == "weight"):
            if not at.once or at.identity in added:
                weights += at.node.results[0].local(mesh).bytes * at.layers.count
        return weights, self.by.reserved(states)


_known = lru_cache(maxsize=1024)(StageMemo)
_cut = lru_cache(maxsize=1024)(PipelineCut)


@dataclass(frozen=True, eq=False)
class StageEvaluator(StepEvaluator):
    """The evaluator of a program in stages with given layers; the program itself has only one stage."""

    sizes: tuple[int, ...] = (1,)

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.sizes)

    @cached_property
    def _shares(self) -> tuple[StageProgram, ...]:
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
                row = op_rows(graph, mesh)[node.name].at(f"stage{number}.{path}", number, node, layers.count)
                sent = node.name in ends and graph is share.kind.graph
                yield _sent(row, number + 1, mesh) if sent else row

    def _ends(self, number: int) -> set[str]:
        """The ops of a stage that send."""
        graph = self._shares[number].kind.graph
        return {value.node for value in graph.outputs} if number < self.depth - 1 else set()

    def kinds_of_stages(self) -> Iterator[StageKind]:
        """The stages that run an equal part of the program and take equally long to send."""
        found: dict[tuple[StageProgram, bool, StagePart], list[int]] = {}
        for number, share in enumerate(self._shares):
            found.setdefault((share, not number, self._sends(number)), []).append(number)
        for (_, first, _), numbers in found.items():
            yield StageKind(self._parts(numbers[0]), len(numbers), first)

    def _parts(self, number: int) -> list[tuple[StagePart, int]]:
        """The parts of a stage with their numbers of executions: the graph without sends, the sends, and
        bodies.
        """
        share, ends = self._shares[number], self._ends(number)
        if self.model.asks:
            return [(self._part(self._rows(number)), 1)]
        _, *bodies = self.program.runs(share.kind.graph, share.times).items()
        rest = (row for name, row in op_rows(share.kind.graph, self.program.mesh).items() if name not in ends)
        return [(self._part(rest), 1), (self._sends(number), 1), *((self._body(g), n) for g, n in bodies)]

    def _body(self, graph: Graph) -> StagePart:
        """The ops of a body, on any of the stages."""
        if graph not in self._bodies:
            self._bodies[graph] = self._part(op_rows(graph, self.program.mesh).values())
        return self._bodies[graph]

    @cached_property
    def _bodies(self) -> dict[Graph, StagePart]:
        return {}

    def _part(self, rows: Iterable[Row]) -> StagePart:
        rows = tuple(rows)
        return StagePart([*zip(rows, self.model.prices(rows), strict=True)])

    def _sends(self, number: int) -> StagePart:
        """The sends of a stage, shared by stages with equal send times."""
        size, node = self.program.mesh.devices, self.model.device.node
        start = number * size % node.devices if node else 0
        key = self._shares[number].kind.graph, number if self.model.asks else start
        if key not in self._sent:
            graph, mesh = key[0], self.program.mesh
            rows = (
                op_rows(graph, mesh)[name].at(name, number, graph[name], 1) for name in self._ends(number)
            )
            part = self._part(_sent(row, number + 1, mesh) for row in rows)
            alike = (each for each in self._sent.values() if each.prices == part.prices)
            self._sent[key] = next(alike, part)
        return self._sent[key]

    @cached_property
    def _sent(self) -> dict[tuple[Graph, int], StagePart]:
        return {}  # equal placements in a node are merged

    @cached_property
    def memories(self) -> tuple[RankMemory, ...]:
        """The memory of each stage."""
        by = policy(self.cache_policy)
        known, phases = _known(self.program, by), self.program.phases
        whole = [_whole(phase) for name, phase in phases.items() if name == "encode"]
        cuts = [(_known(p, by), _cut(p, self.sizes)) for name, p in phases.items() if name != "encode"]
        found = []
        for number, share in enumerate(self._shares):
            beside = (*(of.share(cut, number) for of, cut in cuts), *(whole if not number else ()))
            found.append(RankMemory(*known.held(share, beside), share.kind.lifetimes))
        return tuple(found)


@lru_cache(maxsize=64)
def _whole(program: Program) -> StageProgram:
    """The only stage of a program that is not split."""
    graph = program[program.entries[0]]
    return StageProgram(program, StageGraph(graph, Lifetimes((), ())), {})


def _sent(row: Row, to: int, mesh: Mesh) -> Row:
    """The row of a `send` to another stage."""
    op: Any = row.node.op
    node = replace(row.node, op=replace(op, to=to))
    return replace(row, node=node, work=work(node.op, node.results, node.results, mesh))


def _inside(
    program: Program, graph: Graph, times: Mapping[str, int], path: str = "", start: Layers = SINGLE_LAYER
) -> Iterator[StageOp]:
    """The ops of a graph, with bodies expanded; `times` overrides the loop counts."""
    before = 0
    for node in graph.nodes:
        yield StageOp(path + node.name, graph, node, start)
        if loop := node.op.loop:
            often, size = times.get(node.name, loop.times), program.depth(loop.body)
            layers = start.inside(before, often, size)
            yield from _inside(program, program[loop.body], {}, f"{path}{node.name}.", layers)
            before += often * size


def _stored(
    program: Program, graph: Graph, times: Mapping[str, int], path: str = "", start: Layers = SINGLE_LAYER
) -> Iterator[StageOp]:
    """Its weights and caches."""
    before = 0
    for node in graph.sources:
        if node.op.role in ("weight", "cache"):
            yield StageOp(path + node.name, graph, node, start)
    for name, loop in graph.loops.items():
        often, size = times.get(name, loop.times), program.depth(loop.body)
        layers = start.inside(before, often, size)
        yield from _stored(program, program[loop.body], {}, f"{path}{name}.", layers)
        before += often * size


@dataclass(frozen=True)
class StageReport(Figures):
    """A step of a program in pipeline stages with `layers` layers; the other fields are as in `Report`."""

    layers: tuple[int, ...]
    time_s: Number
    period_s: Number
    interval_s: Number
    bubble: Number
    peak_memory_bytes: Number
    stages: tuple[StageCost, ...]


def stage_evaluator(
    program: Program, model: DeviceCostModel, sizes: tuple[int, ...], cache_policy: str = "exact"
) -> StepEvaluator:
    """The plan in stages; HardwareError if its ranks do not fit the device's nodes."""
    if len(sizes) == 1:
        return step_evaluator(program, model, cache_policy)
    if "draft" in program.phases:
        raise PassError(f"stages: the phase that drafts is one stage; load {program.name} without it")
    rows = StageEvaluator(program, model, cache_policy, sizes).rows if getattr(model, "of_links", ()) else ()
    sent = [row for row in rows if row.work.wire]
    on_nodes = place_ranks(_ranks(program, sizes), model, program, sent)
    return StageEvaluator(program, on_nodes, cache_policy, sizes)


def _ranks(program: Program, sizes: tuple[int, ...]) -> RankTopology:
    """The topology of a program in stages, including ranks that gather sent slices."""
    cut = _cut(program, sizes)
    over = {over for number in range(len(sizes)) for over in cut.slices(number).values()}
    one = rank_topology(program).staged(len(sizes))
    groups = one.groups.union(map(program.mesh.group, over))
    return one._replace(joins=one.joins.union(map(frozenset, over)), groups=groups)


def stage_report(of: StepEvaluator, sizes: tuple[int, ...], at: Binding) -> StageReport:
    """The report of a step of an evaluator with stages."""
    seconds = of.seconds(at)
    timing = Timing(seconds.whole, of.program.micro_batches)
    return StageReport(
        sizes,
        timing.step,
        timing.period,
        timing.interval,
        timing.bubble,
        of.fullest(lambda memory: memory.peak(at), at),
        evaluate.stage_costs(seconds, of.program.micro_batches, of.memories, at),
    )
