"""Fit engine CPU time to measured runs of whole models, one fit per engine and range of versions.

Order of the file: `fit_engine_cpu` fits runs, with a prior from the engine's main range and from the common
values of servers. `EngineCpuFit` is the fit of an engine with its errors. `held_out_rows` estimates rows of
tables by fits without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.kernels.base import KERNELS, stack_shapes
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.silicon.rows import Array, ErrorStatistics, error_statistics, group_folds
from llmir.backends.silicon.validate.estimates import CostModelChoice
from llmir.backends.silicon.validate.requests import ModelSetup
from llmir.backends.silicon.validate.rows import Validation, ValidationRow
from llmir.backends.silicon.validate.run import validate
from llmir.base.arguments import choice
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.calibration import digits
from llmir.hw.device import Device
from llmir.hw.engine import ENGINE_CPU_FAMILIES, FOLDER, distance

from .fit import fit_kernels
from .runs import Build, RunMeasurement, runs_of

# Fit to runs

_OF = library.load("h100-sxm")  # any device: engine CPU time does not depend on it
# Prior from the engine's range with the most runs: a factor of e costs as much as 0.5% of every time.
NEAR = 0.005
# Prior from other servers. Errors of runs of one model on one device are correlated through their kernels
# (about 8%), and the parameters of servers differ by a factor of e or more. So if all runs belong to one such
# group, a factor of e costs as much as 5% of every time. With several groups it costs less, because errors
# average.
COMMON = 0.05
# The hidden share is a property of CUDA graphs more than of a release. If there are fewer runs than
# parameters, it is not fitted, because several parameters could explain the runs equally well.
OF_GRAPHS = ("hidden",)


def engine_cpu_family(engine: str, versions: Sequence[str]) -> str:
    """The family of engine CPU time for a range of versions of an engine."""
    known = engine in library.engines() and versions
    return library.engine(f"{engine}@{versions[-1]}").family if known else ENGINE_CPU_FAMILIES[0]


def run_times(runs: Sequence[RunMeasurement]) -> Callable[[EngineCpu], Array]:
    """Return a function that estimates the seconds of runs from CPU parameters, in the family of
    each engine.
    """
    kinds: dict[tuple[str, bool], list[int]] = {}
    for i, run in enumerate(runs):
        kinds.setdefault((engine_cpu_family(run.engine, run.versions), run.serial), []).append(i)
    each = [(*kind, at, stack_shapes([runs[i].shape for i in at])) for kind, at in kinds.items()]

    def seconds(host: EngineCpu) -> Array:
        found = np.empty(len(runs))
        for name, serial, at, shape in each:
            own = KERNELS[name](**vars(host))
            assert isinstance(own, EngineCpu)
            found[at] = (own.serial if serial else own).seconds(_OF, shape)
        return found

    return seconds


def fit_engine_cpu(
    name: str,
    runs: Sequence[RunMeasurement],
    near: EngineCpu | None,
    prior: float,
    weights: Array | None = None,
    held: Collection[str] = (),
) -> EngineCpu:
    """Fit the engine CPU time of a family to runs.

    Args:
        name: The family.
        runs: The measured runs.
        near: Parameters that the prior prefers; None for the defaults.
        prior: The weight of the prior, as in `fit_kernels`.
        weights: Weights of the runs.
        held: Names of parameters that keep the values of `near`.
    """
    times = run_times(runs)

    def seconds(kernels: object) -> Array:
        assert isinstance(kernels, dict)
        return times(kernels["host"])

    found = fit_kernels(
        {"host": KERNELS[name]},
        seconds,
        np.array([run.seconds for run in runs]),
        starts=EngineCpu.starts,
        prior=prior,
        near={"host": near} if near else None,
        weights=weights,
        held=held,
    )["host"]
    assert isinstance(found, EngineCpu)
    return found


def run_group(run: RunMeasurement) -> tuple[str, str, str]:
    """The group of runs with correlated errors: release, device and model."""
    return run.release, run.device, run.model


@cache
def common_engine_cpu(servers: tuple[RunMeasurement, ...]) -> EngineCpu:
    """The common parameters of servers, fitted to all their runs. Each group of runs has equal weight."""
    alike = [*map(run_group, servers)]
    share = {key: 1 / alike.count(key) for key in set(alike)}
    weights = np.array([share[key] for key in alike])
    return fit_engine_cpu("host", servers, None, EngineCpu.prior, weights / weights.mean())


# Fits of all engines


@dataclass(frozen=True, eq=False)
class EngineCpuFit:
    """The CPU time of an engine in a range of versions, fitted to `runs`.

    `others` are runs of other version ranges of the engine.

    Parameters that the runs do not determine follow a prior. The prior is `near`, the range of the engine
    with the most runs. It must have the same major version, and its runs must be of servers if these runs
    are. Other major versions are different programs: with their prior, TensorRT-LLM 1.0 would get the 15 µs
    per step of the sessions of 0.5. Without such a range, the prior is the common value of `servers` (runs of
    other engines), if these runs are also of servers.
    """

    engine: str
    versions: tuple[str, ...]
    runs: Sequence[RunMeasurement]
    others: Sequence[RunMeasurement] = ()
    near: EngineCpuFit | None = None
    servers: tuple[RunMeasurement, ...] = ()

    @cached_property
    def host(self) -> EngineCpu:
        """The parameters fitted to all runs."""
        return self._fit(self.runs)

    @property
    def family(self) -> str:
        """The family of engine CPU time in the engine's file."""
        return engine_cpu_family(self.engine, self.versions)

    def _fit(self, runs: Sequence[RunMeasurement]) -> EngineCpu:
        near = self.near if self.near and major(self.near.versions) == major(self.versions) else None
        if near and (near.served or not self.served):
            few = len(runs) <= len(vars(near.host))
            return fit_engine_cpu(self.family, runs, near.host, NEAR, held=OF_GRAPHS if few else ())
        if self.servers and self.served:
            prior = COMMON / len({*map(run_group, runs)}) ** 0.5
            return fit_engine_cpu(self.family, runs, common_engine_cpu(self.servers), prior)
        return fit_engine_cpu(self.family, runs, None, EngineCpu.prior)

    @cached_property
    def served(self) -> bool:
        """Whether all runs are runs of a server."""
        return all(run.served for run in self.runs)

    @property
    def range(self) -> str:
        """The range of versions, such as `0.11–0.12`."""
        return "–".join(dict.fromkeys(self.versions))

    @cached_property
    def models(self) -> int:
        """Number of different models."""
        return len({run.model for run in self.runs})

    @cached_property
    def fitted(self) -> Array:
        """Estimated seconds of each run by the fit to all runs."""
        return _seconds(self.host, self.runs)

    @cached_property
    def by_model(self) -> Array:
        """Estimated seconds of each run by a fit without the run's model; NaN if there is only one model."""
        return self._without(lambda run: run.model)

    @cached_property
    def by_tp(self) -> Array:
        """Estimated seconds of each run by a fit without the run's tp; NaN if there is only one tp."""
        return self._without(lambda run: run.tp)

    def _without(self, group: Callable[[RunMeasurement], object]) -> Array:
        groups = [group(run) for run in self.runs]
        found = np.full(len(groups), np.nan)
        for left in dict.fromkeys(groups) if len(set(groups)) > 1 else ():
            rest = [run for run, own in zip(self.runs, groups, strict=True) if own != left]
            at = np.array([own == left for own in groups])
            found[at] = _seconds(self._fit(rest), [r for r, own in zip(self.runs, at, strict=True) if own])
        return found

    @cached_property
    def error(self) -> float:
        """The largest mean error: with models held out, with tp held out, or of the fit itself.

        If neither can be held out, or if there are no more runs than parameters, the error of `near` is
        included.
        """
        sides = (self.errors(of).mape for of in (self.by_model, self.by_tp) if not np.isnan(of).any())
        known = list(sides) if len(self.runs) > len(vars(self.host)) else []
        other = [self.near.error] if self.near and not known else []
        return max(*known, *other, self.errors(self.fitted).mape)

    @cached_property
    def elsewhere(self) -> float | None:
        """Mean error on runs of other versions of the engine; None without such runs."""
        if not self.others:
            return None
        measured = np.array([run.seconds for run in self.others])
        return error_statistics(_seconds(self.host, self.others), measured).mape

    def errors(self, predicted: Array, some: Any = slice(None)) -> ErrorStatistics:
        """Error statistics of some of the runs."""
        measured = np.array([run.seconds for run in self.runs])
        return error_statistics(predicted[some], measured[some])

    @property
    def row(self) -> dict[str, Any]:
        """The errors, as shares, and the parameters as a flat row."""
        about = {"engine": self.engine, "versions": self.range, "models": self.models}
        return {**about, **self._errors(), "other_versions": self.elsewhere, **vars(self.host)}

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """The errors by device and tp."""
        for device, tp in sorted({(run.device, run.tp) for run in self.runs}):
            at = np.array([(run.device, run.tp) == (device, tp) for run in self.runs])
            about = {"engine": self.engine, "versions": self.range, "device": device, "tp": tp}
            yield {**about, **self._errors(at)}

    def _errors(self, some: Any = slice(None)) -> dict[str, Any]:
        found = self.errors(self.fitted, some)
        figures: dict[str, Any] = {
            "n": found.n,
            "mape": found.mape,
            "median": found.median,
            "bias": found.bias,
        }
        for name, of in (("model", self.by_model), ("tp", self.by_tp)):
            left = self.errors(of, some)
            figures |= {f"{name}_mape": left.mape, f"{name}_median": left.median}
        return figures

    @property
    def yaml(self) -> str:
        """The section of an engine's YAML file, with three significant digits per parameter."""
        origin = f"{self.engine} {self.range}".strip() + f" in whole runs of {self.models} models"
        values = {"rows": len(self.runs), "error_percent": digits(100 * self.error)}
        if self.elsewhere is not None:
            values["other_versions_percent"] = digits(100 * self.elsewhere)
        values |= {name: digits(value) for name, value in vars(self.host).items()}
        lines = "".join(f"  {name}: {value}\n" for name, value in values.items())
        return f'{self.family}:\n  origin: "{origin}"\n{lines}'

    @property
    def file(self) -> tuple[str, str]:
        """The path of the range's file in `hw/engines`, and its text with this fit."""
        first = self.versions[0] if self.versions else "0"
        name, path = f"{self.engine}/{first}.yaml", FOLDER / self.engine / f"{first}.yaml"
        text = path.read_text(encoding="utf-8") if path.exists() else f'versions: ["{first}"]\n'
        rest = re.sub(rf"^{self.family}:\n(?: .*\n)*", "", text, flags=re.MULTILINE)
        head, _, tail = rest.partition("\n")
        return f"engines/{name}", f"{head}\n{self.yaml}{tail}"

    @property
    def own_file(self) -> str:
        """The text of a user's engine file that extends the range."""
        base = f"extend: {self.engine}@{self.versions[-1]}\n" if self.versions else ""
        return base + self.yaml


def fit_engine_cpus(runs: Iterable[RunMeasurement]) -> list[EngineCpuFit]:
    """Fit the CPU time of all engines by range of versions; the range with the most runs comes first."""
    apart: dict[str, dict[tuple[str, ...], list[RunMeasurement]]] = {}
    for run in (every := list(runs)):
        apart.setdefault(run.engine, {}).setdefault(run.versions, []).append(run)
    return [host for engine, ranges in apart.items() for host in _ranges(engine, ranges, every)]


def _ranges(
    engine: str, ranges: Mapping[tuple[str, ...], list[RunMeasurement]], every: Sequence[RunMeasurement]
) -> Iterator[EngineCpuFit]:
    servers = tuple(run for run in every if run.served and run.engine != engine)
    near: EngineCpuFit | None = None
    for versions, runs in sorted(ranges.items(), key=lambda item: -len(item[1])):
        others = [run for other, rest in ranges.items() if other != versions for run in rest]
        found = EngineCpuFit(engine, versions, runs, others, near, servers)
        near = near or found
        yield found


def major(versions: tuple[str, ...]) -> str:
    """The major version of a range."""
    return versions[0].partition(".")[0] if versions else ""


def _seconds(host: EngineCpu, runs: Sequence[RunMeasurement]) -> Array:
    return run_times(runs)(host)


# Rows left out of the fit

FOLDS = ("model", "device", "version", "tp")
Key = tuple[str, ...]
Tell = Callable[[str, int, int], None]


def held_out_rows(
    paths: Sequence[Path], build: Build, by: Sequence[str], tell: Tell = lambda *_: None, folds: int = 5
) -> Validation:
    """Estimate rows of whole models with fits that do not use rows with equal values of `by`.

    If no run of a version range is left, the nearest range of the same major version is used, or else the
    common values of other servers. Rows that no fit uses are estimated by the fits of all other runs.

    Args:
        paths: CSV files of whole models.
        build: Builds the program of a layout.
        by: The keys that define groups: model, device, version or tp.
        tell: Called with the file, the number of finished rows and the number of rows.
        folds: The number of folds.

    Raises:
        InputError: A key is unknown, or all rows are in one group.
    """
    for name in by:
        choice("folds", name, FOLDS)
    found = runs_of(paths, build)
    groups = [_key(by, run.model, run.device, run.release, run.tp) for run in found]
    if len(set(groups)) < 2:
        raise InputError(
            f"folds: {','.join(by)}: all rows have equal values in these columns, so no group can be held out"
        )
    judged: dict[tuple[str, int, str], ValidationRow] = {}
    known = set(groups)
    for number, (rest, left) in enumerate(group_folds(groups, folds=folds)):
        some = {groups[i] for i in left}

        def only(layout: ModelSetup, device: Device, some: set[Key] = some, first: bool = not number) -> bool:
            key = _key(by, layout.model, device.name, layout.engine, layout.tp)
            return key in some or (first and key not in known)

        some_runs = [found[i] for i in rest]
        hosts = _held_out_engine_cpus(found, some_runs, fit_engine_cpus(some_runs))
        fold = validate(
            paths, build, pricing=CostModelChoice("calibrated", hosts=hosts), tell=tell, only=only
        )
        judged |= {(row.file, row.row, row.metric): row for row in (*fold.rows, *fold.refused)}
    rows = sorted(judged.values(), key=lambda row: (row.file, row.row))
    priced, refused = ([r for r in rows if bool(r.reason) is no] for no in (False, True))
    return Validation("calibrated", priced, refused)


def _key(by: Sequence[str], model: str, device: str, release: str, tp: int) -> Key:
    said = dict(zip(FOLDS, (model, device, release, str(tp)), strict=True))
    return tuple(said[name] for name in by)


def _held_out_engine_cpus(
    runs: Sequence[RunMeasurement], rest: Sequence[RunMeasurement], fitted: Sequence[EngineCpuFit]
) -> FrozenDict[tuple[str, str], EngineCpu]:
    """The CPU time of each range of versions, from fits to the remaining runs."""
    ranges: dict[tuple[str, tuple[str, ...]], list[RunMeasurement]] = {}
    for run in runs:
        ranges.setdefault((run.engine, run.versions), []).append(run)
    hosts: dict[tuple[str, str], EngineCpu] = {}
    for (engine, versions), its in ranges.items():
        found = _nearest(engine, versions, fitted)
        servers = tuple(run for run in rest if run.served) if its[0].served else ()
        host: Any = KERNELS[engine_cpu_family(engine, versions)]
        if found or servers:
            host = host(**vars(found.host if found else common_engine_cpu(servers)))
        hosts[engine, "–".join(dict.fromkeys(versions))] = host if isinstance(host, EngineCpu) else host()
    return FrozenDict(hosts)


def _nearest(engine: str, versions: tuple[str, ...], fitted: Sequence[EngineCpuFit]) -> EngineCpuFit | None:
    """The fit of this range, or of the nearest range with the same major version."""
    own = [host for host in fitted if host.engine == engine and major(host.versions) == major(versions)]
    if not versions or not own:
        return own[0] if own else None
    return min(own, key=lambda host: distance(library.engine(f"{engine}@{versions[-1]}"), host.versions[-1]))
