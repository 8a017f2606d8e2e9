"""The rows of a report: one an op, and the overheads that make them add up to the step on every stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.op_time import Price
from llmir.backends.memory.liveness import Memory
from llmir.backends.work.basis import CALIBRATED, Basis
from llmir.backends.work.limit import BOUNDS
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.values import Figures, FrozenDict, read_only, sealed
from llmir.ir.core.program import Program
from llmir.ir.sizes.atoms import minimum
from llmir.ir.sizes.binding import Binding

from .timing import Overhead, Timing

OVERHEAD, BUBBLE = "overhead", "bubble"
_new, _set = object.__new__, object.__setattr__


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

    @classmethod
    def made(cls, fields: dict[str, Any]) -> OpCost:
        """Of fields in order, which cannot be written: quick, as each of a report's rows has two dozen."""
        row = _new(cls)
        _set(row, "__dict__", fields)
        return row

    def of(self, named: Mapping[str, Any]) -> OpCost:
        """The same of another op whose figures are the same."""
        return self.made({**vars(self), **named})


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
            return read_only(part / whole)
    return part / whole if whole else math.nan


class Priced(NamedTuple):
    """A price at a point or on a grid: its time, what that is due to, the roofline's, and which one holds.

    `bound` and `which` are places, in `BOUNDS` and of one of several prices, so that symbols go through.
    """

    time: Number
    bound: Number
    least: Number
    which: Number

    @classmethod
    def of(cls, price: Price, runs: Binding, at: Binding) -> Priced:
        """Those of a price: its time at the sizes that it runs at, its roofline at those asked for."""
        return cls(*price.due(runs), price.least(at), price.which(runs))


class Kind(NamedTuple):
    """Rows that are alike: one of them, its number and the others', and where `Plan.figures` has theirs.

    These are what it is `priced`, the `amounts` that it does, and the `shape` of its result. `fields` are
    those of its row, in order, of which only what it is called is known.
    """

    row: Row
    price: Price
    pads: bool
    first: int
    fields: FrozenDict[str, Any]
    others: tuple[tuple[int, Mapping[str, Any]], ...]
    priced: slice
    amounts: slice
    shape: slice


def kinds(rows: Sequence[Row], prices: Sequence[Price], keys: Sequence[tuple[int, bool]]) -> tuple[Kind, ...]:
    """Rows whose figures are the same at every point, as one; `keys` are of their prices, and if they pad."""
    alike: dict[Any, list[int]] = {}
    for i, (row, key) in enumerate(zip(rows, keys, strict=True)):
        figures = key, row.repeat, tuple(row.amounts.values()), row.shape.shape
        alike.setdefault(figures, []).append(i)
    distinct, each = dict.fromkeys(key for key, *_ in alike), len(Priced._fields)
    places = {key: slice(each * i, each * (i + 1)) for i, key in enumerate(distinct)}
    found, end = [], each * len(distinct)
    for (key, *_), (first, *others) in alike.items():
        row = rows[first]
        start, middle = end, end + len(row.amounts)
        end = middle + len(row.shape.shape)
        where = places[key], slice(start, middle), slice(middle, end)
        rest = tuple((i, named(rows[i])) for i in others)
        fields = FrozenDict({**dict.fromkeys(OpCost.__dataclass_fields__), **named(row)})
        found.append(Kind(row, prices[first], key[1], first, fields, rest, *where))
    return tuple(found)


def work(
    kinds: Sequence[Kind], values: Sequence[Number], at: Binding, step_s: Number, parts: int
) -> tuple[OpCost, ...]:
    """The rows of all ops in schedule order, at a point or on a grid, of the `values` of `Plan.figures`.

    `step_s` are the seconds of the step on all stages, `parts` its micro-batches.
    """
    found: dict[int, OpCost] = {}
    for op, price, _, first, known, others, priced, amounts, shape in kinds:
        time, bound, least, which = values[priced]
        figures, sizes, repeat, holding = values[amounts], values[shape], op.repeat * parts, price.held(which)
        fields = known.copy()  # in the time that two or three entries of a new one take
        if at.shape:
            time, least, *figures = (_whole(n, at) for n in (time, least, *figures))
            sizes = tuple(_whole(n, at) for n in sizes)
            fields["bound"] = read_only(_WORDS[_whole(bound, at).astype(int)])
        else:
            fields["bound"] = BOUNDS[int(bound)]
        flops, matmul, read, write, weights, activations, cached, made, kept, sent = figures
        fields["repeat"] = repeat
        fields["time_s"] = time
        fields["flops"] = flops
        fields["matmul_flops"] = matmul
        fields["read_bytes"] = read
        fields["write_bytes"] = write
        fields["weight_read_bytes"] = weights
        fields["activation_read_bytes"] = activations
        fields["kv_cache_read_bytes"] = cached
        fields["activation_write_bytes"] = made
        fields["kv_cache_write_bytes"] = kept
        fields["comm_bytes"] = sent
        fields["intensity"] = over(flops, read + write)
        fields["share"] = over(repeat * time, step_s)
        fields["ideal_time_s"] = least
        fields["basis"] = holding.basis
        fields["error"] = holding.error
        fields["shape"] = sizes
        found[first] = row = OpCost.made(fields)
        for i, named in others:
            found[i] = row.of(named)
    return tuple(found[i] for i in range(len(found)))


def named(row: Row) -> Mapping[str, Any]:
    """What an op is called, and where it stands: the first fields of its row."""
    return FrozenDict(name=row.name, stage=row.stage, kind=row.kind, block=row.block)


_WORDS = np.array(BOUNDS)


def _whole(number: Number, at: Binding) -> Number:
    return read_only(np.broadcast_to(number, at.shape).astype(np.float64))


def error(ops: Sequence[OpCost], lent: Sequence[tuple[Number, Number]], host_error: float) -> Number | None:
    """The mean relative error of a step of these ops, by those that it is known of; None where it is of none.

    So much of each op's is of what its kernel is `lent`, and of what is `beyond` those runs (`Price`).

    Ops by kernels of one engine are off alike, so that their errors add up by their times; and whole runs of
    an engine are as far off at least as they were found to be. What is beyond them knows nothing of that.
    """
    pairs = [(op, part) for op, part in zip(ops, lent, strict=True) if op.error is not None]
    if not pairs:
        return None
    sums, whole = [0.0, 0.0, 0.0], 0.0
    for op, part in pairs:
        sums = [
            total + op.share * each for total, each in zip(sums, error_parts(op.error, *part), strict=True)
        ]
        whole = whole + op.share
    return whole_error((over(total, whole) for total in sums), host_error)


def error_parts(error: Any, lent: Number, beyond: Number) -> tuple[Number, Number, Number]:
    """An op's own error, that of what is lent as to runs of hosts, and that of what is beyond them."""
    of_others = minimum(lent, error)
    new = minimum(beyond, of_others)
    return (error**2 - of_others**2) ** 0.5, (of_others**2 - new**2) ** 0.5, new


def whole_error(parts: Iterable[Number], host_error: float) -> Number:
    """A step's error: by its parts as `error_parts` has them, and that of whole runs."""
    own, others, beyond = parts
    return np.hypot(np.maximum(np.hypot(own, others), host_error), beyond)


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
    grid = step_s.shape if isinstance(step_s, np.ndarray) else ()
    none: Any = read_only(np.zeros(grid)) if grid else 0
    fields: dict[str, Any] = {
        **dict.fromkeys(OpCost.__dataclass_fields__, none),
        "name": program.prefix(program.entries[stage]) + name,
        "stage": stage,
        "kind": OVERHEAD,
        "repeat": repeat,
        "time_s": time_s + none,
        "intensity": none * math.nan,
        "bound": np.full(grid, bound) if grid else bound,
        "share": over(repeat * time_s, step_s),
        "shape": (),
        **known,
    }
    return OpCost.made({name: sealed(value) for name, value in fields.items()} if grid else fields)
