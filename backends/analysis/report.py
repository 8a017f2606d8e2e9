"""The cost of one step: figures of the whole and of each op, evaluated when asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmir.backends import cost
from llmir.backends.analysis.asked import binding, checked, other
from llmir.backends.analysis.liveness import Memory, Peak
from llmir.backends.analysis.plan import Plan, plan, sweep
from llmir.backends.cost import BOUNDS, Model, Price, Row
from llmir.dim import Binding, Mixed, Number, Size, maximum
from llmir.errors import InputError
from llmir.frozen import Figures, Immutable, figure, rebuilt, sealed
from llmir.graph import Program
from llmir.hw import Device

PHASE_KEYS = (
    "time_s",
    "ideal_time_s",
    "error",
    "period_s",
    "bubble",
    "host_s",
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


@dataclass(frozen=True)
class OpCost(Figures):
    """One execution of an op on one rank; a step runs it `repeat` times. Figures are arrays on a grid."""

    name: str
    stage: int
    kind: str
    block: str
    repeat: int
    time_s: Number
    flops: Number
    matmul_flops: Number
    read_bytes: Number
    write_bytes: Number
    comm_bytes: Number
    intensity: Number  # FLOPs per byte of memory traffic
    bound: Any
    share: Number  # of the time of all ops, all repeats together
    ideal_time_s: Number  # the roofline of the same
    basis: str  # what the time rests on: calibrated, transferred, datasheet or efficiency
    error: float | None  # the mean relative error that is known of such times
    shape: tuple[Any, ...]  # of the local first result


@dataclass(frozen=True)
class StageCost(Figures):
    """A pipeline stage: the time of one micro-batch, and the memory of one rank with all of them."""

    stage: int
    time_s: Number
    weight_bytes: Number
    kv_cache_bytes: Number
    activation_peak_bytes: Number
    peak_memory_bytes: Number


class Report(Immutable):
    """The cost of one step of a program on a device: `batch` sequences, `new` tokens each, `context` cached.

    `beside` are other sequences in the same step, as mappings of the same three: a chunk of a prefill beside
    decodes. Their work is merged: weights are read once, products have the rows of all, attention is summed.
    `model` is a cost model of the device; by default calibrated where it can be, else ideal.

    Figures are of one rank of each pipeline stage, and those of memory of the stage where it is fullest, in
    SI units: exact integers at a point, float64 arrays on a grid.
    """

    program: Program
    device: Device
    batch: Number
    new: Number
    context: Number
    beside: tuple[tuple[Number, Number, Number], ...]
    at: Binding
    shape: tuple[int, ...]
    plan: Plan

    def __init__(
        self,
        program: Program,
        device: Device,
        *,
        batch: Any,
        new: Any,
        context: Any,
        beside: Iterable[Mapping[str, Any]] = (),
        model: Model | None = None,
    ) -> None:
        steps = checked(batch, new, context), *(other(part) for part in beside)
        parts = [binding(program.micro_batches, *step) for step in steps]
        at = Mixed(parts) if len(parts) > 1 else parts[0]
        try:
            shape = at.shape
        except ValueError:
            shapes = ", ".join(str(np.shape(v)) for step in steps for v in step)
            raise InputError(f"batch, new and context do not broadcast together: shapes {shapes}") from None
        vars(self).update(program=program, device=device, at=at, shape=shape)
        vars(self).update(zip(STEP, steps[0], strict=True), beside=steps[1:])
        vars(self)["plan"] = plan(program, model or cost.model(device))

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in ("program", "device", *STEP)}
        beside = [dict(zip(STEP, step, strict=True)) for step in self.beside]
        return rebuilt, (Report, {**named, "beside": beside, "model": self.plan.model})

    def _sum(self, sizes: Iterable[tuple[int, Size]]) -> Number:
        total: Size = 0
        for repeat, size in sizes:
            total = total + repeat * size
        total = total * self.program.micro_batches
        return sweep(lambda at: at(total), self.at)

    @property
    def cost_model(self) -> str:
        """The name of the cost model behind the times."""
        return self.plan.model.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: assumptions, ignored fields, types that the device lacks."""
        return (*self.program.notes, *self.plan.notes)

    @figure
    def time_s(self) -> Number:
        """Seconds, through all stages."""
        return sweep(lambda at: self.plan.timing(at).step, self.at)

    @figure
    def ideal_time_s(self) -> Number:
        """Seconds by the roofline: a lower bound."""
        ideal = plan(self.program, cost.model(self.device, "ideal"))
        return self.time_s if self.plan is ideal else sweep(lambda at: ideal.timing(at).step, self.at)

    @figure
    def error(self) -> Number | None:
        """The mean relative error of such times, by the ops and host that it is known of; None of a bound."""
        known = [(op.share, op.error) for op in self.ops if op.error is not None]
        if not known:
            return None
        if (host := self.plan.model.host_error) is not None:
            known.append((_over(self.host_s, self.busy_s), host))
        return _over(sum(share * error for share, error in known), sum(share for share, _ in known))

    @figure
    def period_s(self) -> Number:
        """Seconds from this step to the next that needs its tokens, in a long run of such steps."""
        return sweep(lambda at: self.plan.timing(at).period, self.at)

    @figure
    def interval_s(self) -> Number:
        """Seconds between such steps when other requests keep all stages busy."""
        return sweep(lambda at: self.plan.timing(at).interval, self.at)

    @figure
    def busy_s(self) -> Number:
        """Seconds that all stages work, together: the sum over ops, and what they wait for the host."""
        return sweep(lambda at: self.plan.timing(at).busy, self.at)

    @figure
    def bubble(self) -> Number:
        """The share of the step that stages wait for one another."""
        return sweep(lambda at: self.plan.timing(at).bubble, self.at)

    @figure
    def flops(self) -> Number:
        """All FLOPs."""
        return self._sum((r.repeat, r.flops) for r in self.plan.rows)

    @figure
    def matmul_flops(self) -> Number:
        """FLOPs of matrix products, 2·m·n·k."""
        return self._sum((r.repeat, r.work.matrix) for r in self.plan.rows)

    @figure
    def matmul_flops_by_kind(self) -> Mapping[str, Number]:
        """FLOPs of matrix products for each block that has any."""
        blocks = dict.fromkeys(r.block for r in self.plan.rows if r.work.matrix)
        rows = self.plan.rows
        return {b: self._sum((r.repeat, r.work.matrix) for r in rows if r.block == b) for b in blocks}

    @figure
    def read_bytes(self) -> Number:
        """Bytes read from memory (with expected expert traffic, a float)."""
        return self._sum((r.repeat, r.read) for r in self.plan.rows)

    @figure
    def write_bytes(self) -> Number:
        """Bytes written to memory."""
        return self._sum((r.repeat, r.write) for r in self.plan.rows)

    @figure
    def comm_bytes(self) -> Number:
        """Bytes sent to other ranks."""
        return self._sum((r.repeat, r.work.wire) for r in self.plan.rows)

    @figure
    def weight_bytes(self) -> Number:
        """Resident bytes of weights."""
        return self._held(lambda memory, at: at(memory.weights))

    @figure
    def kv_cache_bytes(self) -> Number:
        """Resident bytes of the caches, once this step has written to them."""
        return self._held(lambda memory, at: at(memory.caches))

    @figure
    def activation_peak_bytes(self) -> Number:
        """Transient bytes at the fullest moment, logits included."""
        return self._held(Memory.transient)

    @figure
    def peak_memory_bytes(self) -> Number:
        """Weights, caches and activations at the fullest moment."""
        return self._held(Memory.peak)

    def _held(self, figure: Callable[[Memory, Binding], Number]) -> Number:
        """A figure of the stage whose memory is fullest."""
        return sweep(lambda at: self.plan.fullest(lambda memory: figure(memory, at), at), self.at)

    @figure
    def peak(self) -> Peak:
        """The fullest moment of a single point: its op, and the tensors alive. `InputError` on a grid."""
        if self.shape:
            raise InputError(
                f"the tensors alive at the peak are those of one point, not of a grid {self.shape}"
            )
        return max(self.plan.memories, key=lambda memory: memory.peak(self.at)).fullest(self.at)

    @property
    def peak_at(self) -> Any:
        """The op at which memory is fullest; an array of names on a grid."""
        if not self.shape:
            return self.peak.op
        names: list[str] = []
        first: dict[int, int] = {}  # where the names of a stage begin
        for memory in self.plan.memories:
            first[id(memory)] = len(names)
            names += [m.op for m in memory.distinct]
        index = self._held(lambda memory, at: memory.fullest_index(at) + first[id(memory)])
        return sealed(np.array(names)[np.asarray(index).astype(int)])

    @figure
    def bound(self) -> Mapping[str, Number]:
        """The share of time that each bound accounts for."""
        shares: dict[str, Number] = dict.fromkeys(BOUNDS, 0.0)
        for op in self.ops:
            for bound in BOUNDS:
                shares[bound] = shares[bound] + op.share * (op.bound == bound)
        if self.plan.model.host:
            shares["launch"] = shares["launch"] + _over(self.host_s, self.busy_s)
        return shares

    @figure
    def ops_s(self) -> Number:
        """Seconds of all ops, on all stages together."""
        if not self.plan.model.host:
            return self.busy_s
        return sum(op.repeat * op.time_s for op in self.ops)

    @figure
    def host_s(self) -> Number:
        """Seconds that stages wait for the host, together: what no op accounts for."""
        return maximum(self.busy_s - self.ops_s, 0.0)

    @figure
    def ops(self) -> tuple[OpCost, ...]:
        """One row an op, in schedule order; Σ row × repeat is what the stages work together."""
        return tuple(map(self._op, self.plan.rows, self.plan.prices))

    def _op(self, row: Row, price: Price) -> OpCost:
        def at(size: Size) -> Number:
            value = self.at(size)
            return np.broadcast_to(value, self.shape).astype(np.float64) if self.shape else value

        time, bound = price.due(self.at)
        repeat = row.repeat * self.program.micro_batches
        read, write, flops = at(row.read), at(row.write), at(row.flops)
        moved, holding = read + write, price.of(self.at)
        return OpCost(
            name=row.name,
            stage=row.stage,
            kind=row.kind,
            block=row.block,
            repeat=repeat,
            time_s=time,
            flops=flops,
            matmul_flops=at(row.work.matrix),
            read_bytes=read,
            write_bytes=write,
            comm_bytes=at(row.work.wire),
            intensity=_over(flops, moved),
            bound=bound,
            share=_over(repeat * time, self.busy_s),
            ideal_time_s=price.least(self.at),
            basis=holding.basis,
            error=holding.error,
            shape=tuple(at(n) for n in row.shape.shape),
        )

    @figure
    def stages(self) -> tuple[StageCost, ...]:
        """One row a pipeline stage; one in all where there are no others."""
        at, times = self.at, self.plan.timing(self.at).stages
        return tuple(
            StageCost(i, time, at(m.weights), at(m.caches), m.transient(at), m.peak(at))
            for i, (time, m) in enumerate(zip(times, self.plan.memories, strict=True))
        )

    def to_dict(self) -> dict[str, Any]:
        """The phase of the JSON report; arrays become lists on a grid."""
        phase = {key: getattr(self, key) for key in PHASE_KEYS}
        plain: dict[str, Any] = _plain(
            {**phase, "stages": [vars(s) for s in self.stages], "ops": [vars(op) for op in self.ops]}
        )
        return plain

    def to_pandas(self) -> Any:
        """The ops as a pandas DataFrame (pandas must be installed)."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([vars(op) for op in self.ops])

    def __repr__(self) -> str:
        return (
            f"<Report {self.program.name} on {self.device.name}: "
            f"batch {self.batch}, new {self.new}, context {self.context}>"
        )

    def _repr_html_(self) -> str:
        from llmir.backends.export.table import report_html

        return report_html(self)


def _over(part: Number, whole: Number) -> Number:
    if isinstance(whole, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            return part / whole
    return part / whole if whole else math.nan


def _plain(value: Any) -> Any:
    """Python's own types all the way down, for JSON; NaN becomes null."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
