"""Sweeps: all steps of all structures, as columns of a table.

Order of the file: the axes as text (`axis_values`); the results of a step as code (`ReportFigures`); the
memory check for many batches and lengths (`CapacityCheck`); the key of a part by its content (`content_key`);
the steps of one structure (`SweepPart`, `SweepSteps`); the result (`Sweep`); and workers of an executor, any
of which may end (`Workers`).
"""

from __future__ import annotations

import os
import pickle
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import cached_property, lru_cache, reduce
from hashlib import sha256
from itertools import repeat
from math import prod
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from uuid import uuid4

import numpy as np

from llmir.backends.cost import models
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.registry import model_source
from llmir.backends.request.workload import LONGEST, Workload
from llmir.backends.step import evaluate
from llmir.backends.step.evaluate import RowKind, StepEvaluator, TimeEstimate, step_evaluator
from llmir.backends.step.facts import precision_text
from llmir.backends.step.functions import SIZES, STEP_SYMBOLS, StepFunction
from llmir.backends.step.sizes import batch_program, check_sizes
from llmir.backends.step.timing import Timing
from llmir.backends.tape.record import Function, Symbol
from llmir.backends.work.rows import BOUNDS
from llmir.base import arguments, registry
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError, LlmirError
from llmir.base.formats import PageExport, Result
from llmir.base.processes import start_worker
from llmir.base.values import Array, Immutable
from llmir.hw.prices import operating_cost
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.text import print_program

# Axes

Value = int | str | None

# Axes of a step, and their default values: all points of a step are evaluated together.
POINTS: Mapping[str, int] = {"batch": 1, "new": 1, "context": 0}
# Integer axes of a structure, each of which requires lowering.
COUNTS = ("tp", "pp", "micro_batches", "dp", "ep", "sp", "redundant_experts")

MOST = 1_000_000  # values of an axis
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_NUMBER = r"(\d+(?:\.\d+)?)([kM]?)"
_RANGE = re.compile(rf"{_NUMBER}:{_NUMBER}(?::(?:x(\d+)|{_NUMBER}))?", re.ASCII)
_COUNT = re.compile(r"(\d+)([kM]?)", re.ASCII)


def axis_values(called: str, said: object, least: int | None) -> tuple[Value, ...]:
    """Parse the values of an axis: a text as on the command line, one value, or several.

    Values are integers of at least `least`; or names, if `least` is None. `1:4` means 1, 2, 3, 4; `1:1024:x2`
    the powers of two; `0:100:25` steps of 25; `1,8,32` a list. `k` is 1,024 and `M` 1,048,576, as for
    contexts. Names are separated by commas. InputError, which names the axis `called`, for a range that is
    empty, reversed or too long.

    >>> axis_values("batch", "1:16:x4,20", 1), axis_values("context", "1k:4k:1k", 0)
    ((1, 4, 16, 20), (1024, 2048, 3072, 4096))
    >>> axis_values("weights", "bf16,fp8", None)
    ('bf16', 'fp8')
    """
    if isinstance(said, str):
        parts: Iterable[object] = [part.strip() for part in said.split(",")]
    else:
        parts = (
            [said]
            if said is None or isinstance(said, int)
            else arguments.items(called, said, "values", most=MOST)
        )
    found: dict[Value, None] = {}
    for part in parts:
        values: Iterable[Value] = [_name(called, part)] if least is None else _counts(called, part, least)
        if least is None and part in found:
            raise InputError(f"{called}: {str(part)[:40]} occurs twice")
        found.update(dict.fromkeys(values))
        if len(found) > MOST:
            raise InputError(f"{called}: more than {MOST:,} values")
    if not found:
        raise InputError(f"{called}: expected values, got none")
    return tuple(found)


def _name(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and not value:
        raise InputError(f"{name}: a value is empty")
    return arguments.text(name, value)


def _counts(name: str, value: object, least: int) -> Iterable[int]:
    if not isinstance(value, str):
        return [arguments.integer(name, value, least)]
    if found := _COUNT.fullmatch(value):
        return [arguments.integer(name, int(_sized(found[1], found[2])), least)]
    return range_values(name, value, lambda number: arguments.integer(name, number, least))


def range_values(name: str, text: str, check: Callable[[object], Number]) -> Sequence[Any]:
    """The numbers of a range such as `1:8`, `0:100:25`, `0.5:2:0.5` or `1:1024:x2`, both ends included.

    `check` returns an end of the range as a number, or raises `InputError`.

    >>> range_values("--rates", "0.1:0.5:0.1", float), range_values("--rates", "0.5:9:x2", float)
    ([0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 1.0, 2.0, 4.0, 8.0])
    """
    found = _RANGE.fullmatch(text)
    if not found:
        expected = "expected a number, or a range such as 1:8, 0:100:25 or 1:1024:x2"
        raise InputError(f"{name}: {expected}; got {text[:40]!r}")
    first, last = _sized(found[1], found[2]), _sized(found[3], found[4])
    if last < first:
        raise InputError(f"{name}: {text} is reversed: {first:,} is larger than {last:,}")
    for end in (first, last):
        check(_number(end))
    if found[5]:
        return [check(_number(number)) for number in _times(name, text, first, last, int(found[5]))]
    step = _sized(found[6], found[7]) if found[6] else Decimal(1)
    if not step:
        raise InputError(f"{name}: {text} never ends; the step must be above 0")
    if (last - first) // step >= MOST:
        raise InputError(f"{name}: {text} has more than {MOST:,} values")
    ints = all(number == int(number) for number in (first, step))
    if ints and type(check(int(first))) is int:
        return range(int(first), int(last) + 1, int(step))
    return [check(_number(first + n * step)) for n in range(int((last - first) // step) + 1)]


def _times(name: str, text: str, first: Decimal, last: Decimal, factor: int) -> list[Decimal]:
    if factor < 2 or not first:
        raise InputError(
            f"{name}: {text} never ends; the factor must be at least 2, and the first value above 0"
        )
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return values


def _number(number: Decimal) -> int | float:
    return int(number) if number == int(number) else float(number)


def _sized(digits: str, unit: str) -> Decimal:
    return Decimal(digits[:30]) * _UNITS[unit.lower()]


# Figures of a step as code

WORK = ("flops", "read_bytes", "write_bytes", "comm_bytes")
BYTES = ("weight_bytes", "kv_cache_bytes", "activation_peak_bytes", "peak_memory_bytes")
SHARES = (*(f"{bound}_share" for bound in BOUNDS), "bubble_share")
_ERRORS = ("own", "others", "beyond", "known")  # sums of `costs.error`, over ops with known errors
_OUTPUTS = ("time_s", "interval_s", "ideal_time_s", *WORK, *BYTES, *SHARES, *_ERRORS)


class ReportFigures:
    """The values of `Report` for steps of a program, by name, and `interval_s`."""

    def __init__(self, program: Program, model: DeviceCostModel) -> None:
        self.program, self.model = program, model
        self._recorded: dict[tuple[str, bool], Callable[[Binding], tuple[Number, ...]]] = {}

    def __call__(self, batch: Number, new: Number, context: Number) -> dict[str, Array]:
        """Evaluate points of one phase; all or none of them have one new token. Unknown errors are NaN.

        Arrays and results broadcast together, so values that depend only on the batch are computed once.
        """
        program, phase, at = batch_program(self.program, [check_sizes(batch, new, context)], "")
        always = bool(np.all(np.asarray(new) == 1))
        if (phase, always) not in self._recorded:
            self._recorded[phase, always] = self._record(program, always)
        found: dict[str, Any] = dict(zip(_OUTPUTS, self._recorded[phase, always](at), strict=True))
        *parts, known = (found.pop(name) for name in _ERRORS)
        with np.errstate(divide="ignore", invalid="ignore"):
            host = self.model.host_error or 0.0
            found["error"] = evaluate.step_error((np.divide(part, known) for part in parts), host)
        return found

    def _record(self, program: Program, always: bool) -> Callable[[Binding], tuple[Number, ...]]:
        steps = step_evaluator(program, self.model)

        def record(at: Binding) -> tuple[Number, ...]:
            return _figures(steps, at)

        return StepFunction(record, 1 if always else None) if self.model.symbolic else record


def _figures(steps: StepEvaluator, at: Binding) -> tuple[Number, ...]:
    """The values of `_OUTPUTS` at a point, on a grid, or as symbols."""
    seconds = steps.priced(at)
    timing = Timing(seconds.whole, steps.program.micro_batches)
    ideal = step_evaluator(steps.program, models.model(steps.model.device, "ideal")).timing(at)
    runs, hidden, parts = steps.runs(at), steps.hidden(at), steps.program.micro_batches
    priced = [
        (kind, TimeEstimate.of(kind.price, runs if kind.pads else at, at, hidden)) for kind in steps.kinds
    ]
    # Sums that do not depend on the context come first, since they are computed once per batch.
    varies = _varies([each.time for _, each in priced])
    due: list[Number] = [0.0] * len(BOUNDS)
    errors: list[Number] = [0.0] * len(_ERRORS)
    for _, (kind, each) in sorted(zip(varies, priced, strict=True), key=lambda item: item[0]):
        time = parts * _repeats(steps, kind) * each.time
        due = [total + at.xp.where(each.bound == i, time, 0.0) for i, total in enumerate(due)]
        known = _known(kind, time, each.which, at)
        errors = [total + part for total, part in zip(errors, known, strict=True)]
    for added in seconds.overheads:
        due[-1] = due[-1] + parts * sum(added)
    every = [*due, sum(timing.bubbles[1:], timing.bubbles[0])]
    total = sum(every[1:], every[0])
    return (
        timing.step,
        timing.interval,
        ideal.step,
        *(at(steps.totals.get(name, 0)) for name in WORK),
        steps.fullest(lambda memory: at(memory.weights), at),
        steps.fullest(lambda memory: at(memory.caches), at),
        steps.fullest(lambda memory: memory.transient(at), at),
        steps.fullest(lambda memory: memory.peak(at), at),
        *(part / at.xp.where(total > 0, total, 1.0) for part in every),
        *errors,
    )


def _repeats(steps: StepEvaluator, kind: RowKind) -> int:
    """How often a micro-batch executes each row, since equal ops of several layers share a row."""
    return sum(steps.rows[i].repeat for i in (kind.first, *(i for i, _ in kind.others)))


def _varies(times: Sequence[Number]) -> list[bool]:
    """For each time, whether it depends on the context, as far as the recording shows."""
    of = [time for time in times if isinstance(time, Symbol)]
    late = Function.of(of[0].tape, SIZES, of).depending(STEP_SYMBOLS) if of else ()
    return [isinstance(time, Symbol) and time.number in late for time in times]


def _known(kind: RowKind, time: Number, which: Number, at: Binding) -> list[Number]:
    """What the seconds of one kind of op add to each of `_ERRORS`, by the fastest kernel."""
    prices: Sequence[Any] = getattr(kind.price, "prices", (kind.price,))
    found: list[Number] = [0.0] * len(_ERRORS)
    for i, price in enumerate(prices):
        if price.error is None:
            continue
        parts = evaluate.error_components(price.error, price.lent, price.beyond)
        terms = (*(time * part if part else 0.0 for part in parts), time)
        if len(prices) == 1:
            return list(terms)
        found = [at.xp.where(which == i, term, so_far) for term, so_far in zip(terms, found, strict=True)]
    return found


# Capacity

CACHED_LENGTHS = 64  # lengths with a cached pool
EMPTY: Mapping[str, Any] = {}


class CapacityCheck:
    """Whether requests of a length fit in memory together: `Workload.fits`, by the engine's rule.

    `memory` contains limits of a `Workload`, such as `memory_utilization`.
    """

    def __init__(self, program: Program, model: DeviceCostModel, memory: Mapping[str, Any]) -> None:
        self.program, self.model, self.memory = program, model, memory
        self._jobs: dict[int, Workload] = {}
        self._batches: dict[int, int] = {}  # the number of requests that fit, by length

    def __call__(self, batch: Array, length: Array) -> Array:
        """Check each batch and length; the arrays and the results broadcast together."""
        jobs = [self._job(int(end)) for end in (np.min(length), np.max(length))]
        pools = [each.pool for each in jobs]
        alike = all(pools) and len({pool.tokens for pool in pools if pool}) == 1
        if not alike:
            lengths, places = np.unique(length, return_inverse=True)
            most = np.array([self._most(int(n)) for n in lengths])
            return batch <= most[places].reshape(np.shape(length))
        fits: Array = _short(jobs[0], batch, length) <= 0
        return fits & (batch <= pools[0].at_once) if pools[0] else fits

    def _most(self, length: int) -> int:
        if length not in self._batches:
            self._batches[length] = self._job(length).max_batch
        return self._batches[length]

    def _job(self, length: int) -> Workload:
        if length > LONGEST:
            raise InputError(f"requests of {length:,} tokens; the limit is {LONGEST:,}")
        job = self._jobs.get(length)
        if job is None:
            if len(self._jobs) >= CACHED_LENGTHS:
                self._jobs.clear()
            at_once = self.program.micro_batches * self.program.parallelism.dp
            at: dict[str, Any] = {"batch": at_once, "prompt": length, "generate": 1, **self.memory}
            job = Workload(self.program, self.model.device, **at, model=self.model)
            self._jobs[length] = job
        return job


def _short(job: Workload, batch: Array, length: Array) -> Array:
    """`Workload.peak_bytes` minus the usable memory, for engines whose step has equally many tokens for all
    lengths.
    """
    pool, program = job.pool, job.program
    assert pool is not None, "an engine's rule has a pool"
    parts, dp = program.micro_batches, program.parallelism.dp
    sequences = batch // parts
    each = np.maximum(pool.sequences, -(-sequences * parts // dp))
    if np.max(each) == pool.sequences:
        rooms: list[Any] = [room.caches for room in pool.rooms(pool.sequences)]
    else:
        counts, places = np.unique(each, return_inverse=True)
        stages = zip(*(pool.rooms(int(n)) for n in counts), strict=True)
        rooms = [np.array([room.caches for room in stage])[places].reshape(each.shape) for stage in stages]
    held = pool.needed(np.asarray(sequences), np.asarray(length))
    lacks = [bytes - room for bytes, room in zip(held, rooms, strict=True)]
    usable = job.capacity_bytes
    most: Array = np.ceil(usable + reduce(np.maximum, lacks))
    return most - usable


# Keys of parts


def content_key(*parts: object) -> str:
    """Hash plain values, records, programs and arrays to 32 hexadecimal digits; a random key for other
    values.

    The key also covers the files of llmir, including devices and calibrations, and the files of loaded
    plugins.
    """
    found = sha256(_digest(registry.files()))
    for part in parts:
        found.update(_bytes(part))
        found.update(b"\0")
    return found.hexdigest()[:32]


def _bytes(part: Any) -> bytes:
    if isinstance(part, Program):
        return print_program(part).encode()
    if isinstance(part, Pass):
        return repr(part).encode()
    if isinstance(part, (list, tuple)):
        return b"(" + b",".join(map(_bytes, part)) + b")"
    return (
        uuid4().bytes if callable(part) else pickle.dumps(part, protocol=4)
    )  # the code of a function may change


@lru_cache(maxsize=4)
def _digest(more: Iterable[str]) -> bytes:
    found = sha256()
    for path in (*_own_files(), *more):
        found.update(path.encode())
        found.update(Path(path).read_bytes())
    return found.digest()


def _own_files() -> list[str]:
    folder = Path(registry.__file__).parents[1]
    files = (os.path.join(at, f) for at, _, names in os.walk(folder, followlinks=True) for f in names)
    return sorted(f for f in files if f.endswith((".py", ".yaml")))


# Parts: the steps of one structure

COST_COLUMNS = "cost_usd_per_mtok", "energy_j_per_token"
NUMBERS = ("time_s", "ideal_time_s", "error", *BYTES, *WORK, *SHARES, *COST_COLUMNS)
FIGURES = ("devices", "fits", *NUMBERS)

BLOCK = 1 << 18  # number of points that are evaluated and written together: 60 MB of figures

Points = tuple[tuple[int, ...], ...]  # the values of `POINTS`, in their order
Grid = tuple[Array, ...]  # the points as arrays with three dimensions, which broadcast together


class SweepPart(NamedTuple):
    """The rows of one structure: its values, and an array for each axis of points and for each result.

    Arrays broadcast to `shape`; the last axis varies fastest. `refused` contains the reason for each row
    without results; a rejected structure has one row without points. `basis` is the cost model with the
    source of its kernels, and `precision` the dtypes as text.
    """

    structure: Mapping[str, Value]
    shape: tuple[int, ...]
    columns: Mapping[str, Any]
    basis: str = ""
    precision: str = ""

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def column(self, name: str) -> Array:
        """A result or an axis of points, for each row."""
        return np.broadcast_to(self.columns[name], self.shape).reshape(-1)

    def constant(self, name: str) -> Value:
        """The value that all rows share: of an axis of structures, or `basis`."""
        return (self.basis or None) if name == "basis" else self.structure[name]

    @property
    def alone(self) -> bool:
        """Whether this part represents a rejected structure, which has no points."""
        return bool(np.isnan(np.ravel(self.columns["batch"])[0]))

    @property
    def refusals(self) -> int:
        """The number of rows without results."""
        said = self.columns["refused"]
        return int(np.count_nonzero(said != "")) if said.ndim else len(self) * bool(said)

    @property
    def why(self) -> str | None:
        """The reason of the first rejected row; None without one."""
        return next((str(why) for why in self.columns["refused"].ravel() if why), None)


def rejected_row(structure: Mapping[str, Value], why: object) -> SweepPart:
    """The row of a structure that is impossible."""
    columns: dict[str, Any] = dict.fromkeys((*POINTS, *FIGURES), np.nan)
    return SweepPart(structure, (1, 1, 1), {**columns, "refused": np.array(str(why), dtype=object)})


def row_grids(points: Points, most: int) -> Iterator[Grid]:
    """The points, divided into grids of at most `most` points, in the order of rows."""
    axes = [np.array(values, dtype=np.int64) for values in points]
    sizes = [len(axis) for axis in axes]
    # The first axis that is split: the axes before it advance one by one, the axes after it are whole.
    cut = next((i for i in range(len(sizes)) if np.prod(sizes[i + 1 :]) <= most), len(sizes) - 1)
    each = max(1, most // int(np.prod(sizes[cut + 1 :])))
    for outer in np.ndindex(*sizes[:cut]):
        for first in range(0, sizes[cut], each):
            piece = [
                *(axis[i : i + 1] for axis, i in zip(axes, outer, strict=False)),
                axes[cut][first : first + each],
                *axes[cut + 1 :],
            ]
            yield np.meshgrid(*piece, indexing="ij", sparse=True)


class SweepSteps:
    """The steps of a program on a device, with the results that a sweep needs."""

    def __init__(
        self,
        structure: Mapping[str, Value],
        program: Program,
        model: DeviceCostModel,
        memory: Mapping[str, Any] = EMPTY,
    ) -> None:
        self.structure, self.program, self.model = structure, program, model
        self.figures, self.fits = ReportFigures(program, model), CapacityCheck(program, model, memory)

    def part(self, grid: Grid) -> SweepPart:
        """All points of a grid."""
        shape = np.broadcast_shapes(*(axis.shape for axis in grid))
        given = {**dict(zip(POINTS, grid, strict=True)), "devices": self.program.devices}
        found = self._alike(grid)
        if found is None:
            found = {name: np.full(shape, np.nan) for name in NUMBERS}
            found |= {"fits": np.full(shape, np.nan), "refused": np.full(shape, "", dtype=object)}
            self._fill(found, [np.arange(n) for n in shape], grid)
        types = ", ".join(precision_text(self.program, self.model))
        return SweepPart(self.structure, shape, {**given, **found}, model_source(self.model), types)

    def _alike(self, grid: Grid) -> dict[str, Any] | None:
        """The results of points in one phase; None if the points belong to both phases, or one is
        rejected.
        """
        ones = grid[1] == 1
        if np.any(ones) and not np.all(ones):
            return None
        try:
            return {"refused": np.array("", dtype=object), **self._figures(*grid)}
        except LlmirError:
            return None

    def _fill(self, found: Mapping[str, Array], at: Sequence[Array], grid: Grid) -> None:
        """Fill in the results of points; if some of them cannot be estimated, split the points into
        halves.
        """
        shape = [len(places) for places in at]
        few = self._alike(grid)
        if few is not None:
            for name, values in few.items():
                found[name][np.ix_(*at)] = values
            return
        if why := self._why(grid):
            found["refused"][np.ix_(*at)] = why
            return
        new = grid[1].ravel()
        if 0 < np.count_nonzero(new == 1) < new.size:
            axis, halves = 1, [np.flatnonzero(new == 1), np.flatnonzero(new != 1)]
        else:
            axis = next(i for i, n in enumerate(shape) if n > 1)
            halves = np.array_split(np.arange(shape[axis]), 2)
        for half in halves:
            places, points = [*at], [*grid]
            places[axis], points[axis] = at[axis][half], np.take(grid[axis], half, axis)
            self._fill(found, places, tuple(points))

    def _why(self, grid: Grid) -> str:
        """The reason why all points of one batch and length are rejected, if all have the same reason;
        otherwise empty.
        """
        batch, new, context = (axis.ravel() for axis in grid)
        if batch.size > 1 or new.size > 1:
            return ""
        said = {self._refusal(int(batch[0]), int(new[0]), int(c)) for c in (context[0], context[-1])}
        return said.pop() if len(said) == 1 else ""

    def _refusal(self, batch: int, new: int, context: int) -> str:
        try:
            self._figures(*(np.array(n) for n in (batch, new, context)))
        except LlmirError as error:
            return str(error)
        return ""

    def _figures(self, batch: Array, new: Array, context: Array) -> dict[str, Any]:
        """The results of `analyze` for these steps, including `fits` and cost."""
        found: dict[str, Any] = dict(self.figures(batch, new, context))
        with np.errstate(divide="ignore"):  # steps without ops
            rate = batch * new / found.pop("interval_s")
        each = operating_cost(self.model.device, self.program.devices, rate)
        for name, figure in zip(COST_COLUMNS, (each.usd_per_mtok, each.joules_per_token), strict=True):
            found[name] = np.nan if figure is None else figure
        return {**found, "fits": self.fits(batch, new + context)}


# Sweeps

_EXACT = {*POINTS, "devices", *(name for name in FIGURES if name.endswith(("_bytes", "flops")))}
_WHOLE = {*COUNTS, *POINTS, "devices"}
_AT_ONCE = 1 << 13  # number of rows with cells in memory at once


class Sweep(Immutable, Result, PageExport):
    """The rows of a sweep, in the order of its axes: the first axis varies slowest.

    `axes` are the values of each axis, `basis` the cost models of the rows with the source of their kernels,
    and `columns` an array for each axis and result, in SI units: NaN if `refused` contains a reason. `error`
    is the known mean relative error of the times. `fits` shows whether requests of `new` + `context` tokens
    fit by the engine's rule. Each `…_share` is the part of the step with this bound. `cost_usd_per_mtok` is
    the cost per million tokens of these steps, if the device has a price. `energy_j_per_token` is the energy
    with all boards at their power limit, if known. `notes` are the notes of the model.
    """

    axes: Mapping[str, tuple[Value, ...]]
    parts: tuple[SweepPart, ...]
    model: str
    notes: tuple[str, ...]

    def __init__(
        self,
        axes: Mapping[str, tuple[Value, ...]],
        parts: Sequence[SweepPart],
        model: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        vars(self).update(axes=dict(axes), parts=tuple(parts), model=model, notes=notes)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns: axes, figures, `basis`, `refused`."""
        return _names(self.axes)

    @property
    def basis(self) -> tuple[str, ...]:
        """The cost models of the rows, with the source of their kernels."""
        return tuple(dict.fromkeys(part.basis for part in self.parts if part.basis))

    @property
    def precisions(self) -> tuple[str, ...]:
        """The dtypes of the rows as text."""
        return tuple(dict.fromkeys(part.precision for part in self.parts if part.precision))

    @cached_property
    def columns(self) -> Mapping[str, Array]:
        """An array for each name, built on first access."""
        return _Columns(self.names, self._column)

    def _column(self, name: str) -> Array:
        if name in self.parts[0].columns:
            found = [part.column(name) for part in self.parts]
        else:
            found = [np.full(len(part), part.constant(name), dtype=object) for part in self.parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def refusals(self) -> int:
        """The number of rows without results."""
        return sum(part.refusals for part in self.parts)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dictionary, as in JSON: counts are integers, and missing values are None."""
        for part in self.parts:
            arrays = {name: part.column(name) for name in self.names if name in part.columns}
            for first in range(0, len(part), _AT_ONCE):
                last = min(first + _AT_ONCE, len(part))
                cells = [
                    _cells(name, arrays[name][first:last])
                    if name in arrays
                    else repeat(part.constant(name), last - first)
                    for name in self.names
                ]
                for values in zip(*cells, strict=True):
                    yield dict(zip(self.names, values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The axes and the rows."""
        return {
            "model": self.model,
            "basis": list(self.basis),
            "axes": {name: list(values) for name, values in self.axes.items()},
            "notes": list(self.notes),
            "rows": list(self.rows()),
        }

    def to_pandas(self) -> Any:
        """A pandas DataFrame, in which integers and booleans may be NA (pandas must be installed)."""
        with _needed("to_pandas", "pandas"):
            import pandas
        frame = pandas.DataFrame(dict(self.columns))
        frame["refused"] = frame["refused"].where(frame["refused"] != "", None)
        whole = {name: "Int64" for name in self.names if name in _WHOLE}
        return frame.astype({**whole, "fits": "boolean"})

    def to_polars(self) -> Any:
        """A polars DataFrame, with null for missing values (polars must be installed)."""
        with _needed("to_polars", "polars"):
            import polars
        columns = self.columns.items()
        values = {name: each.tolist() if each.dtype == object else each for name, each in columns}
        frame = polars.DataFrame(values, strict=False, nan_to_null=True)
        whole: dict[Any, Any] = {name: polars.Int64 for name in self.names if name in _WHOLE}
        said = polars.when(polars.col("refused") != "").then(polars.col("refused"))
        return frame.cast({**whole, "fits": polars.Boolean}).with_columns(refused=said)

    def to_arrow(self) -> Any:
        """A pyarrow Table, the content of Parquet and Arrow files (pyarrow must be installed)."""
        with _needed("to_arrow", "pyarrow"):
            import pyarrow
        whole = schema(self.axes)
        tables = ([_arrow(part, name, whole.field(name).type) for name in self.names] for part in self.parts)
        return pyarrow.concat_tables(pyarrow.table(columns, schema=whole) for columns in tables)

    def _gridded(self, part: SweepPart, name: str) -> Array:
        """A column of a part; a rejected structure has a single row, which stands for all its points."""
        column = np.array([part.basis], dtype=object) if name == "basis" else part.column(name)
        points = prod(len(self.axes[point]) for point in POINTS)
        return np.broadcast_to(column, points if part.alone else len(part))

    def to_xarray(self) -> Any:
        """An xarray Dataset with the axes as labelled dimensions (xarray must be installed)."""
        with _needed("to_xarray", "xarray"):
            import xarray
        structure = [name for name in self.axes if name not in POINTS]
        points = [self.axes[name] for name in POINTS]
        outer, inner = [len(self.axes[name]) for name in structure], [len(values) for values in points]
        figures = {}
        for name in (*FIGURES, "basis", "refused"):
            every = [self._gridded(part, name) for part in self.parts]
            figures[name] = ([*structure, *POINTS], np.concatenate(every).reshape(*outer, *inner))
        labels = {name: ["" if v is None else v for v in self.axes[name]] for name in (*structure, *POINTS)}
        return xarray.Dataset(figures, coords=labels)


class _Columns(Mapping[str, Array]):
    def __init__(self, names: Sequence[str], make: Callable[[str], Array]) -> None:
        self._make: dict[str, Callable[[str], Array]] = dict.fromkeys(names, make)
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            self._made[name] = self._make[name](name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


def schema(axes: Mapping[str, object]) -> Any:
    """The Arrow schema of a sweep with these axes."""
    import pyarrow

    kinds = {"fits": pyarrow.bool_(), "refused": pyarrow.string(), "devices": pyarrow.int64()}
    kinds |= {name: pyarrow.int64() for name in (*COUNTS, *POINTS)}
    kinds |= dict.fromkeys(NUMBERS, pyarrow.float64())
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in _names(axes)])


def _names(axes: Mapping[str, object]) -> tuple[str, ...]:
    structure = [name for name in axes if name not in POINTS]
    return (*structure, *POINTS, *FIGURES, "basis", "refused")


def _arrow(part: SweepPart, name: str, kind: Any) -> Any:
    """A column of a part in Arrow."""
    import pyarrow

    if name not in part.columns:
        return pyarrow.repeat(pyarrow.scalar(part.constant(name), kind), len(part))
    values = part.column(name)
    if name == "refused":
        return pyarrow.array(values, kind, mask=np.equal(values, ""))
    if values.dtype != np.float64:
        return pyarrow.array(values, kind)
    missing = np.isnan(values)
    if pyarrow.types.is_floating(kind):
        return pyarrow.array(values, kind, mask=missing)
    whole = np.where(missing, 0, values).astype(bool if name == "fits" else np.int64)
    return pyarrow.array(whole, kind, mask=missing)


def _cells(name: str, column: Array) -> list[Any]:
    """A column as JSON values."""
    return [_plain(name, value) for value in column.tolist()]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, float):
        if np.isnan(value):
            return None
        exact = name in _EXACT and value.is_integer()  # expected numbers of read experts are not integers
        return bool(value) if name == "fits" else int(value) if exact else value
    return value or None if name == "refused" else value


@contextmanager
def _needed(method: str, package: str) -> Iterator[None]:
    """Turn a failed import of an optional package into an error."""
    try:
        yield
    except ImportError:
        raise InputError(f"{method} needs {package}: pip install {package}") from None


# Workers

LOST = "its worker died twice, as one that is killed or out of memory does"
MANY = 1000  # number of waiting tasks, so that a slow task leaves no worker idle


class Task(Protocol):
    """What a worker gets as input."""

    @property
    def size(self) -> int:
        """The size of a task's result, in any unit."""


T = TypeVar("T", bound=Task)
R = TypeVar("R")


def processes(jobs: int) -> ProcessPoolExecutor:
    """A pool of processes that ignore Ctrl+C, and end when this process ends."""
    return ProcessPoolExecutor(jobs, initializer=start_worker)


class Workers(Generic[T, R]):
    """Yields the results of `call` for some tasks; `call` has to be picklable if the executor requires it.

    Together, waiting tasks and results have at most the size `room`. If a worker dies, its tasks are retried
    one by one; if a task ends its worker again, its result is None.
    """

    def __init__(self, call: Callable[[T], R], executor: Executor | None, room: int) -> None:
        self.call, self.executor, self.room = call, executor, room

    def results(self, tasks: Iterable[T]) -> Iterator[tuple[T, R | None]]:
        """Each task together with its result, in order."""
        if self.executor is None:
            yield from ((task, self.call(task)) for task in tasks)
            return
        self._waiting: deque[tuple[T, Future[R]]] = deque()
        held = 0
        with ExitStack() as self._pools:
            try:
                for task in tasks:
                    self._waiting.append((task, self._submit(task)))
                    held += task.size
                    while held > self.room or len(self._waiting) > MANY:
                        held -= self._waiting[0][0].size
                        yield self._take()
                while self._waiting:
                    yield self._take()
            finally:
                for _, future in self._waiting:
                    future.cancel()

    def _submit(self, task: T) -> Future[R]:
        assert self.executor is not None
        try:
            return self.executor.submit(self.call, task)
        except BrokenExecutor:
            self._renew()
            return self.executor.submit(self.call, task)

    def _take(self) -> tuple[T, R | None]:
        task, future = self._waiting.popleft()
        try:
            return task, future.result()
        except BrokenExecutor:
            again = self._waiting
            self._renew()
            # The other tasks lost their worker because of another task.
            self._waiting = deque((t, f if _done(f) else self._submit(t)) for t, f in again)
            with processes(1) as pool:
                return task, _tried(pool, self.call, task)
        except Exception as error:  # dask, which is not imported here, has its own exception classes
            if not _lost(error):
                raise
            assert self.executor is not None
            return task, _tried(self.executor, self.call, task)

    def _renew(self) -> None:
        """Replace a broken executor by a pool of processes with as many workers."""
        self.executor = processes(getattr(self.executor, "_max_workers", 1))
        self._pools.callback(self.executor.shutdown, cancel_futures=True)


def _done(future: Future[Any]) -> bool:
    """Whether a task has returned a result or raised an error."""
    return future.done() and not isinstance(future.exception(), BrokenExecutor)


def _tried(executor: Executor, call: Callable[[T], R], task: T) -> R | None:
    try:
        return executor.submit(call, task).result()
    except Exception as error:  # dask's own classes, as in `Workers`
        if not _lost(error):
            raise
        return None


def _lost(error: Exception) -> bool:
    """Whether a worker died (as opposed to an error in its task); dask has its own exceptions for this."""
    dask = type(error).__module__.partition(".")[0] == "distributed"
    return dask or isinstance(error, (BrokenExecutor, CancelledError))
