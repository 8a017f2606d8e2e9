"""Calibration cases: measured rows of one device and engine, and the kernel families that they fit.

Order of the file: `RowTimes` contains the kernel calls of rows as numbers. `CompiledRowTimes` compiles them
into code with kernel parameters as inputs, which a fit calls hundreds of times. `CalibrationCase` is a fit.

The code is a recording of each kernel, with symbols for its parameters and for the values that differ between
rows. Values that depend on shapes alone are computed once, and values that depend on parameters alone once
for all rows. The rest is computed in blocks that fit in the CPU's cache. The code performs the operations of
the kernel in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from llmir.backends.cost.calibrated import collective_within, sent_between_two
from llmir.backends.cost.roofline import IdealModel
from llmir.backends.cost.transfer import device_family, nearest_fit
from llmir.backends.kernels.base import KERNELS, Call, Kernel, Shape, kernel_calls, parameters, stack_shapes
from llmir.backends.kernels.collective import internode_calls
from llmir.backends.silicon.rows import (
    Array,
    DeviceLookup,
    ErrorStatistics,
    Table,
    error_statistics,
    group_folds,
    kernel_source,
)
from llmir.backends.silicon.tables.table import KernelTable, TablePoints
from llmir.backends.silicon.validate.bounds import lower_bound
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.backends.work.network import one_node
from llmir.backends.work.rows import Row, rows
from llmir.base.array_namespace import ARRAYS, SCALARS
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError
from llmir.base.names import plain, spans
from llmir.hw.calibration import KernelParameters
from llmir.hw.device import Device

from .fit import fit_kernels

# Times of rows


@dataclass(frozen=True, eq=False)
class RowTimeTerm:
    """One kernel call for many rows: the family that estimates it, its shape, the roofline, and the indices
    of the rows.
    """

    family: str
    call: Call
    least: Array
    rows: Array

    def seconds(self, kernel: Kernel, device: Device) -> Array:
        """Seconds of each row, at least the roofline."""
        return np.maximum(self.call.of(kernel, device, self.call.shape, ARRAYS), self.least)

    def take(self, place: Array) -> RowTimeTerm:
        """Select rows: `place` contains the new index of each row, or a number below 0 for rows that are
        removed.
        """
        at = place[self.rows] >= 0
        call = replace(self.call, shape=self.call.shape.take(at))
        return RowTimeTerm(self.family, call, self.least[at], place[self.rows[at]])


Timed = Callable[[RowTimeTerm, Kernel, Device], Array]


@dataclass(frozen=True, eq=False)
class RowTimes:
    """The kernel calls of `count` rows on a device, and `known` seconds that are added."""

    device: Device
    terms: tuple[RowTimeTerm, ...]
    count: int
    known: Array | float = 0.0

    def seconds(self, kernels: Mapping[str, Kernel], of: Timed = RowTimeTerm.seconds) -> Array:
        """Seconds of each row: the sum of its calls. If a family has no kernel, the row takes the roofline.

        `of` estimates a term.
        """
        total = np.zeros(self.count) + self.known
        for term in self.terms:
            kernel = kernels.get(term.family)
            seconds = of(term, kernel, self.device) if kernel else term.least
            total += np.bincount(term.rows, seconds, self.count)  # a row may make a call twice
        return total

    def take(self, some: Array) -> RowTimes:
        """Select rows."""
        place = np.full(self.count, -1)
        place[some] = np.arange(len(some))
        kept = (t.take(place) for t in self.terms)
        known = self.known[some] if isinstance(self.known, np.ndarray) else self.known
        return RowTimes(self.device, tuple(t for t in kept if len(t.rows)), len(some), known)

    def holding(self, kernels: Mapping[str, Kernel], families: Sequence[str]) -> RowTimes:
        """Fix the kernels of all families except the given ones."""
        rest = tuple(term for term in self.terms if term.family not in families)
        terms = tuple(term for term in self.terms if term.family in families)
        return replace(self, terms=terms, known=replace(self, terms=rest).seconds(kernels))


def row_times(points: Sequence[TablePoints], device: Device) -> RowTimes:
    """The calls of all rows at these points, in order. Calls are merged if the texts of their shapes are
    equal.
    """
    made: dict[Any, list[RowTimeTerm]] = {}
    count = 0
    for group in points:
        many = len(group.rows)
        numbers = np.arange(count, count := count + many)
        for row, call in _calls(group, device):
            least = np.broadcast_to(IdealModel(device).price(row).time(group.at) if row else 0.0, many)
            whole = replace(call, shape=call.shape.spread(many))
            words = tuple(v for v in vars(whole.shape).values() if isinstance(v, str))
            family = device_family(call.families[0], device)
            key = family, call.part, type(call.shape), words
            made.setdefault(key, []).append(RowTimeTerm(family, whole, least, numbers))
    harness = [np.broadcast_to(group.harness, len(group.rows)) for group in points]
    return RowTimes(device, tuple(map(_joined, made.values())), count, np.concatenate(harness))


def _joined(terms: Sequence[RowTimeTerm]) -> RowTimeTerm:
    call = replace(terms[0].call, shape=stack_shapes([term.call.shape for term in terms]))
    least, numbers = (np.concatenate([getattr(t, name) for t in terms]) for name in ("least", "rows"))
    return RowTimeTerm(terms[0].family, call, least, numbers)


def row_families(points: TablePoints, device: Device) -> tuple[str, ...]:
    """The families that estimate the rows, in the order of the ops."""
    return tuple(dict.fromkeys(device_family(call.families[0], device) for _, call in _calls(points, device)))


def _calls(points: TablePoints, device: Device) -> Iterator[tuple[Row | None, Call]]:
    """Each timed op with its call as numbers; the call is the first one whose kernel supports all shapes.

    A collective between nodes consists of a call inside each node, which has no row in the table, and a call
    of the network (a ring).
    """
    for row in rows(points.program):
        if row.name in points.untimed:
            continue
        calls = kernel_calls(row) or (sent_between_two(row),)
        bound = (replace(call, shape=call.at(points.at)) for call in calls)
        call = next(c for c in bound if np.all(KERNELS[c.families[0]].supports(c.shape)))
        if over := internode_calls(row, device):
            yield None, collective_within(call, one_node(device, row.work.ranks)[1])
            call = replace(over[0], shape=over[0].at(points.at))
        yield row, call


# Times of rows as compiled code

BLOCK = 1 << 13  # rows: the code of a fit uses about twenty buffers at once, with 64 KiB each
MANY = 1 << 12  # number of rows from which compiled code is faster
Run = Callable[..., Array]


class CompiledRowTimes:
    """Compiled `RowTimes.seconds` as a function of the fitted kernels."""

    def __init__(self, clock: RowTimes) -> None:
        self.clock = clock
        self._known: dict[tuple[Any, ...], Run] = {}  # by term, family and choices of the kernel

    def __call__(self, kernels: Mapping[str, Kernel]) -> Array:
        """Equal to `RowTimes.seconds`."""
        return self.clock.seconds(kernels, self.term)

    def term(self, term: RowTimeTerm, kernel: Kernel, device: Device) -> Array:
        """Equal to `RowTimeTerm.seconds`."""
        if len(term.rows) < MANY:
            return term.seconds(kernel, device)
        chosen = {p.name: getattr(kernel, p.name) for p in parameters(type(kernel)) if p.choices}
        key = id(term), type(kernel), *chosen.values()
        if key not in self._known:
            try:
                self._known[key] = compile_term(term, type(kernel), chosen, device)
            except TypeError:  # the link depends on the number of ranks, which cannot be recorded
                self._known[key] = partial(term.seconds, device=device)
        return self._known[key](kernel)


def compile_term(term: RowTimeTerm, kind: type[Kernel], chosen: Mapping[str, float], device: Device) -> Run:
    """Compile a term into a function of a kernel of one class with fixed choices."""
    tape, columns = Tape(SCALARS), {"least": term.least}
    names = [p.name for p in parameters(kind) if p.name not in chosen]
    inputs = {name: f"p{i}" for i, name in enumerate(names)}
    kernel = kind(**chosen, **{name: tape.symbol(symbol) for name, symbol in inputs.items()})
    shape = _symbols(tape, term.call.shape, columns)
    seconds = getattr(kernel, term.call.part)(device, shape, tape.namespace)
    whole = Function.of(
        tape, [*columns, *inputs.values()], [tape.namespace.maximum(seconds, tape.symbol("least"))]
    )
    of_shapes, rest = whole.parted(inputs.values(), "s")
    of_parameters, mixed = rest.parted([n for n in rest.inputs.values() if n not in inputs.values()], "q")
    given = dict(zip(of_shapes.inputs, columns.values(), strict=True))
    given |= dict(zip(of_shapes.outputs, numpy.compiled(of_shapes)(*given.values()), strict=True))
    alone, run = python.compiled(of_parameters), numpy.compiled(mixed, BLOCK)

    def times(kernel: Kernel) -> Array:
        known = dict(zip(of_parameters.outputs, alone(*(getattr(kernel, n) for n in names)), strict=True))
        (found,) = run(*(known[n] if n in known else given[n] for n in mixed.inputs))
        return np.broadcast_to(found, term.least.shape)

    return times


def _symbols(tape: Tape, shape: Any, columns: dict[str, Array], prefix: str = "x") -> Any:
    """The shape, with a symbol for each column that differs between rows; these columns are added to
    `columns`.

    A column whose values are all equal stays a number.
    """
    found: dict[str, Any] = {}
    for name, value in vars(shape).items():
        if isinstance(value, Shape):
            found[name] = _symbols(tape, value, columns, f"{prefix}_{name}")
        elif isinstance(value, np.ndarray):
            first = float(value[0])
            if (value == first).all():
                found[name] = int(first) if first.is_integer() else first
            else:
                columns[f"{prefix}_{name}"] = value
                found[name] = tape.symbol(f"{prefix}_{name}")
    return replace(shape, **found)


# Cases


@dataclass(frozen=True, eq=False)
class CalibrationCase:
    """Rows of one device and engine that fit the kernels of `families`; other kernels in `clock` are fixed.

    If an engine has several kernels for one purpose, the kernel with the most rows is `main`, and is stored
    under the name of the engine alone. `hot` rows are excluded: they are faster than the roofline, because
    their operands were in the L2.
    """

    device: Device
    engine: str
    main: bool
    families: tuple[str, ...]
    origin: str
    seconds: Array
    groups: Sequence[object]
    clock: RowTimes
    ideal: Array
    hot: int

    @property
    def name(self) -> str:
        """The families as one text."""
        return " + ".join(self.families)

    @property
    def parameters(self) -> int:
        """Number of fitted parameters."""
        return sum(len(parameters(KERNELS[f])) for f in self.families)

    def predicted(self, kernels: Mapping[str, Kernel]) -> Array:
        """Seconds of all rows with these kernels."""
        return self.clock.seconds(kernels)

    def take(self, some: Array) -> CalibrationCase:
        """Select rows."""
        groups = [self.groups[i] for i in some]
        clock, ideal = self.clock.take(some), self.ideal[some]
        return replace(self, seconds=self.seconds[some], groups=groups, clock=clock, ideal=ideal)

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The kernels fitted to all rows."""
        kinds = {family: KERNELS[family] for family in self.families}
        of = max(kinds.values(), key=lambda kind: (kind.starts, kind.loss))
        prior = min(kind.prior for kind in kinds.values())
        time = CompiledRowTimes(self.clock)
        return fit_kernels(kinds, time, self.seconds, starts=of.starts, prior=prior, loss=of.loss)

    @cached_property
    def folds(self) -> tuple[tuple[Array, Mapping[str, Kernel]], ...]:
        """For each fold, its rows and the kernels that were fitted without them."""
        return tuple((judged, self.take(seen).kernels) for seen, judged in group_folds(self.groups))

    @cached_property
    def errors(self) -> ErrorStatistics:
        """Errors of each row by a fit without its group."""
        found = np.empty(len(self.seconds))
        for judged, kernels in self.folds:
            found[judged] = self.take(judged).predicted(kernels)
        return error_statistics(found, self.seconds)

    def spread(self, family: str) -> dict[str, tuple[float, float, float]]:
        """Each parameter of a family: the fitted value, and the smallest and largest value of the folds."""
        values = [vars(kernels[family]) for _, kernels in self.folds]
        every = {name: [float(one[name]) for one in values] for name in values[0]}
        own = vars(self.kernels[family])
        return {name: (float(own[name]), min(of), max(of)) for name, of in every.items()}

    @property
    def ideal_errors(self) -> ErrorStatistics:
        """Errors of the roofline."""
        return error_statistics(self.ideal, self.seconds)

    @property
    def row(self) -> dict[str, Any]:
        """The case and its errors as a flat row; errors are shares."""
        return {
            "device": self.device.name,
            "engine": self.engine,
            "family": self.name,
            "parameters": self.parameters,
            "groups": len(set(self.groups)),
            "set_apart": self.hot,
            **self.errors._asdict(),
            "ideal_mape": self.ideal_errors.mape,
        }

    @property
    def fitted(self) -> dict[str, KernelParameters]:
        """The parameters of each family for a calibration file. Families that are fitted together have one
        error.
        """
        rows, error = len(self.seconds), self.errors.mape
        values = {family: {n: float(v) for n, v in vars(k).items()} for family, k in self.kernels.items()}
        return {family: KernelParameters(value, self.origin, rows, error) for family, value in values.items()}


def calibration_cases(
    file: str,
    format: KernelTable,
    rows: Table,
    machines: DeviceLookup,
    known: Callable[[Device], Device] = lambda device: device,
    tell: Callable[[str], None] = lambda problem: None,
) -> list[CalibrationCase]:
    """The cases of a table.

    Args:
        file: The name of the table in messages.
        format: The format of the table.
        rows: The rows.
        machines: Finds devices by name.
        known: Returns a device with a calibration for the families of other tables.
        tell: Called with rejected rows, unknown devices and tables with a single group.
    """
    found: list[CalibrationCase] = []
    alike: dict[
        tuple[str, str, tuple[str, ...]], list[CalibrationCase]
    ] = {}  # several kernels of an engine for one purpose
    by = ("gpu", "framework", "variant", *(["kernel"] if format.variants else []))
    unfit = rows.alike("unfit")
    reasons = {why: rows["line"][at].astype(int).tolist() for (why,), at in unfit.items() if why}
    rows = rows.take(rows["unfit"] == "")
    for (gpu, framework, variant, *kernel), at in rows.alike(*by).items():
        what = f"{file}: {len(at)} rows of {plain(gpu)}, {plain(framework)}"
        try:
            device = machines(gpu)
            if not kernel_source(framework):
                raise InputError("no framework is named")
        except (HardwareError, InputError) as error:
            tell(f"{what}: {error}")
            continue
        engine = kernel_source(framework, "" if variant == "main" else variant or "".join(kernel))
        some = rows.take(at)
        for families, points in _alike(format, some, device, reasons).items():
            case = _case(format, some, device, engine, framework, families, points, known(device))
            if len(set(case.groups)) < 2:
                few = f"fewer than two groups by {', '.join(format.groups)}, too few to judge"
                few += f" ({case.hot} rows are faster than the roofline)" if case.hot else ""
                tell(f"{what}, {case.name}: {few}")
            elif variant:
                found.append(replace(case, main=variant == "main"))
            else:
                alike.setdefault((gpu, framework, families), []).append(case)
    for why, numbers in reasons.items():
        tell(f"{file}: {plain(why, 200)}: rows {spans(sorted(numbers), 5)}")
    for (_, framework, _), kernels in alike.items():
        first, *others = sorted(kernels, key=lambda case: (-len(case.seconds), case.engine))
        found += [replace(first, main=True, engine=kernel_source(framework)), *others]
    return found


def _alike(
    format: KernelTable, rows: Table, device: Device, reasons: dict[str, list[int]]
) -> dict[tuple[str, ...], list[TablePoints]]:
    """Points by the families that a fit to this table includes."""
    found: dict[tuple[str, ...], list[TablePoints]] = {}
    for points in format.points(rows, device):
        if not isinstance(points, TablePoints):
            reasons.setdefault(points.reason, []).extend(rows["line"][points.rows].astype(int).tolist())
            continue
        every = row_families(points, device)
        every = tuple(f for f in every if KERNELS[f].separate) or every
        all_own = (tuple(f for f in every if f.startswith(first)) for first in format.fits)
        if own := next(filter(None, all_own), ()):
            found.setdefault(own, []).append(points)
    return found


def _case(
    format: KernelTable,
    rows: Table,
    device: Device,
    engine: str,
    framework: str,
    families: tuple[str, ...],
    points: Sequence[TablePoints],
    known: Device,
) -> CalibrationCase:
    """The case of the points, without rows that a fit must not use."""
    at = np.concatenate([p.rows for p in points])
    measured = rows["latency_us"] * 1e-6
    hot = np.concatenate([lower_bound(p, device).seconds > measured[p.rows] for p in points])
    made = row_times(points, device)
    kept = np.flatnonzero(~hot)
    terms = {term.family: term.call.families for term in made.terms if term.family not in families}
    held = {family: b.kernel for family, names in terms.items() if (b := nearest_fit(known, names, engine))}
    used = rows.take(at[kept])
    sources = ", ".join(sorted({s for s in used["source"] if s}))
    origin = f"{framework}, measured by {sources}" if sources else framework
    groups = format.held_out_groups(used)
    seconds, made = measured[at[kept]], made.take(kept)
    ideal, made = made.seconds({}), made.holding(held, families)
    return CalibrationCase(
        device, engine, False, families, origin, seconds, groups, made, ideal, int(hot.sum())
    )
