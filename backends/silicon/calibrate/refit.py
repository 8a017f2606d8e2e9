"""Fit every case of a folder of measured tables, write calibration files, and print the errors.

`fit_cases` fits the cases. `RefitResult` contains kernels and engine CPU times with their errors; its `files`
are `calibrations/DEVICE/ENGINE.yaml`. `shown` builds the tables for a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeVar

from llmir.backends.cost.transfer import nearness
from llmir.backends.export import table
from llmir.backends.kernels.base import KERNELS, parameters
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.silicon.rows import DeviceLookup, Table, error_statistics
from llmir.backends.silicon.tables.table import KernelTable
from llmir.base.errors import InputError
from llmir.base.formats import Displayable
from llmir.base.values import FrozenDict, Immutable
from llmir.hw.calibration import Calibration, KernelParameters, digits, engine_yaml, rank, to_yaml
from llmir.hw.device import Device

from .cases import CalibrationCase, calibration_cases
from .engine_cpu import EngineCpuFit

# Fits and calibration files

T = TypeVar("T")

Engines = dict[str, dict[str, KernelParameters]]
YAML = (".yaml", ".yml")
BETTER = "is nearer to shapes that it has not seen than the roofline"
NO_ENGINE_CPUS: Mapping[str, Mapping[str, KernelParameters]] = MappingProxyType({})


class RefitResult(Immutable, Displayable):
    """Kernels and engine CPU times fitted to a folder of measured times, one row each, with errors.

    - `kernels`, `hosts`: A row for each fit of kernels, and for each fit of engine CPU time.
    - `runs`: The errors of engine CPU time by device and tp.
    - `spreads`: A row for each parameter: its value, and the smallest and largest value in fits that each
      omit a fifth of the groups.

    `device` is the name of the requested device. `whole` is true if everything was fitted.
    """

    kernels: tuple[Mapping[str, Any], ...]
    spreads: tuple[Mapping[str, Any], ...]
    hosts: tuple[Mapping[str, Any], ...]
    runs: tuple[Mapping[str, Any], ...]
    _cases: Sequence[CalibrationCase]
    _overheads: Sequence[EngineCpuFit]
    _machines: DeviceLookup
    _device: str | None
    _whole: bool

    def __init__(
        self,
        cases: Sequence[CalibrationCase],
        hosts: Sequence[EngineCpuFit],
        machines: DeviceLookup,
        *,
        device: str | None = None,
        whole: bool = False,
    ) -> None:
        vars(self).update(
            kernels=tuple(FrozenDict(case.row) for case in cases),
            spreads=tuple(FrozenDict(row) for case in cases for row in _spread_rows(case)),
            hosts=tuple(FrozenDict(host.row) for host in hosts),
            runs=tuple(FrozenDict(row) for host in hosts for row in host.rows),
            _cases=tuple(cases),
            _overheads=tuple(hosts),
            _machines=machines,
            _device=device,
            _whole=whole,
        )

    def files(self, target: str) -> dict[str, str]:
        """The files to write, by path: one YAML file of a device or an engine, or a folder with the structure
        of `llmir/hw`.

        Args:
            target: A file name that ends in `.yaml`, or a folder.

        Raises:
            InputError: One file would contain several devices or engines, or there is nothing to write.
        """
        if not target.endswith(YAML):
            made = files(self._cases, whole=self._whole)
            made |= dict(host.file for host in self._overheads)
            if not made:
                raise InputError(f"{target}: nothing to write, no fit to a bundled device {BETTER}")
            return {f"{target}/{name}": text for name, text in made.items()}
        if not self._cases:
            names = [f"{host.engine}@{host.versions[-1]}" for host in self._overheads if host.versions]
            (host,) = _alone(self._overheads, target, "engine", names)
            return {target: host.own_file}
        devices = list(dict.fromkeys(case.device for case in self._cases))
        (device,) = _alone(devices, target, "device", [d.name for d in devices])
        base = self._machines.base(device, self._device or device.name, target)
        return {target: f"extend: {base}\n{calibration_block(self._cases)}"}


def _spread_rows(case: CalibrationCase) -> Iterator[dict[str, Any]]:
    of = {"device": case.device.name, "engine": case.engine}
    for family in case.families:
        for name, (value, low, high) in case.spread(family).items():
            yield {**of, "family": family, "parameter": name, "value": value, "low": low, "high": high}


def _alone(found: Sequence[T], target: str, what: str, names: Sequence[str]) -> Sequence[T]:
    if len(found) > 1:
        raise InputError(f"{target}: a file contains one {what}; select it with --{what}: {', '.join(names)}")
    return found


def fit_cases(
    tables: Iterable[tuple[str, KernelTable, Table]],
    machines: DeviceLookup,
    wanted: Callable[[str, CalibrationCase], bool] = lambda format, case: True,
    tell: Callable[[str], None] = lambda problem: None,
) -> list[CalibrationCase]:
    """The cases of the `wanted` tables, in the order of the tables; `tell` is called with problems.

    Families of other tables keep the values that were just fitted on the device, or else the values of its
    calibration.
    """
    found: list[CalibrationCase] = []
    for file, format, rows in sorted(tables, key=lambda table: (table[1].name, table[0])):
        some = calibration_cases(file, format, rows, machines, with_fits(found), tell)
        found += [case for case in some if wanted(format.name, case)]
    return found


def with_fits(found: Sequence[CalibrationCase]) -> Callable[[Device], Device]:
    """Return a function that gives a device its new calibration, or the calibration of the most similar
    device.
    """
    fitted: dict[Device, Calibration] = {}
    for device in dict.fromkeys(case.device for case in found):
        if engines := calibration([case for case in found if case.device == device]):
            ordered = dict(sorted(engines.items(), key=lambda engine: rank(engine[0])))
            fitted[device] = Calibration(next(iter(ordered)), ordered)
    whole = [device for device, made in fitted.items() if not made.partial]

    def known(device: Device) -> Device:
        siblings = [other for other in whole if other.vendor == device.vendor]
        nearest = min(siblings, key=lambda other: nearness(device, other), default=device)
        made = fitted.get(device if device in fitted else nearest)
        return replace(device, own_calibration=made) if made else device

    return known


def calibration(found: Sequence[CalibrationCase]) -> Engines:
    """The parameters of the cases of one device, by engine and family."""
    engines: Engines = {}
    for case in sorted(useful_cases(found), key=lambda case: len(case.seconds)):
        engines.setdefault(case.engine, {}).update(case.fitted)
    return engines


def useful_cases(found: Sequence[CalibrationCase]) -> list[CalibrationCase]:
    """The cases that improve a calibration, because their error on held-out shapes is below that of the
    alternative.

    The alternative is the roofline, and for an additional kernel of an engine also its main kernel. If there
    are two versions of a kernel, the one with more rows is used.
    """
    best: dict[tuple[object, ...], CalibrationCase] = {}
    for case in found:
        key = case.device, case.engine, case.families
        if key not in best or len(case.seconds) > len(best[key].seconds):
            best[key] = case
    mains = {(case.device, case.engine, case.families): case for case in best.values() if case.main}

    def pays(case: CalibrationCase) -> bool:
        main = mains.get((case.device, case.engine.partition("-")[0], case.families))
        others = [case.ideal_errors.mape]
        if main and main is not case:
            others.append(error_statistics(case.predicted(main.kernels), case.seconds).mape)
        return case.errors.mape < min(others)

    return [case for case in best.values() if pays(case)]


def files(found: Sequence[CalibrationCase], *, whole: bool) -> dict[str, str]:
    """The text of `calibrations/DEVICE/ENGINE.yaml` of bundled devices, by path.

    If `whole` is false, the cases replace only their own families in the calibration of the device.
    """
    made: dict[str, str] = {}
    for device in dict.fromkeys(case.device for case in found if case.device.measured_as):
        engines = calibration([case for case in found if case.device == device])
        if device.calibration and not whole:
            for engine, families in device.calibration.engines.items():
                if engine in engines:
                    own = {name: fit for name, fit in families.items() if name in KERNELS}
                    engines[engine] = own | engines[engine]
        for engine, families in sorted(engines.items()):
            text = engine_yaml(dict(sorted(families.items())))
            made[f"calibrations/{device.measured_as}/{engine}.yaml"] = text
    return made


def calibration_block(
    found: Sequence[CalibrationCase], hosts: Mapping[str, Mapping[str, KernelParameters]] = NO_ENGINE_CPUS
) -> str:
    """The `calibration:` section of a device file.

    The first engine is the device's default engine; if it has none, the engine with the most families.
    """
    engines = calibration(found)
    for engine, host in hosts.items():
        engines.setdefault(engine, {}).update(host)
    if not engines:
        raise InputError(f"nothing to write, no fit {BETTER}")
    known = found[0].device.calibration
    first = max(engines, key=lambda e: (known is not None and e == known.engine, len(engines[e])))
    return to_yaml(Calibration(first, engines))


# Tables for a terminal

SPREAD = "parameters, their least and most"
ERRORS = ("mape", "median", "bias", "p90")


@table.table_of(of=RefitResult)
def shown(found: RefitResult) -> Any:
    """Build the tables of kernels and of engine CPU times."""
    kernels, hosts = found.kernels, found.hosts
    tables = [
        *([_kernels(kernels), _spread_table(found.spreads)] if kernels else []),
        *([_engine_cpu_table(hosts), _runs(found.runs)] if hosts else []),
    ]
    return table.stack(*(part for each in tables for part in (each, "")))


def _percents(row: Mapping[str, Any], *names: str) -> list[str]:
    known = (row[name] for name in names)
    return ["–" if share is None or share != share else f"{100 * share:.1f}%" for share in known]  # noqa: PLR0124 (not a number)


def _kernels(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    names = ("device", "engine", "family", "parameters", "n", "groups", "set_apart")
    headings = (*names[:4], "rows", "groups", "set apart")
    errors = ("mean", "median", "bias", "p90", "ideal")
    shown = table.columns((*headings, *errors), (*headings[3:], *errors))
    for row in rows:
        about = (str(row[name]) for name in names)
        table.add(shown, (*about, *_percents(row, *ERRORS, "ideal_mape")))
    legend = "errors on shapes left out of the fit; ideal: the mean error of the roofline"
    return Group(shown, "", legend)


def _spread_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    shown = table.columns(("device", "engine", "family", SPREAD), (), (SPREAD,))
    for about, some in groupby(rows, lambda row: (row["device"], row["engine"], row["family"])):
        table.add(shown, (*about, ", ".join(map(_spread, some))))
    return Group(shown, "", "least and most of fits that leave a fifth of the groups out")


def _spread(row: Mapping[str, Any]) -> str:
    value, low, high = (digits(row[name]) for name in ("value", "low", "high"))
    return f"{row['parameter']} {value}" + (f" ({low} to {high})" if low != high else "")


LEFT = ("mape", "median", "bias", "model_mape", "model_median", "tp_mape", "tp_median")
_HEADS = ("rows", "mean", "median", "bias", "model", "(median)", "tp", "(median)")


def _engine_cpu_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    known = parameters(EngineCpu)
    about = ("engine", "versions", "models")
    shown = table.columns((*about, *_HEADS, "other versions"), (about[-1], *_HEADS, "other versions"))
    fitted = table.columns((*about[:2], *(p.name for p in known)), [p.name for p in known])
    for row in rows:
        whose = [str(row[name]) for name in about]
        table.add(shown, (*whose, f"{row['n']:,}", *_percents(row, *LEFT, "other_versions")))
        table.add(fitted, (*whose[:2], *(digits(row[p.name]) for p in known)))
    meanings = table.pairs([(p.name, p.unit or "ratio", p.meaning) for p in known])
    legend = "errors on all runs; without the model, or the tp, in the fit; on the engine's other versions"
    return Group(shown, "", legend, "", fitted, "", meanings)


def _runs(rows: Sequence[Mapping[str, Any]]) -> Any:
    about = ("engine", "versions", "device", "tp")
    shown = table.columns((*about, *_HEADS), (about[-1], *_HEADS))
    for row in rows:
        table.add(shown, (*(str(row[name]) for name in about), f"{row['n']:,}", *_percents(row, *LEFT)))
    return shown
