"""Evaluate a step: the times of all ops on all stages, engine overhead, bubbles and memory.

Order of the file: the rows of a report (`OpCost`, `op_costs`) with engine overhead and bubbles, which add up
to the step on each stage. `OpGroup` evaluates op times with equal sizes together. `place_on_nodes` places
ranks on nodes. `StepEvaluator` contains everything that is computed once for a program on a device
(`step_evaluator` returns it). `MixedStepEvaluator` is for a step that contains prefill and decode; an op that
both phases share is one op of all sequences.

`StepEvaluator` defines how the time of a step is divided (`StepSeconds`): an op takes the time of its kernel
in the step, and engine overhead has separate rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache, partial, reduce
from itertools import chain
from operator import and_, or_
from typing import Any, NamedTuple, cast

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.kernels.base import DRAFTS
from llmir.backends.kernels.engine_cpu import EngineCpu, rank_skew
from llmir.backends.memory.liveness import Allocation, Lifetimes, LivenessPoint, RankMemory, stage_memories
from llmir.backends.tape.languages import PRINTERS
from llmir.backends.tape.outline import Outline, inline_calls, prune
from llmir.backends.tape.record import Function
from llmir.backends.work.network import (
    RankTopology,
    check_nodes,
    collective_routes,
    default_nodes,
    rank_topology,
)
from llmir.backends.work.rows import BOUNDS, CALIBRATED, Basis, Row, rows
from llmir.base.array_namespace import SCALARS, Number, always, namespace, never
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import Figures, FrozenDict, read_only, seal
from llmir.hw.device import Device
from llmir.hw.engine_sections import CudaGraphs
from llmir.hw.link import Link
from llmir.ir.core.op import Work
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding, MixedBinding
from llmir.ir.sizes.polynomial import (
    Dim,
    Max,
    OfDecode,
    OfPrefill,
    Size,
    ceildiv,
    minimum,
    sole_product,
    symbols,
)

from .functions import COUNTS, MANY, FigureFunction, JitFunction, StepFunction, StepFunctionPair
from .sizes import sweeps
from .timing import OVERHEAD_ROWS, Overhead, Seconds, StageKind, StagePart, StepSeconds, Timing

# Rows of a report

OVERHEAD, BUBBLE = "overhead", "bubble"
_new, _set = object.__new__, object.__setattr__


@dataclass(frozen=True)
class OpCost(Figures):
    """One execution of an op on one rank; a step runs it `repeat` times. Values are arrays on a grid.

    Rows of kind `overhead` are not ops: they take time, but have no FLOPs and bytes.
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
    ideal_time_s: Number  # by the roofline
    basis: Basis  # the basis of the time: measured kernels, with their device, or datasheet rates
    error: Number | None  # the known mean relative error of these times
    shape: tuple[Any, ...]  # of the first result on one rank

    @property
    def total_s(self) -> Number:
        """Seconds of all repeats together."""
        return seal(self.repeat * self.time_s)

    @classmethod
    def made(cls, fields: dict[str, Any]) -> OpCost:
        """Build a row from its fields without checks, because a report has many rows."""
        row = _new(cls)
        _set(row, "__dict__", fields)
        return row

    def of(self, named: Mapping[str, Any]) -> OpCost:
        """The row of another op with equal values."""
        return self.made({**vars(self), **named})


@dataclass(frozen=True)
class StageCost(Figures):
    """A pipeline stage: the time of one micro-batch, the parts of the step, and the memory of one rank.

    `ops_s`, `overhead_s` and `bubble_s` cover all micro-batches and add up to the step.
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


def stage_costs(
    seconds: StepSeconds, parts: int, memories: Sequence[RankMemory], at: Binding
) -> tuple[StageCost, ...]:
    """One row per pipeline stage, for `parts` micro-batches."""
    bubbles = Timing(seconds.whole, parts).bubbles
    rows = zip(seconds.whole, seconds.kernels, seconds.overheads, bubbles, memories, strict=True)
    return tuple(
        StageCost(
            stage=i,
            time_s=time,
            ops_s=parts * kernels,
            overhead_s=parts * sum(added),
            bubble_s=bubble,
            weight_bytes=at(m.weights),
            kv_cache_bytes=at(m.caches),
            activation_peak_bytes=m.transient(at),
            peak_memory_bytes=m.peak(at),
        )
        for i, (time, kernels, added, bubble, m) in enumerate(rows)
    )


def share_of(part: Number, whole: Number) -> Number:
    """`part` divided by `whole`; NaN if both are 0."""
    if isinstance(whole, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            return read_only(part / whole)
    return part / whole if whole else math.nan


class TimeEstimate(NamedTuple):
    """An op time at a point or on a grid: the time in the step, the bound, the roofline, and the index of the
    fastest kernel.

    `bound` and `which` are indices into `BOUNDS` and into the kernels, so that they can be symbols.
    """

    time: Number
    bound: Number
    least: Number
    which: Number

    @classmethod
    def of(cls, price: OpTime, runs: Binding, at: Binding, hidden: Number) -> TimeEstimate:
        """Evaluate an op time: its time at the padded sizes `runs`, its roofline at the requested sizes.

        `hidden` is the share of the launch that the step's graph hides.
        """
        return cls(*price.due(runs, hidden), price.least(at), price.which(runs, hidden))


class RowKind(NamedTuple):
    """Equal rows: one of them, the indices of all, and the positions of their values in `figures`.

    The values are its times (`priced`), its `amounts` and the `shape` of its result. `fields` contains the
    fields of its row in order; only the labels are filled in.
    """

    row: Row
    price: OpTime
    pads: bool
    first: int
    fields: FrozenDict[str, Any]
    others: tuple[tuple[int, Mapping[str, Any]], ...]
    priced: slice
    amounts: slice
    shape: slice


def row_kinds(
    rows: Sequence[Row], prices: Sequence[OpTime], keys: Sequence[tuple[int, bool]]
) -> tuple[RowKind, ...]:
    """Group rows whose values are equal at every point; `keys` identify their op times and padding."""
    alike: dict[Any, list[int]] = {}
    for i, (row, key) in enumerate(zip(rows, keys, strict=True)):
        figures = key, row.repeat, tuple(row.amounts.values()), row.shape.shape
        alike.setdefault(figures, []).append(i)
    distinct, each = dict.fromkeys(key for key, *_ in alike), len(TimeEstimate._fields)
    places = {key: slice(each * i, each * (i + 1)) for i, key in enumerate(distinct)}
    found, end = [], each * len(distinct)
    for (key, *_), (first, *others) in alike.items():
        row = rows[first]
        start, middle = end, end + len(row.amounts)
        end = middle + len(row.shape.shape)
        where = places[key], slice(start, middle), slice(middle, end)
        rest = tuple((i, op_labels(rows[i])) for i in others)
        fields = FrozenDict({**dict.fromkeys(OpCost.__dataclass_fields__), **op_labels(row)})
        found.append(RowKind(row, prices[first], key[1], first, fields, rest, *where))
    return tuple(found)


def op_costs(
    kinds: Sequence[RowKind], values: Sequence[Number], at: Binding, step_s: Number, parts: int
) -> tuple[OpCost, ...]:
    """The rows of all ops in schedule order, at a point or on a grid, built from the `values` of
    `Plan.figures`.

    `step_s` is the seconds of the step on all stages, and `parts` is its number of micro-batches.
    """
    found: dict[int, OpCost] = {}
    for op, price, _, first, known, others, priced, amounts, shape in kinds:
        time, bound, least, which = values[priced]
        figures, sizes, repeat, holding = values[amounts], values[shape], op.repeat * parts, price.held(which)
        fields = known.copy()  # in the time of two or three new entries
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
        fields["intensity"] = share_of(flops, read + write)
        fields["share"] = share_of(repeat * time, step_s)
        fields["ideal_time_s"] = least
        fields["basis"] = holding.basis
        fields["error"] = holding.error
        fields["shape"] = sizes
        found[first] = row = OpCost.made(fields)
        for i, named in others:
            found[i] = row.of(named)
    return tuple(found[i] for i in range(len(found)))


def op_labels(row: Row) -> Mapping[str, Any]:
    """The labels of an op and its stage: the first fields of its row."""
    return FrozenDict(name=row.name, stage=row.stage, kind=row.kind, block=row.block)


_WORDS = np.array(BOUNDS)


def _whole(number: Number, at: Binding) -> Number:
    return read_only(np.broadcast_to(number, at.shape).astype(np.float64))


def mean_error(
    ops: Sequence[OpCost], lent: Sequence[tuple[Number, Number]], host_error: float
) -> Number | None:
    """The mean relative error of a step, from the ops with a known error; None without any.

    For each op, `lent` contains the errors of transfer (`lent`) and extrapolation (`beyond`) of its kernel.
    The errors of one engine's kernels are assumed to be fully correlated, so they add up in proportion to the
    times. The result is at least the error of the engine on whole runs; the extrapolation error is added as
    an independent error.
    """
    pairs = [(op, part) for op, part in zip(ops, lent, strict=True) if op.error is not None]
    if not pairs:
        return None
    sums, whole = [0.0, 0.0, 0.0], 0.0
    for op, part in pairs:
        sums = [
            total + op.share * each
            for total, each in zip(sums, error_components(op.error, *part), strict=True)
        ]
        whole = whole + op.share
    return step_error((share_of(total, whole) for total in sums), host_error)


def error_components(error: Any, lent: Number, beyond: Number) -> tuple[Number, Number, Number]:
    """Split the error of an op into its own part, the transfer part, and the extrapolation part."""
    of_others = minimum(lent, error)
    new = minimum(beyond, of_others)
    return (error**2 - of_others**2) ** 0.5, (of_others**2 - new**2) ** 0.5, new


def step_error(parts: Iterable[Number], host_error: float) -> Number:
    """The error of a step, from its parts and from the error of whole runs."""
    own, others, beyond = parts
    return np.hypot(np.maximum(np.hypot(own, others), host_error), beyond)


def engine_rows(of: StepEvaluator, overheads: Sequence[Overhead], step_s: Number) -> tuple[OpCost, ...]:
    """The engine overhead of a micro-batch: one row per stage and positive part.

    On a grid, a part may be 0 at some points.
    """
    return tuple(
        _overhead(
            of.program,
            stage,
            OVERHEAD_ROWS[part],
            repeat=of.program.micro_batches,
            time_s=time,
            step_s=step_s,
            bound=OVERHEAD,
            block="engine",
            ideal_time_s=0.0,
            basis=CALIBRATED,  # engine CPU times are fitted to whole runs, on any device
            error=of.model.host_error,
        )
        for stage, part in of.overhead_rows
        if not never(time := getattr(overheads[stage], part))
    )


def bubbles(
    program: Program, timing: Timing, ideal: Timing, step_s: Number, **known: Any
) -> tuple[OpCost, ...]:
    """The time that each stage waits for the other stages in a step."""
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
        "share": share_of(repeat * time_s, step_s),
        "shape": (),
        **known,
    }
    return OpCost.made({name: seal(value) for name, value in fields.items()} if grid else fields)


# Op times that depend on one size

MOST = 1 << 24  # tokens up to which irrelevant branches are dropped
# Kinds of times by name: seconds alone, in a graph that hides a share of launches, or both.
KINDS: dict[str, Callable[[OpTime, Binding, float], tuple[Number, ...]]] = {
    "alone": lambda price, at, hidden: (price.time(at),),
    "graph": lambda price, at, hidden: price.in_graph(at, hidden)[1:],
    "both": lambda price, at, hidden: price.in_graph(at, hidden),
}


class OpGroup:
    """Op times, each with its number of executions per stage, grouped by the product of symbols on which they
    depend.
    """

    def __init__(
        self, size: Dim | None, prices: Mapping[OpTime, list[int]], hidden: float, symbolic: bool
    ) -> None:
        self.size, self.prices, self.hidden, self.symbolic = size, prices, hidden, symbolic
        self._codes: dict[str, Callable[[Binding], Sequence[Number]]] = {}

    @property
    def late(self) -> bool:
        """Whether the times depend on more than the numbers of sequences and new tokens."""
        return self.size is None or "C" in symbols(self.size)

    def __call__(self, kind: str, at: Binding) -> Sequence[Number]:
        """Seconds on each stage, for one kind of time after another.

        If there are many points, each distinct size is evaluated once, and the results are distributed to the
        points.
        """
        points, places = at, None
        if self.size is not None and at.shape:
            points, places = at.apart(self.size)
        figures = partial(self.sums, kind)
        if self.symbolic and math.prod(points.shape) >= MANY and type(points) is Binding:
            if kind not in self._codes:
                self._codes[kind] = self._code(kind)
            found = self._codes[kind](points)
        else:
            found = sweeps(figures, points)
        return found if places is None else [seconds.take(places) for seconds in found]

    def sums(self, kind: str, at: Binding) -> tuple[Number, ...]:
        """The seconds, evaluated with the op times directly; they may be symbols."""
        found: list[Number] = []
        for price, repeats in self.prices.items():
            times = KINDS[kind](price, at, self.hidden)
            found = found or [0.0] * (len(times) * len(repeats))
            for stage, repeat in enumerate(repeats):
                if repeat:
                    for place, time in zip(range(stage, len(found), len(repeats)), times, strict=True):
                        found[place] = found[place] + repeat * time
        return tuple(found)

    def _code(self, kind: str) -> Callable[[Binding], Sequence[Number]]:
        """The seconds as compiled code for arrays."""
        size = self.size
        if size is None:
            return StepFunction(partial(self.sums, kind))
        tape = Outline(SCALARS)
        found = Function.of(tape, "x", self.sums(kind, Binding.only(size, tape.symbol("x"))))
        counts = set(size.terms[0][0]) <= set(COUNTS)
        compiled = cache(lambda function: PRINTERS["numpy"].compiled(function(found)))

        def code(at: Binding) -> Sequence[Number]:
            values = at(size)
            few = counts and values.max() <= MOST
            seconds: Sequence[Number] = compiled(_few if few else inline_calls)(values)
            return seconds

        return code


def _few(outline: Function) -> Function:
    return prune(outline, "x", MOST).function


# Placement on nodes


def place_on_nodes(program: Program, model: DeviceCostModel) -> DeviceCostModel:
    """The cost model on the nodes that the ranks need; HardwareError if they do not fit or lack a network.

    InputError if an efficiency is set for a link that carries no traffic.
    """
    return place_ranks(rank_topology(program), model, program)


def place_ranks(
    of: RankTopology, model: DeviceCostModel, program: Program, sent: Iterable[Row] = ()
) -> DeviceCostModel:
    """The rows of other ranks, which send data together with the rows of the program."""
    device = default_nodes(of, model.device)
    check_nodes(of, device)
    if shares := getattr(model, "of_links", ()):
        used = {*used_links(program, device), *_links(device, (row.work for row in sent))}
        if idle := [name for name in shares if name not in used]:
            raise InputError(
                f"efficiency: {idle[0]} has no effect, because {program.name} sends nothing over it"
            )
    return model if device is model.device else move_model(model, device)


@lru_cache(maxsize=256)
def move_model(model: DeviceCostModel, device: Device) -> DeviceCostModel:
    """The cost model on another device."""
    return cast("DeviceCostModel", replace(cast("Any", model), device=device))


@lru_cache(maxsize=256)
def used_links(program: Program, device: Device) -> Mapping[str, Link]:
    """The links over which ranks send in any phase, by name; `network` is the link between nodes."""
    sent = (row.work for p in (program, *program.phases.values()) for row in rows(p) if row.work.wire)
    return FrozenDict(_links(device, sent))


def _links(device: Device, sent: Iterable[Work]) -> dict[str, Link]:
    used = (
        leg.span
        for work in sent
        for way in collective_routes(device, work.pattern, work.group)
        for leg in way.legs
    )
    return {span.name: span.link for span in used}


# Evaluator of a step

_SEQUENCES, _NEW = Dim.symbol("B"), Dim.symbol("T")


@dataclass(frozen=True, eq=False)
class StepEvaluator:
    """Everything that is computed once for a program on a device; the results are functions of a binding."""

    program: Program
    model: DeviceCostModel
    cache_policy: str = "exact"

    @property
    def depth(self) -> int:
        """The number of stages."""
        return len(self.program.entries)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops."""
        return rows(self.program)

    @cached_property
    def totals(self) -> Mapping[str, Size]:
        """The totals of `Row.amounts` over all ops of a step."""
        found: dict[str, Size] = {}
        for row in self.rows:
            runs = row.repeat * self.program.micro_batches
            for name, size in row.amounts.items():
                found[name] = found.get(name, 0) + runs * size
        return FrozenDict(found)

    @cached_property
    def memories(self) -> tuple[RankMemory, ...]:
        """The memory of each stage."""
        return stage_memories(self.program, self.cache_policy)

    @cached_property
    def prices(self) -> tuple[OpTime, ...]:
        """The op time of each row; equal op times are the same object."""
        made, known = self.made, dict[OpTime, OpTime]()
        one = {id(price): known.setdefault(price, price) for price in {id(p): p for p in made}.values()}
        return tuple(one[id(price)] for price in made)

    @cached_property
    def made(self) -> tuple[OpTime, ...]:
        """The op times as the model returns them, before `prices` merges equal ones."""
        return self.model.prices(self.rows)

    @cached_property
    def _timed(self) -> dict[tuple[Dim | None, bool], dict[OpTime, list[int]]]:
        """Op times with their numbers of executions per stage, by the size on which they depend and by
        padding.

        Equal op times are evaluated once, even if their layers are on other stages or unrolled.
        """
        runs: dict[tuple[int, bool], list[int]] = {}
        for row, key in zip(self.rows, self.keys, strict=True):
            runs.setdefault(key, [0] * self.depth)[row.stage] += row.repeat
        merged: dict[tuple[Dim | None, bool], dict[OpTime, list[int]]] = {}
        for key, price in dict(zip(self.keys, self.prices, strict=True)).items():
            alike = merged.setdefault((sole_product(getattr(price, "sizes", ())), key[1]), {})
            before = alike.get(price, [0] * self.depth)
            alike[price] = [a + b for a, b in zip(before, runs[key], strict=True)]
        return merged

    @property
    def host(self) -> EngineCpu | None:
        """The engine's model of CPU time; None for programs that are not whole models."""
        return self.model.host if self.program.is_model else None

    def timing(self, at: Binding, busy: Seconds | None = None, captured: bool | None = None) -> Timing:
        """The time of each stage for a micro-batch.

        `busy` is the seconds of the kernels, and `captured` states whether they run in a graph, if these are
        known.
        """
        whole = self._codes[1](at) if busy is None else self._split(at, busy, captured).whole
        return Timing(whole, self.program.micro_batches)

    def _split(self, at: Binding, kernels: Seconds, captured: Any = None) -> StepSeconds:
        """Add the engine overhead, if there is an engine, to kernels whose seconds are known."""
        none = (0.0,) * self.depth
        if (host := self.host) is None:
            return StepSeconds(kernels, none, none, none, kernels)
        launches = self._launches(at, self._captured(at) if captured is None else captured)
        launched = tuple(host.kernel_time(time, n, at.xp) for time, n in zip(kernels, launches, strict=True))
        gaps = tuple(after - before for after, before in zip(launched, kernels, strict=True))
        skews = tuple(map(host.skew_time, self.late))
        first, *others = (time + skew for time, skew in zip(launched, skews, strict=True))
        cpu = host.exposed_cpu_time(first, self.sequences(at), at.xp)
        return StepSeconds(kernels, (cpu, *none[1:]), gaps, skews, (first + cpu, *others))

    def sequences(self, at: Binding) -> Number:
        """The number of sequences of one data-parallel rank, because each rank has its own scheduler."""
        return at.xp.ceildiv(at(_SEQUENCES), self.program.parallelism.dp)

    def captured(self, at: Binding) -> Any:
        """Whether the step is launched as a graph.

        Without a rule in the engine file, the answer is yes for an engine, and no without an engine, because
        measurements on your own machine launch kernels one by one.
        """
        if self._graphs is None:
            return self.model.runs is not None
        parallelism = self.program.parallelism
        tokens = at(_NEW * ceildiv(_SEQUENCES, parallelism.dp))  # on a rank that prefills whole prompts
        of = self._graphs.on(self.model.device, parallelism.tp)
        return of.hold(tokens, self._decodes(at), self._reads(at))

    @cached_property
    def _graphs(self) -> CudaGraphs | None:
        """The CUDA graphs of the engine."""
        return self.model.runs.section(CudaGraphs) if self.model.runs and self.program.is_model else None

    def runs(self, at: Binding) -> Binding:
        """The sizes at which padded ops run: their number of sequences is the next captured size.

        A report counts FLOPs and bytes of the real sequences; only times include padding.
        """
        if self._graphs is None or not self._graphs.sizes or isinstance(at, MixedBinding):
            return at
        ranks, sequences, new = self.program.parallelism.dp, at(_SEQUENCES), at(_NEW)
        xp = namespace(sequences, new)
        own = xp.ceildiv(sequences, ranks)
        more = ranks * (self._graphs.padded(own, xp) - own)
        held = (new <= 1) & self.captured(at)
        return Binding(**{**at.symbols, "B": xp.where(held, sequences + more, sequences)})

    @cached_property
    def keys(self) -> tuple[tuple[int, bool], ...]:
        """For each row, the identity of its op time, and whether the row is padded."""
        return tuple((id(price), pads) for price, pads in zip(self.prices, self.pads, strict=True))

    @cached_property
    def pads(self) -> tuple[bool, ...]:
        """Whether each row also runs for the sequences that pad a graph.

        Padding sequences have no caches. They are equal, so they choose the same experts. They also have no
        logits: vLLM selects the last tokens after the graph (`logits_indices`,
        v1/worker/gpu_model_runner.py).
        """
        return tuple(map(self.padding, self.rows))

    def padding(self, row: Row) -> bool:
        """Whether a row is padded."""
        if self._graphs is None or not self._graphs.sizes or row.experts is not None:
            return False
        return "T" in (read := symbols(row.read)) and "C" not in read

    def kinds_of_stages(self) -> Iterator[StageKind]:
        """The stages; stages with equal times are one entry."""
        pairs = list(zip(self.rows, self.made, strict=True))
        for number in range(self.depth):
            its = [pair for pair in pairs if pair[0].stage == number]
            yield StageKind([(StagePart(its), 1)], 1, not number)

    def _decodes(self, at: Binding) -> Any:
        if isinstance(at, MixedBinding):
            return reduce(and_, (self._decodes(part) for part in at.parts))
        return at(_NEW) <= DRAFTS

    def _reads(self, at: Binding) -> Any:
        if isinstance(at, MixedBinding):
            return reduce(or_, (self._reads(part) for part in at.parts))
        return at(_NEW) > 1

    def seconds(self, at: Binding) -> StepSeconds:
        """The seconds of a micro-batch on each stage."""
        return StepSeconds.of(self._codes[0](at), self.depth)

    def evaluated(self, at: Binding) -> tuple[StepSeconds, Callable[[], Sequence[Number]]]:
        """The seconds, and a function that returns `figures` at little extra cost if compiled."""
        code = self._pointed.code(at) if self._pointed and not at.shape else None
        if code is None:
            return self.seconds(at), lambda: self.figures(at)
        found, more = code.both(at)
        return StepSeconds.of(found, self.depth), more

    @cached_property
    def _pointed(self) -> JitFunction[StepFunctionPair] | None:
        """Compiled code that computes `evaluated` at single points; None if the op times do not accept
        symbols.
        """
        if not self.model.symbolic:
            return None
        return JitFunction(self._seconds, lambda seconds, new: StepFunctionPair(seconds, self.figures, new))

    def figures(self, at: Binding) -> tuple[Number, ...]:
        """The values of the rows, at the positions of `kinds`; they may be symbols."""
        runs, hidden = self.runs(at), self.hidden(at)
        prices = {kind.priced.start: (kind.price, kind.pads) for kind in self.kinds}
        priced = (TimeEstimate.of(price, runs if pads else at, at, hidden) for price, pads in prices.values())
        sizes = (map(at, (*kind.row.amounts.values(), *kind.row.shape.shape)) for kind in self.kinds)
        return tuple(chain(*priced, *sizes))

    @cached_property
    def kinds(self) -> tuple[RowKind, ...]:
        """Groups of rows with equal values."""
        return row_kinds(self.rows, self.prices, self.keys)

    @cached_property
    def _codes(self) -> tuple[FigureFunction, FigureFunction]:
        """All seconds, and the total times only; compiled if this is faster and the op times can be
        symbolic.
        """
        figures: tuple[FigureFunction, FigureFunction] = (
            self._seconds,
            lambda at: self._split(at, self.busy(at)).whole,
        )
        return (
            (JitFunction(figures[0], StepFunction), JitFunction(figures[1], StepFunction))
            if self.model.symbolic
            else figures
        )

    def _seconds(self, at: Binding) -> tuple[Number, ...]:
        return tuple(chain(*self.priced(at)))

    def repeats(self) -> Iterator[tuple[OpTime, tuple[int, ...]]]:
        """Each op time with its number of executions per stage; an op time that occurs with and without
        padding appears twice.
        """
        for prices in self._timed.values():
            yield from ((price, tuple(times)) for price, times in prices.items())

    def launched(self, at: Binding, captured: bool, late: bool | None = None) -> Seconds:
        """Kernel seconds of a micro-batch on each stage, in a graph or one by one.

        `late` selects either the groups that depend on the context, or the other groups.
        """
        groups = [pair for pair in self._groups if late in (None, pair[1].late)]
        (busy,) = self._stages(at, "graph" if captured and self.host else "alone", groups)
        return busy

    def priced(self, at: Binding) -> StepSeconds:
        """`seconds`, evaluated with the op times directly; they may be symbols."""
        return self._split(at, self.busy(at))

    def busy(self, at: Binding) -> Seconds:
        """Seconds of the kernels of a micro-batch on each stage; they may be symbols."""
        captured = self._captured(at)
        if isinstance(captured, bool):
            (found,) = self._stages(at, "graph" if captured else "alone")
            return found
        alone, together = self._stages(at, "both")
        return tuple(at.xp.where(captured, *times) for times in zip(together, alone, strict=True))

    def _captured(self, at: Binding) -> Any:
        """Whether the step is launched as a graph, if the answer is the same at all points."""
        if self.host is None:
            return False
        captured = self.captured(at)
        return always(captured) if always(captured) or never(captured) else captured

    def hidden(self, at: Binding) -> Number:
        """Share of each kernel's launch that a graph hides: 0 where kernels are launched one by one."""
        captured = self._captured(at)
        if self.host is None or captured is False:
            return 0.0
        return self.host.hidden if captured is True else at.xp.where(captured, self.host.hidden, 0.0)

    def _stages(
        self, at: Binding, kind: str, groups: Sequence[tuple[bool, OpGroup]] | None = None
    ) -> Iterator[Seconds]:
        """Seconds of the ops of a micro-batch on each stage, for each requested kind of time."""
        count, runs = self.depth, self.runs(at)
        found: list[Number] = []
        for pads, group in self._groups if groups is None else groups:
            each = group(kind, runs if pads else at)
            found = [a + b for a, b in zip(found, each, strict=True)] if found else list(each)
        found = found or [0.0] * (count * (1 + (kind == "both")))
        return (tuple(found[i : i + count]) for i in range(0, len(found), count))

    def _launches(self, at: Binding, captured: Any) -> list[Number]:
        """The number of kernel launches of a micro-batch on each stage; for a graph, 0."""
        if isinstance(captured, bool):
            return [0 if captured else n for n in self._kernels]
        return [at.xp.where(captured, 0, n) for n in self._kernels]

    @cached_property
    def _groups(self) -> list[tuple[bool, OpGroup]]:
        """Op times by the size on which they depend, with their padding."""
        hidden, symbolic = self.host.hidden if self.host else 0.0, self.model.symbolic
        return [(pads, OpGroup(size, of, hidden, symbolic)) for (size, pads), of in self._timed.items()]

    @cached_property
    def _kernels(self) -> list[int]:
        """The number of kernels of a micro-batch on each stage."""
        counts = [0] * self.depth
        for row in self.rows:
            counts[row.stage] += row.repeat
        return counts

    @cached_property
    def overhead_rows(self) -> tuple[tuple[int, str], ...]:
        """The stage and the part of `Overhead` of each row that the engine may add; empty without an engine.

        The first stage has engine CPU time, each stage a launch gap, and stages with collectives rank skew.
        """
        if self.host is None:
            return ()
        has = [{"host_s": not i, "launching_s": True, "skew_s": late > 0} for i, late in enumerate(self.late)]
        return tuple((i, part) for i, parts in enumerate(has) for part, there in parts.items() if there)

    @cached_property
    def late(self) -> tuple[float, ...]:
        """The rank skew in the collectives of a micro-batch on each stage, as in `StepShape.late`."""
        sums = [0.0] * self.depth
        for row in self.rows:
            sums[row.stage] += row.repeat * collective_skew(row)
        return tuple(sums)

    def fullest(self, figure: Callable[[RankMemory], Number], at: Binding) -> Number:
        """`figure` of the stage with the highest peak memory; on a grid, this stage may depend on the
        point.
        """
        first, *others = self.memories
        found = figure(first)
        most = first.peak(at) if others else 0
        for memory in others:
            peak, other = memory.peak(at), figure(memory)
            more = peak > most
            found = at.xp.where(more, other, found)
            most = at.xp.maximum(most, peak)
        return found

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on dtypes that the device lacks, and on links that connect fewer ranks than use them."""
        device = self.model.device
        found: dict[str, None] = {}
        for row in self.rows:
            if not row.work.matrix:
                continue
            name = row.work.dtype.unit
            unit = device.matrix_peak(name)[1]
            if unit != name:
                found[f"{device.name} has no {name} matrix unit; {name} runs at its {unit} rate"] = None
        node = device.node
        if node and node.assumed and node.network:
            rate = f"{node.network.Bps / 1e9:g} GB/s per device between nodes"
            far = f"{node.devices} devices per node and {rate} (--cluster sets others)"
            found[f"{self.program.devices} × {device.name} are assumed to be in {node.name}: {far}"] = None
        return tuple(found)


@lru_cache(maxsize=256)
def step_evaluator(program: Program, model: DeviceCostModel, cache_policy: str = "exact") -> StepEvaluator:
    """The plan of `program` by a cost model; HardwareError if its ranks do not fit the device's nodes."""
    return StepEvaluator(program, place_on_nodes(program, model), cache_policy)


def collective_skew(row: Row) -> float:
    """The time that a rank waits for the last rank in a collective; 0 for a send."""
    return rank_skew(row.work.ranks) if row.work.wire and row.node.op.exchanges else 0.0


# Evaluator of a mixed step

_OF: dict[str, Callable[[Size], Size]] = {"prefill": OfPrefill.of, "decode": OfDecode.of}
Phased = tuple[Row, str]


@dataclass(frozen=True)
class PhaseOpTime(OpTime):
    """The time of an op that runs in one phase, for the sequences in this phase."""

    price: OpTime
    phase: str

    @property
    def basis(self) -> Basis:
        return self.price.basis

    @property
    def lent(self) -> float:
        return self.price.lent

    @property
    def beyond(self) -> float:
        return self.price.beyond

    @property
    def error(self) -> float | None:
        return self.price.error

    def which(self, at: Binding, hidden: Number = 0.0) -> Number:
        return self.price.which(self._within(at), hidden)

    def held(self, which: Number) -> OpTime:
        return self.price.held(which)

    def time(self, at: Binding) -> Number:
        """Seconds of one execution."""
        return self.price.time(self._within(at))

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        return self.price.due(self._within(at), hidden)

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """Seconds alone, and in a graph of kernels."""
        return self.price.in_graph(self._within(at), hidden)

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.price.least(self._within(at))

    def _within(self, at: Binding) -> Binding:
        return at.within(self.phase) if isinstance(at, MixedBinding) else at


@dataclass(frozen=True, eq=False)
class MixedStepEvaluator(StepEvaluator):
    """The evaluator of a step with sequences in two phases: of `program` itself, and of its phase decode."""

    @cached_property
    def _apart(self) -> tuple[Phased, ...]:
        """Each op with the phase in which it runs ("" means both phases), in the order of the phases."""
        others = {_alike(row): row for row in rows(self.program.phases["decode"])}
        found: list[Phased] = []
        waiting = list(others)
        for row in rows(self.program):
            key = _alike(row)
            if key not in others:
                found.append((row, "prefill"))
                continue
            place = waiting.index(key)
            found += [(others[other], "decode") for other in waiting[:place]]
            found.append((row, ""))
            waiting = waiting[place + 1 :]
        return (*found, *((others[other], "decode") for other in waiting))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops; if an op runs in only one phase, it counts only the sequences of this phase."""
        taken = {row.name for row, phase in self._apart if phase != "decode"}
        return tuple(
            _within(
                row, phase, f"{row.name} (decode)" if phase == "decode" and row.name in taken else row.name
            )
            for row, phase in self._apart
        )

    @cached_property
    def prices(self) -> tuple[OpTime, ...]:
        prices = ((self.model.price(row), phase) for row, phase in self._apart)
        return tuple(PhaseOpTime(price, phase) if phase else price for price, phase in prices)

    def _decodes(self, at: Binding) -> bool:
        """False, because the step also contains prefill."""
        return False

    def _reads(self, at: Binding) -> bool:
        """True, because prefill processes prompts, even if the last chunk has only one token."""
        return True

    @cached_property
    def memories(self) -> tuple[RankMemory, ...]:
        """The memory of each stage: at least the peak of either phase."""
        programs = self.program, self.program.phases["decode"]
        pairs = zip(*(stage_memories(program, self.cache_policy) for program in programs), strict=True)
        return tuple(RankMemory(m.weights, m.caches, _lifetimes(m, beside)) for m, beside in pairs)


def _alike(row: Row) -> tuple[object, ...]:
    """The properties by which ops of two phases are recognized as one op."""
    return row.name, row.stage, row.node.op, row.repeat, row.operands, row.shape


def _within(row: Row, phase: str, name: str) -> Row:
    if not phase:
        return row
    of, work = _OF[phase], row.work
    own = replace(
        work, matrix=of(work.matrix), vector=of(work.vector), wire=of(work.wire), payload=of(work.payload)
    )
    reads = tuple((role, of(n)) for role, n in row.reads)
    writes = tuple((role, of(n)) for role, n in row.writes)
    return replace(row, name=name, work=own, reads=reads, writes=writes)


def _lifetimes(memory: RankMemory, beside: RankMemory) -> Lifetimes:
    moments = tuple(_moments(memory, beside))
    return Lifetimes(moments, tuple(dict.fromkeys(moment.bytes for moment in moments)))


def _moments(memory: RankMemory, beside: RankMemory) -> Iterator[LivenessPoint]:
    most: Size = 0
    for size in beside.lifetimes.sizes:
        most = Max.of(most, size)
    most = OfDecode.of(most)
    for moment in memory.moments:
        held = (Allocation(h.name, OfPrefill.of(h.bytes)) for h in moment.held)
        yield LivenessPoint(moment.op, OfPrefill.of(moment.bytes) + most, (*held, Allocation("decode", most)))


@lru_cache(maxsize=256)
def mixed_step_evaluator(
    program: Program, model: DeviceCostModel, cache_policy: str = "exact"
) -> MixedStepEvaluator:
    """The evaluator of a step that contains both phases; `program` is the prefill program."""
    return MixedStepEvaluator(program, place_on_nodes(program, model), cache_policy)
