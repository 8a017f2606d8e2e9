"""The rows of a report: one an op, and the overheads that make them add up to the step on every stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.liveness import Memory
from llmir.backends.analysis.timing import Overhead, Timing
from llmir.backends.cost import Basis, Price, Row
from llmir.backends.cost.basis import CALIBRATED
from llmir.dataclass import dataclass
from llmir.dim import Binding, Number, Size
from llmir.frozen import Figures, sealed
from llmir.graph import Program

OVERHEAD, BUBBLE = "overhead", "bubble"


@dataclass(frozen=True)
class OpCost(Figures):
    """One execution of an op on one rank; a step runs it `repeat` times. Figures are arrays on a grid.

    Rows of kind `overhead` are no ops: they take time, and have no FLOPs and no bytes.
    """

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
    weight_read_bytes: Number  # with the next two `read_bytes`
    activation_read_bytes: Number
    kv_cache_read_bytes: Number
    activation_write_bytes: Number  # with the next one `write_bytes`
    kv_cache_write_bytes: Number
    comm_bytes: Number
    intensity: Number  # FLOPs per byte of memory traffic
    bound: Any
    share: Number  # of the step on all stages, all repeats together
    ideal_time_s: Number  # the roofline of the same
    basis: Basis  # what the time is made of: measured kernels, and whose, or rates of the datasheet
    error: Number | None  # the mean relative error that is known of such times
    shape: tuple[Any, ...]  # of the local first result

    @property
    def total_s(self) -> Number:
        """Seconds of all repeats together."""
        return sealed(self.repeat * self.time_s)

    def of(self, row: Row) -> OpCost:
        """The same of another op whose figures are the same."""
        other = object.__new__(OpCost)
        vars(other).update(vars(self), name=row.name, stage=row.stage, kind=row.kind, block=row.block)
        return other


@dataclass(frozen=True)
class StageCost(Figures):
    """A pipeline stage: one micro-batch's time, what the step is made of there, and one rank's memory.

    `ops_s`, `overhead_s` and `bubble_s` are of all micro-batches and add up to the step.
    """

    stage: int
    time_s: Number
    ops_s: Number
    overhead_s: Number
    bubble_s: Number
    weight_bytes: Number
    kv_cache_bytes: Number
    activation_peak_bytes: Number
    peak_memory_bytes: Number


def stages(
    timing: Timing, overheads: Sequence[Overhead], memories: Sequence[Memory], at: Binding
) -> tuple[StageCost, ...]:
    """One row a pipeline stage; `overheads` are none for what no engine serves."""
    parts, none = timing.micro_batches, (Overhead(),) * len(timing.stages)
    rows = zip(timing.stages, overheads or none, timing.bubbles, memories, strict=True)
    return tuple(
        StageCost(
            stage=i,
            time_s=time,
            ops_s=parts * (time - sum(engine)),
            overhead_s=parts * sum(engine),
            bubble_s=bubble,
            weight_bytes=at(m.weights),
            kv_cache_bytes=at(m.caches),
            activation_peak_bytes=m.transient(at),
            peak_memory_bytes=m.peak(at),
        )
        for i, (time, engine, bubble, m) in enumerate(rows)
    )


def over(part: Number, whole: Number) -> Number:
    """`part` / `whole`; NaN of nothing."""
    if isinstance(whole, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            return part / whole
    return part / whole if whole else math.nan


class Priced(NamedTuple):
    """A price at a point or on a grid: its time, what that is due to, the roofline's, and which one holds."""

    time: Number
    bound: Any
    least: Number
    holding: Price

    @classmethod
    def of(cls, price: Price, runs: Binding, at: Binding) -> Priced:
        """Those of a price: its time at the sizes that it runs at, its roofline at those asked for."""
        return cls(*price.due(runs), price.least(at), price.of(runs))


def op(row: Row, priced: Priced, at: Binding, micro_batches: int, step_s: Number) -> OpCost:
    """The row of an op, at a point or on a grid; `step_s` are the seconds of the step on all stages."""

    def whole(size: Size) -> Number:
        return np.broadcast_to(at(size), at.shape).astype(np.float64)

    of = whole if at.shape else at
    time, bound, least, holding = priced
    repeat = row.repeat * micro_batches
    amounts = {name: of(size) for name, size in row.amounts.items()}
    return OpCost(
        name=row.name,
        stage=row.stage,
        kind=row.kind,
        block=row.block,
        repeat=repeat,
        time_s=time,
        **amounts,
        intensity=over(amounts["flops"], amounts["read_bytes"] + amounts["write_bytes"]),
        bound=bound,
        share=over(repeat * time, step_s),
        ideal_time_s=least,
        basis=holding.basis,
        error=holding.error,
        shape=tuple(of(n) for n in row.shape.shape),
    )


def error(ops: Sequence[OpCost], prices: Sequence[Price], host_error: float) -> Number | None:
    """The mean relative error of a step of these ops, by those that it is known of; None where it is of none.

    Ops by kernels of one engine are off alike, so that their errors add up by their times; and whole runs of
    an engine are as far off at least as they were found to be. What borrowing adds knows nothing of that.
    """
    pairs = [(op, price) for op, price in zip(ops, prices, strict=True) if op.error is not None]
    if not pairs:
        return None
    own, lent, whole = 0.0, 0.0, 0.0
    for op, price in pairs:
        known = op.error or 0.0
        of_others = min(getattr(price, "lent", 0.0), known)
        own = own + op.share * (known**2 - of_others**2) ** 0.5
        lent, whole = lent + op.share * of_others, whole + op.share
    return np.hypot(np.maximum(over(own, whole), host_error), over(lent, whole))


def engine(
    program: Program, overheads: Sequence[Overhead], step_s: Number, error: float | None
) -> tuple[OpCost, ...]:
    """What the engine adds to the ops of a micro-batch, one row a stage; none where no engine serves."""
    return tuple(
        _overhead(
            program,
            stage,
            "engine_overhead",
            repeat=program.micro_batches,
            time_s=sum(parts),
            step_s=step_s,
            bound=OVERHEAD,
            block="engine",
            ideal_time_s=0.0,
            basis=CALIBRATED,  # an engine's CPU is fitted to whole runs, on whatever device
            error=error,
        )
        for stage, parts in enumerate(overheads)
    )


def bubbles(
    program: Program, timing: Timing, ideal: Timing, step_s: Number, **known: Any
) -> tuple[OpCost, ...]:
    """What each stage waits for the others in a step."""
    pairs = zip(timing.bubbles, ideal.bubbles, strict=True)
    return tuple(
        _overhead(
            program,
            stage,
            BUBBLE,
            repeat=1,
            time_s=time,
            step_s=step_s,
            bound=BUBBLE,
            block="pipeline",
            ideal_time_s=least,
            **known,
        )
        for stage, (time, least) in enumerate(pairs)
    )


def _overhead(
    program: Program,
    stage: int,
    name: str,
    *,
    repeat: int,
    time_s: Number,
    step_s: Number,
    bound: str,
    **known: Any,
) -> OpCost:
    grid = np.shape(step_s)
    none: Any = np.zeros(grid) if grid else 0
    sizes = [field for field in OpCost.__dataclass_fields__ if field.endswith(("_bytes", "flops"))]
    return OpCost(
        name=program.prefix(program.entries[stage]) + name,
        stage=stage,
        kind=OVERHEAD,
        repeat=repeat,
        time_s=time_s + none,
        intensity=none * math.nan,
        bound=np.full(grid, bound) if grid else bound,
        share=over(repeat * time_s, step_s),
        shape=(),
        **dict.fromkeys(sizes, none),
        **known,
    )
