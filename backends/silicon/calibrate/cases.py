"""Measured rows by what they calibrate: a device, an engine's kernels, and the families that price them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from llmir.backends.cost.calibration import nearest
from llmir.backends.kernels.base import KERNELS, Kernel, parameters
from llmir.backends.silicon.folds import Errors, errors, group_folds
from llmir.backends.silicon.machines import Machines, named
from llmir.backends.silicon.rows import Array, Table
from llmir.backends.silicon.tables.table import Kernels, Points
from llmir.backends.silicon.validate.bounds import bound
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError
from llmir.base.names import plain, spans
from llmir.hw.calibration import Fitted
from llmir.hw.device import Device

from .clock import Clock, clock, families_of
from .compiled import Compiled
from .fit import fit


@dataclass(frozen=True, eq=False)
class Case:
    """Rows of one device and engine that kernels of `families` price, beside others that the clock holds.

    Of an engine's several kernels for one thing, that with most rows is `main` and bears the engine's name
    alone. `hot` rows are set apart by rule: faster than the roofline, so that operands lay in the L2.
    """

    device: Device
    engine: str
    main: bool
    families: tuple[str, ...]
    origin: str
    seconds: Array
    groups: Sequence[object]
    clock: Clock
    ideal: Array
    hot: int

    @property
    def name(self) -> str:
        """The families, as one word."""
        return " + ".join(self.families)

    @property
    def parameters(self) -> int:
        """How many are fitted."""
        return sum(len(parameters(KERNELS[f])) for f in self.families)

    def predicted(self, kernels: Mapping[str, Kernel]) -> Array:
        """Seconds of all rows by these kernels."""
        return self.clock.seconds(kernels)

    def take(self, some: Array) -> Case:
        """Some of the rows."""
        groups = [self.groups[i] for i in some]
        clock, ideal = self.clock.take(some), self.ideal[some]
        return replace(self, seconds=self.seconds[some], groups=groups, clock=clock, ideal=ideal)

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """Those nearest to the rows."""
        kinds = {family: KERNELS[family] for family in self.families}
        of = max(kinds.values(), key=lambda kind: (kind.starts, kind.loss))
        prior = min(kind.prior for kind in kinds.values())
        time = Compiled(self.clock)
        return fit(kinds, time, self.seconds, starts=of.starts, prior=prior, loss=of.loss)

    @cached_property
    def folds(self) -> tuple[tuple[Array, Mapping[str, Kernel]], ...]:
        """The rows of some groups and kernels that saw none of these, for all groups in turn."""
        return tuple((judged, self.take(seen).kernels) for seen, judged in group_folds(self.groups))

    @cached_property
    def errors(self) -> Errors:
        """Errors of each row by a fit that saw none of its group."""
        found = np.empty(len(self.seconds))
        for judged, kernels in self.folds:
            found[judged] = self.take(judged).predicted(kernels)
        return errors(found, self.seconds)

    def spread(self, family: str) -> dict[str, tuple[float, float, float]]:
        """Each parameter of a family: as fitted to all rows, and the least and most that a fold found."""
        values = [vars(kernels[family]) for _, kernels in self.folds]
        every = {name: [float(one[name]) for one in values] for name in values[0]}
        own = vars(self.kernels[family])
        return {name: (float(own[name]), min(of), max(of)) for name, of in every.items()}

    @property
    def ideal_errors(self) -> Errors:
        """Errors of the roofline."""
        return errors(self.ideal, self.seconds)

    @property
    def row(self) -> dict[str, Any]:
        """What it is of, and its errors, as shares of one."""
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
    def fitted(self) -> dict[str, Fitted]:
        """What a calibration says of each family; one fitted with others has their error."""
        rows, error = len(self.seconds), self.errors.mape
        values = {family: {n: float(v) for n, v in vars(k).items()} for family, k in self.kernels.items()}
        return {family: Fitted(value, self.origin, rows, error) for family, value in values.items()}


def cases(
    file: str,
    format: Kernels,
    rows: Table,
    machines: Machines,
    known: Callable[[Device], Device] = lambda device: device,
    tell: Callable[[str], None] = lambda problem: None,
) -> list[Case]:
    """The cases of a table; `tell` hears of rows that are refused, or of no device, or of one group.

    `known` gives a device with the calibration that families of other tables are held at.
    """
    found: list[Case] = []
    alike: dict[tuple[str, str, tuple[str, ...]], list[Case]] = {}  # an engine's kernels for one thing
    by = ("gpu", "framework", "variant", *(["kernel"] if format.variants else []))
    unfit = rows.alike("unfit")
    reasons = {why: rows["line"][at].astype(int).tolist() for (why,), at in unfit.items() if why}
    rows = rows.take(rows["unfit"] == "")
    for (gpu, framework, variant, *kernel), at in rows.alike(*by).items():
        what = f"{file}: {len(at)} rows of {plain(gpu)}, {plain(framework)}"
        try:
            device = machines(gpu)
            if not named(framework):
                raise InputError("no framework is named")
        except (HardwareError, InputError) as error:
            tell(f"{what}: {error}")
            continue
        engine = named(framework, "" if variant == "main" else variant or "".join(kernel))
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
        found += [replace(first, main=True, engine=named(framework)), *others]
    return found


def _alike(
    format: Kernels, rows: Table, device: Device, reasons: dict[str, list[int]]
) -> dict[tuple[str, ...], list[Points]]:
    """Points by the families that a fit to this table is of."""
    found: dict[tuple[str, ...], list[Points]] = {}
    for points in format.points(rows, device):
        if not isinstance(points, Points):
            reasons.setdefault(points.reason, []).extend(rows["line"][points.rows].astype(int).tolist())
            continue
        every = families_of(points, device)
        every = tuple(f for f in every if KERNELS[f].separate) or every
        all_own = (tuple(f for f in every if f.startswith(first)) for first in format.fits)
        if own := next(filter(None, all_own), ()):
            found.setdefault(own, []).append(points)
    return found


def _case(
    format: Kernels,
    rows: Table,
    device: Device,
    engine: str,
    framework: str,
    families: tuple[str, ...],
    points: Sequence[Points],
    known: Device,
) -> Case:
    """Those of the points that a fit may see."""
    at = np.concatenate([p.rows for p in points])
    measured = rows["latency_us"] * 1e-6
    hot = np.concatenate([bound(p, device).seconds > measured[p.rows] for p in points])
    made = clock(points, device)
    kept = np.flatnonzero(~hot)
    terms = {term.family: term.call.families for term in made.terms if term.family not in families}
    held = {family: b.kernel for family, names in terms.items() if (b := nearest(known, names, engine))}
    used = rows.take(at[kept])
    sources = ", ".join(sorted({s for s in used["source"] if s}))
    origin = f"{framework}, measured by {sources}" if sources else framework
    groups = format.left_out_together(used)
    seconds, made = measured[at[kept]], made.take(kept)
    ideal, made = made.seconds({}), made.holding(held, families)
    return Case(device, engine, False, families, origin, seconds, groups, made, ideal, int(hot.sum()))
