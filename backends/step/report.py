"""`Report`: the cost of one step, its memory and its timeline; each figure is computed when it is first
accessed.

`Footprint` contains memory figures, each of the stage with the largest value. `Report` has seconds, FLOPs and
bytes of the step and a row for each op (`ops`), at one point or on a grid of points. `timeline` lists the
slices of each pipeline stage from the start of a step to its end. Rows and slices divide the step as
`StepSeconds` does (`timing.py`): a slice takes the time of its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost import models
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.memory.caches import policy
from llmir.backends.memory.liveness import Peak, RankMemory
from llmir.backends.work.rows import BOUNDS, TRAFFIC, Basis
from llmir.base.arguments import POINTS, items
from llmir.base.array_namespace import Number
from llmir.base.budget import check_work
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import figure, rebuild, seal
from llmir.hw.device import Device
from llmir.ir.core.graph import Graph
from llmir.ir.core.layers import Layers
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding, PackedBinding
from llmir.ir.sizes.polynomial import Size

from . import evaluate
from .evaluate import (
    BUBBLE,
    OVERHEAD,
    OpCost,
    StageCost,
    StepEvaluator,
    collective_skew,
    mixed_step_evaluator,
    step_evaluator,
)
from .facts import program_notes
from .sizes import (
    WHOLE,
    Points,
    batch_program,
    check_packed,
    check_sizes,
    context_sizes,
    idle_ranks_note,
    refuse_padding,
    sweep,
)
from .timing import OVERHEAD_ROWS, Overhead, StepSeconds, Timing

# Memory


class Footprint(Points):
    """Memory figures, each of the stage with the largest value."""

    plan: StepEvaluator
    shape: tuple[int, ...]

    @figure
    def weight_bytes(self) -> Number:
        """Resident bytes of weights."""
        return self._held(lambda memory, at: at(memory.weights))

    @figure
    def kv_cache_bytes(self) -> Number:
        """Resident bytes of the caches after this step has written to them, as the policy reserves them."""
        return self._held(lambda memory, at: at(memory.caches))

    @figure
    def activation_peak_bytes(self) -> Number:
        """Transient bytes, including logits, at the moment with the most memory."""
        return self._held(RankMemory.transient)

    @figure
    def peak_memory_bytes(self) -> Number:
        """Bytes of weights, caches and activations at the moment with the most memory."""
        return self._held(RankMemory.peak)

    def _held(self, figure: Callable[[RankMemory, Binding], Number]) -> Number:
        """A value of the stage with the highest peak memory."""
        return sweep(lambda at: self.plan.fullest(lambda memory: figure(memory, at), at), self._points)

    @figure
    def peak(self) -> Peak:
        """The moment with the most memory at a single point: its op, and the tensors that are alive.
        `InputError` on a grid.
        """
        if self.shape:
            raise InputError(f"the tensors at the peak need a report of one point, got a grid {self.shape}")
        return max(self.plan.memories, key=lambda memory: memory.peak(self.at)).fullest(self.at)

    @property
    def peak_at(self) -> Any:
        """The op at the peak memory; an array of names on a grid."""
        if not self.shape:
            return self.peak.op
        names: list[str] = []
        first: dict[int, int] = {}  # the start of a stage's names
        for memory in self.plan.memories:
            first[id(memory)] = len(names)
            names += [m.op for m in memory.distinct]
        index = self._held(lambda memory, at: memory.fullest_index(at) + first[id(memory)])
        return seal(np.array(names)[np.asarray(index).astype(int)])


# Report

PHASE_KEYS = (
    "time_s",
    "ideal_time_s",
    "error",
    "period_s",
    "bubble",
    "overhead_s",
    "flops",
    "matmul_flops",
    "read_bytes",
    "write_bytes",
    "comm_bytes",
    "weight_bytes",
    "kv_cache_bytes",
    "activation_peak_bytes",
    "peak_memory_bytes",
    "peak_at",
    "bound",
)

STEP = ("batch", "new", "context")

LONG = 10_000_000  # number of points of a grid; each result takes seconds


class Report(Footprint, Result):
    """The cost of one step of a program on a device: `batch` sequences with `new` tokens each and `context`
    cached tokens.

    `beside` are other sequences in the step, as mappings with the same three keys, such as a prefill chunk
    with decodes. Their work is merged: weights are read once, products contain the rows of all sequences, and
    attention is summed. `model` is a cost model of the device; the default is calibrated if possible, and
    otherwise ideal. `phase` selects a phase of the program; the default is decode for one new token per
    sequence, and otherwise prefill. `cache_policy` is the rule of cache allocation: exact, paged or unified
    (`memory/caches.py`).

    Values are those of one rank of each pipeline stage, and memory is that of the stage with the highest
    peak. They are in SI units: exact integers at a point, float64 arrays on a grid.
    """

    program: Program
    device: Device
    beside: tuple[tuple[Number, Number, Number], ...]
    shape: tuple[int, ...]
    phase: str
    cache_policy: str
    plan: StepEvaluator
    _stated: str

    def __init__(
        self,
        program: Program,
        device: Device,
        *,
        batch: Any,
        new: Any,
        context: Any,
        beside: Iterable[Mapping[str, Any]] = (),
        model: DeviceCostModel | None = None,
        phase: str = "",
        cache_policy: str = "exact",
    ) -> None:
        others = [context_sizes(part) for part in items("beside", beside, "other sequences")]
        steps = ((check_sizes if others else check_packed)(batch, new, context), *others)
        vars(self)["_stated"], cache_policy = phase, policy(cache_policy).name
        program, phase, at = batch_program(program, steps, phase)
        shape = at.shape
        if math.prod(shape) > POINTS:
            raise InputError(f"a grid of {math.prod(shape):,} points; the limit is {POINTS:,}")
        if math.prod(shape) > LONG:
            import logging

            log, points = logging.getLogger("llmir"), f"{math.prod(shape):,}"
            log.info("each figure of a grid of %s points takes seconds or minutes", points)
        vars(self).update(program=program, device=device, shape=shape, phase=phase, _points=at)
        vars(self).update(beside=steps[1:], cache_policy=cache_policy)
        if not isinstance(at, PackedBinding):
            vars(self).update(zip(STEP, steps[0], strict=True), at=at)
        model = model or models.model(device)
        refuse_padding(model.runs, "beside", steps)
        vars(self)["plan"] = self._plan(model)

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in ("program", "device", *STEP)}
        named |= {"phase": self._stated, "cache_policy": self.cache_policy}
        beside = [dict(zip(STEP, step, strict=True)) for step in self.beside]
        return rebuild, (Report, {**named, "beside": beside, "model": self.plan.model})

    def _plan(self, model: DeviceCostModel) -> StepEvaluator:
        both = isinstance(self._points, MixedBinding) and len(set(self._points.phases)) > 1
        return (mixed_step_evaluator if both else step_evaluator)(self.program, model, self.cache_policy)

    def _total(self, size: Size) -> Number:
        return sweep(lambda at: at(size), self._points)

    @property
    def cost_model(self) -> str:
        """The name of the cost model behind the times."""
        return self.plan.model.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: assumptions, ignored fields, dtypes that the device lacks, idle ranks."""
        return (*program_notes(self.program), *self.plan.notes, *idle_ranks_note(self.program, self._points))

    @figure
    def time_s(self) -> Number:
        """Seconds of the step through all stages."""
        return self._timed(lambda timing: timing.step)

    @figure
    def ideal_time_s(self) -> Number:
        """Seconds by the roofline: a lower bound."""
        ideal = self._plan(models.model(self.device, "ideal"))
        return (
            self.time_s
            if self.plan is ideal
            else sweep(lambda at: ideal.timing(at).step, self._points, WHOLE)
        )

    @figure
    def error(self) -> Number | None:
        """The mean relative error of these times, from the ops with a known error; None for a bound."""
        lent, model = [(0.0, 0.0)] * len(self.work), self.plan.model
        for kind in self.plan.kinds:
            *_, which = self._figures[kind.priced]
            one = kind.price.held(which)
            of_others = getattr(one, "lent", 0.0), getattr(one, "beyond", 0.0)
            lent[kind.first] = of_others
            for i, _ in kind.others:
                lent[i] = of_others
        return evaluate.mean_error(self.work, lent, model.host_error or 0.0)

    @figure
    def period_s(self) -> Number:
        """Seconds from this step to the next one that uses its tokens, in a long series of equal steps."""
        return self._timed(lambda timing: timing.period)

    @figure
    def interval_s(self) -> Number:
        """Seconds between equal steps while other requests keep all stages busy."""
        return self._timed(lambda timing: timing.interval)

    @figure
    def busy_s(self) -> Number:
        """Seconds in which stages work, added over all stages: ops and the engine's overhead, but no
        bubbles.
        """
        return self._timed(lambda timing: timing.busy)

    @figure
    def bubble(self) -> Number:
        """The share of the step in which stages wait for one another."""
        return self._timed(lambda timing: timing.bubble)

    @figure
    def flops(self) -> Number:
        """All FLOPs."""
        return self._total(self.plan.totals.get("flops", 0))

    @figure
    def matmul_flops(self) -> Number:
        """FLOPs of matrix products, 2·m·n·k."""
        return self._total(self.plan.totals.get("matmul_flops", 0))

    @figure
    def matmul_flops_by_kind(self) -> Mapping[str, Number]:
        """FLOPs of matrix products for each block that has any."""
        found: dict[str, Size] = {}
        for row in self.plan.rows:
            if row.work.matrix:
                runs = row.repeat * self.program.micro_batches
                found[row.block] = found.get(row.block, 0) + runs * row.work.matrix
        return {block: self._total(size) for block, size in found.items()}

    @figure
    def read_bytes(self) -> Number:
        """Bytes read from memory; a float if they include the expected traffic of experts."""
        return self._total(self.plan.totals.get("read_bytes", 0))

    @figure
    def write_bytes(self) -> Number:
        """Bytes written to memory."""
        return self._total(self.plan.totals.get("write_bytes", 0))

    @figure
    def bytes_by_role(self) -> Mapping[str, Number]:
        """The bytes that are read from weights, activations and caches, and the bytes that are written to
        activations and caches.
        """
        names = (f"{role}_bytes" for role in TRAFFIC)
        return {name: self._total(self.plan.totals.get(name, 0)) for name in names}

    @figure
    def comm_bytes(self) -> Number:
        """Bytes sent to other ranks."""
        return self._total(self.plan.totals.get("comm_bytes", 0))

    @figure
    def bound(self) -> Mapping[str, Number]:
        """The share of each bound, and `bubble`: they add up to 1."""
        shares: dict[str, Number] = dict.fromkeys((*BOUNDS, BUBBLE), 0.0)
        for row in self.ops:
            for bound in shares if self.shape else (row.bound,):
                shares[bound] = shares[bound] + row.share * (row.bound == bound)
        return shares

    def _timed(self, figure: Callable[[Timing], Number]) -> Number:
        """A figure of the step's timing; on a grid, it is computed in blocks."""
        many = math.prod(self.shape) > 2 * WHOLE
        timing = self.plan.timing if many else lambda at: self._timing
        return sweep(lambda at: figure(timing(at)), self._points, WHOLE)

    @cached_property
    def _timing(self) -> Timing:
        if self.shape:
            return self.plan.timing(self.at)
        return Timing(self._seconds.whole, self.program.micro_batches)

    @cached_property
    def _seconds(self) -> StepSeconds:
        return self._evaluated[0]

    @cached_property
    def overheads(self) -> tuple[Overhead, ...]:
        """The engine overhead of a micro-batch on each stage; empty without an engine."""
        if not self.plan.host:
            return ()
        return tuple(Overhead(*map(seal, each)) for each in self._seconds.overheads)

    @figure
    def all_stages_s(self) -> Number:
        """Seconds of the step times the number of stages, to which `share` refers."""
        return len(self.program.entries) * self.time_s

    @figure
    def ops_s(self) -> Number:
        """Seconds of all ops, on all stages together."""
        return sum((row.total_s for row in self.work), start=0.0)

    @figure
    def overhead_s(self) -> Number:
        """Seconds that the engine adds to the ops, on all stages together."""
        return sum((row.total_s for row in self.engine), start=0.0)

    @figure
    def overhead(self) -> Mapping[str, Number]:
        """The parts of `overhead_s`, by the names in `Overhead`."""
        m, stages = self.program.micro_batches, self.overheads or (Overhead(),)
        sums = (m * sum(part) for part in zip(*stages, strict=True))
        return dict(zip(Overhead._fields, sums, strict=True))

    @cached_property
    def ops(self) -> tuple[OpCost, ...]:
        """The rows of each stage: its ops in schedule order, the engine overhead, and the bubble.

        On every stage, Σ `time_s` × `repeat` equals the time of the step; the shares of all rows add up to 1.
        No row is negative.
        """
        if len(self.program.entries) == 1:
            return (*self.work, *self.engine)
        return tuple(sorted((*self.work, *self.engine, *self._bubbles()), key=lambda row: row.stage))

    @cached_property
    def work(self) -> tuple[OpCost, ...]:
        """Only the rows of ops, in schedule order."""
        parts = self.program.micro_batches
        return evaluate.op_costs(self.plan.kinds, self._figures, self.at, self.all_stages_s, parts)

    @cached_property
    def _figures(self) -> Sequence[Number]:
        return self._evaluated[1]()

    @cached_property
    def _evaluated(self) -> tuple[StepSeconds, Callable[[], Sequence[Number]]]:
        """The seconds of the stages, and a function that returns the values of the rows."""
        return self.plan.evaluated(self.at)

    @cached_property
    def engine(self) -> tuple[OpCost, ...]:
        """The rows of engine overhead: `engine_cpu`, `launch_gap`, `rank_skew`; empty without an engine."""
        return evaluate.engine_rows(self.plan, self.overheads, self.all_stages_s)

    def _bubbles(self) -> tuple[OpCost, ...]:
        """The rows of pipeline bubbles; their basis is the basis of the longest op."""
        if not self.work:
            return ()
        ideal: list[Number] = [0.0] * len(self.program.entries)
        for row, op in zip(self.plan.rows, self.work, strict=True):
            ideal[row.stage] = ideal[row.stage] + row.repeat * op.ideal_time_s
        least = Timing(tuple(ideal), self.program.micro_batches)
        longest = max(self.work, key=lambda op: float(np.sum(op.total_s)))
        known = {"basis": longest.basis, "error": self.error}
        return evaluate.bubbles(self.program, self._timing, least, self.all_stages_s, **known)

    @figure
    def stages(self) -> tuple[StageCost, ...]:
        """One row per pipeline stage."""
        return evaluate.stage_costs(self._seconds, self.program.micro_batches, self.plan.memories, self.at)

    def timeline(self) -> tuple[TimeSlice, ...]:
        """The timeline of the step, stage by stage."""

        return timeline(self)

    def to_dict(self) -> dict[str, Any]:
        """The phase of the JSON report; arrays become lists on a grid."""
        figures = {key: getattr(self, key) for key in PHASE_KEYS}
        parts = {**self.bytes_by_role, "overhead": self.overhead}
        rows = {"stages": [vars(s) for s in self.stages], "ops": [vars(op) for op in self.ops]}
        found: dict[str, Any] = plain(figures | parts | rows)
        return found

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame (pandas must be installed)."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([vars(op) | {"basis": str(op.basis)} for op in self.ops])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {getattr(self, name)}" for name in STEP)
        return f"<Report {self.program.name} on {self.device.name}: {sizes}>"


_PLAIN = frozenset((str, int, bool, type(None)))


def plain(value: Any) -> Any:
    """Values of Python's own types at all levels, for JSON; NaN becomes null."""
    kind = type(value)
    if kind is float:
        return value if isfinite(value) else None
    if kind in _PLAIN or isinstance(value, (str, int)):
        return value
    # Most values are finite numbers and words, which need no call.
    if isinstance(value, dict):
        return {
            k: v if (of := type(v)) in _PLAIN or (of is float and isfinite(v)) else plain(v)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [v if type(v) in _PLAIN else plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return str(value) if isinstance(value, Basis) else value


# Timeline

_Fields = dict[str, Any]  # of a `Slice`, by name
STREAM = 7  # the first CUDA stream of torch, in which its kernels run; ops of a step do not overlap


@dataclass(frozen=True)
class TimeSlice:
    """A time slice of the ranks of a stage, which run in parallel: one execution of an op, or a wait.

    `op` is the name of its row in the report, and `path` includes layer numbers. FLOPs and bytes are those of
    one rank; `live_bytes` are its activations during the slice. Waits have no FLOPs or bytes.
    """

    op: str
    path: str
    kind: str
    stage: int
    rank: int  # the first of its stage
    micro_batch: int
    stream: int
    start_s: float
    end_s: float
    time_s: float  # equal to its row, to the last digit
    bound: str
    basis: str
    error: float | None
    flops: int | float = 0
    read_bytes: int | float = 0
    write_bytes: int | float = 0
    comm_bytes: int | float = 0
    live_bytes: int | float = 0


class OpRun(NamedTuple):
    """One run of an op: its name in the report, its name with numbered layers, and its moment in `Memory`."""

    op: str
    path: str
    moment: int


def op_runs(program: Program, entry: str) -> Iterator[OpRun]:
    """All runs of ops in an entry, in schedule order, with every iteration of its loops."""
    prefix = program.prefix(entry)
    return _runs(program, program[entry], prefix, prefix, 0, 0)


def _runs(program: Program, graph: Graph, op: str, path: str, layer: int, moment: int) -> Iterator[OpRun]:
    starts = program.iterations(graph, Layers(layer))
    for node in graph.nodes:
        if loop := node.op.loop:
            body, size = program[loop.body], _moments(program, loop.body)
            for i, first in enumerate(starts[node.name]):
                at = moment + size * _walked(i, loop.times)
                inner = f"{path}{node.name}[{first}]."
                yield from _runs(program, body, f"{op}{node.name}.", inner, first, at)
            moment += size * (_walked(loop.times - 1, loop.times) + 1)
        elif not node.op.source:
            if node.op.runs:
                yield OpRun(op + node.name, path + node.name, moment)
            moment += 1


@lru_cache(maxsize=1024)
def _moments(program: Program, name: str) -> int:
    """The number of moments of a graph in `Memory`: one for each op, and those of the distinct iterations of
    each loop.
    """
    found = 0
    for node in program[name].nodes:
        if loop := node.op.loop:
            found += _moments(program, loop.body) * (_walked(loop.times - 1, loop.times) + 1)
        else:
            found += not node.op.source
    return found


def _walked(iteration: int, times: int) -> int:
    """The kind of an iteration in terms of memory: the first, an inner one, or the last."""
    return 0 if iteration == 0 else min(times - 1, 2) if iteration == times - 1 else 1


SLICE_S, SLICE_BYTES = 2.7e-5, 3200  # per slice with its events in a trace, measured on 300,000 slices


def timeline(report: Report) -> tuple[TimeSlice, ...]:
    """The slices of a step, stage by stage, in order, without gaps from 0 to `time_s`.

    `Timing` defines the schedule of micro-batches. InputError for a grid, which has many steps, and for a
    step of two phases, whose ops have no single order.
    """
    if report.shape:
        raise InputError(f"a timeline needs a report of one point, got a grid of {report.shape}")
    if isinstance(report.at, MixedBinding) and len(set(report.at.phases)) > 1:
        raise InputError("a timeline shows a step of one phase; this step mixes prefill and decode")
    works = [_StageTimeline(report, stage) for stage in range(report.plan.depth)]
    count = report.program.micro_batches * sum(len(work.pieces) for work in works)
    what, amount = f"a timeline of {count:,} slices", {"seconds": SLICE_S, "memory": SLICE_BYTES}
    check_work(what, "ask for fewer micro-batches", **{name: count * each for name, each in amount.items()})
    found: list[list[TimeSlice]] = [[] for _ in works]
    free = [0.0] * len(works)
    last = report.program.micro_batches - 1
    for micro_batch in range(last + 1):
        there = 0.0
        for stage, work in enumerate(works):
            there = max(free[stage], there)
            found[stage] += work.wait(free[stage], there, micro_batch)
            found[stage] += work.slices(there, micro_batch)
            there = free[stage] = found[stage][-1].end_s if found[stage] else there
    for stage, work in enumerate(works):
        found[stage] += work.wait(free[stage], max(free), last)
    return tuple(s for slices in found for s in slices)


class _StageTimeline:
    """The pieces of time of a stage for a micro-batch, relative to its start."""

    def __init__(self, report: Report, stage: int) -> None:
        program, plan = report.program, report.plan
        self.place: _Fields = {
            "stage": stage,
            "rank": stage * (program.devices // plan.depth),
            "stream": STREAM,
        }
        self.prefix = program.prefix(program.entries[stage])
        self.basis, self.error = "", None
        if engine := next((row for row in report.engine if row.stage == stage), None):
            self.basis, self.error = str(engine.basis), engine.error
        self.pieces = list(self._pieces(report, stage))

    def _pieces(self, report: Report, stage: int) -> Iterator[tuple[float, _Fields]]:
        plan, at, program = report.plan, report.at, report.program
        added = report.overheads[stage] if report.overheads else Overhead()
        ours = [i for i, row in enumerate(plan.rows) if row.stage == stage]
        costs = {plan.rows[i].name: report.work[i] for i in ours}
        facts = {name: _facts(cost) for name, cost in costs.items()}
        skew = plan.host.skew_time(1.0) if plan.host else 0.0
        late_s = {plan.rows[i].name: skew * collective_skew(plan.rows[i]) for i in ours}
        live = [at(moment.bytes) for moment in plan.memories[stage].moments]
        kernels = sum(plan.rows[i].repeat for i in ours)
        yield from self._engine("host_s", added.host_s)
        for run in op_runs(program, program.entries[stage]):
            yield from self._engine("launching_s", added.launching_s / kernels)
            yield from self._engine("skew_s", late_s[run.op])
            moment = {"path": run.path, "live_bytes": live[run.moment]}
            yield float(costs[run.op].time_s), {**facts[run.op], **moment}

    def _engine(self, part: str, time_s: Number) -> Iterator[tuple[float, _Fields]]:
        """A piece of engine overhead, if positive."""
        if time_s > 0:
            name = f"{self.prefix}{OVERHEAD_ROWS[part]}"
            words = {"kind": OVERHEAD, "bound": OVERHEAD, "basis": self.basis, "error": self.error}
            yield float(time_s), {"op": name, "path": name, **words}

    def slices(self, start_s: float, micro_batch: int) -> Iterator[TimeSlice]:
        """The pieces, from a moment on."""
        for time_s, facts in self.pieces:
            end_s = start_s + time_s
            times: _Fields = {"start_s": start_s, "end_s": end_s, "time_s": time_s}
            yield TimeSlice(**facts, **self.place, micro_batch=micro_batch, **times)
            start_s = end_s

    def wait(self, start_s: float, end_s: float, micro_batch: int) -> Iterator[TimeSlice]:
        """A wait for other stages, before a micro-batch or after the last one, if there is such a wait."""
        if end_s > start_s:
            name = f"{self.prefix}{BUBBLE}"
            wait: _Fields = {
                "op": name,
                "path": name,
                "kind": OVERHEAD,
                "bound": BUBBLE,
                "basis": "",
                "error": None,
            }
            times: _Fields = {"start_s": start_s, "end_s": end_s, "time_s": end_s - start_s}
            yield TimeSlice(**wait, **self.place, micro_batch=micro_batch, **times)


def _facts(op: OpCost) -> _Fields:
    """The fields of a slice that describe its op."""
    names = ("kind", "flops", "read_bytes", "write_bytes", "comm_bytes", "bound", "error")
    return {"op": op.name, "basis": str(op.basis), **{name: getattr(op, name) for name in names}}
