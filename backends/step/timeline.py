"""A step as it goes by: what each pipeline stage does from its start to its end, slice after slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.ir.core.graph import Graph
from llmir.ir.core.layers import Layers
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, Mixed

from .costs import BUBBLE, OVERHEAD, OpCost
from .evaluate import Plan, late
from .timing import Overhead

if TYPE_CHECKING:
    from .report import Report

_Fields = dict[str, Any]  # of a `Slice`, by name
STREAM = 7  # torch's first of its own, in which its kernels run; nothing of a step runs beside another op


@dataclass(frozen=True)
class Slice:
    """A stretch of the time of a stage's ranks, which all do the same: one run of an op, or a wait.

    `op` is the name of its row in the report, `path` numbers the layers that it is in. FLOPs and bytes are
    those of one rank; `live_bytes` are its activations meanwhile. A wait has none of them.
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
    bound: str
    basis: str
    error: float | None
    flops: int | float = 0
    read_bytes: int | float = 0
    write_bytes: int | float = 0
    comm_bytes: int | float = 0
    live_bytes: int | float = 0

    @property
    def time_s(self) -> float:
        """How long it is."""
        return self.end_s - self.start_s


class Run(NamedTuple):
    """One run of an op: its name in the report, that with layers numbered, and its moment in `Memory`."""

    op: str
    path: str
    moment: int


def runs(program: Program, entry: str) -> Iterator[Run]:
    """All runs of ops in an entry, in schedule order, with every iteration of its loops."""
    prefix = program.prefix(entry)
    return _runs(program, program[entry], prefix, prefix, 0, 0)


def _runs(program: Program, graph: Graph, op: str, path: str, layer: int, moment: int) -> Iterator[Run]:
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
                yield Run(op + node.name, path + node.name, moment)
            moment += 1


@lru_cache(maxsize=1024)
def _moments(program: Program, name: str) -> int:
    """How many moments a graph has in `Memory`: one an op, and of a loop the iterations that differ."""
    found = 0
    for node in program[name].nodes:
        if loop := node.op.loop:
            found += _moments(program, loop.body) * (_walked(loop.times - 1, loop.times) + 1)
        else:
            found += not node.op.source
    return found


def _walked(iteration: int, times: int) -> int:
    """Which of the iterations that differ in memory one is: the first, those between, the last."""
    return 0 if iteration == 0 else min(times - 1, 2) if iteration == times - 1 else 1


def timeline(report: Report) -> tuple[Slice, ...]:
    """The slices of a step: stage by stage, each stage's in order, from 0 to `time_s` without a gap.

    Micro-batches go through the stages as `Timing` says. `InputError` for a grid, which is many steps, and
    for a step of two phases, whose ops have no one order.
    """
    if report.shape:
        raise InputError(f"a timeline is of one step, not of a grid of {report.shape}")
    if isinstance(report.at, Mixed) and len(set(report.at.phases)) > 1:
        raise InputError("a timeline is of a step of one phase; this one reads prompts beside decodes")
    works = [_Stage(report, stage) for stage in range(report.plan.depth)]
    found: list[list[Slice]] = [[] for _ in works]
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


class _Stage:
    """What a stage does with a micro-batch, whenever that comes: pieces of time, one after another."""

    def __init__(self, report: Report, stage: int) -> None:
        program, plan, at = report.program, report.plan, report.at
        self.place: _Fields = {
            "stage": stage,
            "rank": stage * (program.devices // plan.depth),
            "stream": STREAM,
        }
        self.prefix = program.prefix(program.entries[stage])
        self.basis, self.error = "", None
        if engine := next((row for row in report.engine if row.stage == stage), None):
            self.basis, self.error = str(engine.basis), engine.error
        self.pieces = list(self._pieces(report, stage, plan.overheads(at)))

    def _pieces(
        self, report: Report, stage: int, overheads: tuple[Overhead, ...]
    ) -> Iterator[tuple[float, _Fields]]:
        plan, at, program = report.plan, report.at, report.program
        added = overheads[stage] if overheads else Overhead()
        ours = [i for i, row in enumerate(plan.rows) if row.stage == stage]
        facts = {plan.rows[i].name: _facts(report.work[i]) for i in ours}
        seconds = {plan.rows[i].name: time for i, time in zip(ours, _launched(plan, at, ours), strict=True)}
        skew = plan.host.waited(1.0) if plan.host else 0.0
        late_s = {plan.rows[i].name: skew * late(plan.rows[i]) for i in ours}
        live = [at(moment.bytes) for moment in plan.memories[stage].moments]
        kernels = sum(plan.rows[i].repeat for i in ours)
        yield from self._engine("host", added.host_s)
        for run in runs(program, program.entries[stage]):
            yield from self._engine("launch", added.launching_s / kernels)
            yield from self._engine("late_ranks", late_s[run.op])
            yield seconds[run.op], {**facts[run.op], "path": run.path, "live_bytes": live[run.moment]}

    def _engine(self, what: str, time_s: float) -> Iterator[tuple[float, _Fields]]:
        """A piece of the engine's overhead, if there is any."""
        if time_s > 0:
            name = f"{self.prefix}engine_overhead"
            words = {"kind": OVERHEAD, "bound": OVERHEAD, "basis": self.basis, "error": self.error}
            yield time_s, {"op": name, "path": f"{name}.{what}", **words}

    def slices(self, start_s: float, micro_batch: int) -> Iterator[Slice]:
        """The pieces, from a moment on."""
        for time_s, facts in self.pieces:
            end_s = start_s + time_s
            yield Slice(**facts, **self.place, micro_batch=micro_batch, start_s=start_s, end_s=end_s)
            start_s = end_s

    def wait(self, start_s: float, end_s: float, micro_batch: int) -> Iterator[Slice]:
        """A wait for other stages, before a micro-batch or after the last, if there is one."""
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
            yield Slice(**wait, **self.place, micro_batch=micro_batch, start_s=start_s, end_s=end_s)


def _facts(op: OpCost) -> _Fields:
    """What a slice says of the op that it is a run of."""
    names = ("kind", "flops", "read_bytes", "write_bytes", "comm_bytes", "bound", "error")
    return {"op": op.name, "basis": str(op.basis), **{name: getattr(op, name) for name in names}}


def _launched(plan: Plan, at: Binding, rows: Sequence[int]) -> list[float]:
    """Seconds of one run of each of these rows, as the engine launches it."""
    padded, hidden = plan.runs(at), plan.host.hidden if plan.host and plan.captured(at) else None
    found: dict[tuple[int, bool], float] = {}
    for i in rows:
        key, price = plan.keys[i], plan.prices[i]
        if key not in found:
            sizes = padded if plan.pads[i] else at
            time = price.time(sizes) if hidden is None else price.in_graph(sizes, hidden)[1]
            found[key] = float(time)
    return [found[plan.keys[i]] for i in rows]
