"""The cost model that estimates a measured row, and the basis and error of its time.

`CostModelChoice` is a cost model by name, for any device and engine; the calibration of that device or engine
can be excluded. `basis_summary` and `step_basis` summarize the bases of ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.cost.calibrated import CalibratedModel
from llmir.backends.cost.models import calibrated, model, with_scheduler
from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.transfer import first_engine, kernel_engine, kernel_sources, relation
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.request.workload import Workload
from llmir.backends.silicon.closed_loop import MeasurementMethod
from llmir.backends.silicon.rows import Array
from llmir.backends.step.report import Report
from llmir.backends.work.rows import Basis
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.calibration import LIBRARIES, Calibration, rank
from llmir.hw.device import Device
from llmir.hw.engine_sections import CudaGraphs, GraphSizes, KernelVariants
from llmir.hw.transfer import ENGINE
from llmir.ir.core.program import Program

WITHOUT = ("device", "engine")
# The mean error of engines without a fitted CPU time: 101 whole runs of nine engines in e2e.csv.
UNKNOWN = 0.36
AS_RELEASED = MeasurementMethod()
NONE = LIBRARIES[0]  # the library of a device without kernels, instead of an engine


class BasisSummary(NamedTuple):
    """The bases of a time, ordered by their share of it, and the mean relative error of the time, if known.

    `relation` describes the device whose kernels take the largest share: `calibrated` (this device), another
    engine, a device of `hw.transfer.RELATIONS`, or none for a roofline.
    """

    basis: str
    band: float
    relation: str


class CostModelChoice(NamedTuple):
    """A cost model by name, for any device and engine; one of the calibrations in `WITHOUT` can be excluded.

    `hosts` replace the CPU times of engines, by name and range of versions.
    """

    name: str
    without: str = ""
    hosts: Mapping[tuple[str, str], EngineCpu] = FrozenDict()

    def model(self, device: Device, engine: str) -> DeviceCostModel:
        """The cost model of an engine or of one of its kernels.

        For an unknown engine, the default engine of the device is used. For a device without similar measured
        devices, the roofline is used.
        """
        if self.name == "ideal" or first_engine(device) is None:
            return model(device, "ideal")
        name = engine.partition("@")[0]
        device = _unmeasured(device, name, self.without) if self.without else device
        known = (*kernel_sources(device), *library.engines())
        found = next((e for e in (name, kernel_engine(name)) if e in known), None)
        if not found:
            return _instead(device, name)
        versions = found in library.engines() or kernel_engine(found) in library.engines()
        made = model(device, self.name, engine.replace(name, found, 1) if versions else found)
        host = made.runs and self.hosts.get((made.runs.name, made.runs.range))
        return _hosted(made, host) if host else made

    def one_kernel(self, device: Device, engine: str) -> DeviceCostModel:
        """The cost model of rows that name their kernel; no other kernel of the engine may replace it."""
        made = self.model(device, engine)
        if not isinstance(made, CalibratedModel) or not made.runs or not made.runs.section(KernelVariants):
            return made
        return _without_variants(made)

    def workload(
        self,
        program: Program,
        device: Device,
        engine: str,
        sizes: tuple[int, int, int],
        chunk: int | str | None = None,
        manner: MeasurementMethod = AS_RELEASED,
    ) -> Workload:
        """A batch of requests: `sizes` are their number, prompt tokens and output tokens.

        The CPU time of an engine that schedules between steps is not hidden.
        """
        by = with_scheduler(with_graphs(self.model(device, engine), manner.graphs), manner.scheduler)
        if manner.ahead is False and by.host:
            by = _hosted(by, by.host.serial)
        share = manner.utilization
        return Workload(program, device, *sizes, memory_utilization=share, model=by, chunk=chunk)

    def step(
        self, program: Program, device: Device, engine: str, batch: Any, new: Any, context: Any
    ) -> Report:
        """Estimate one step."""
        at = {"batch": batch, "new": new, "context": context}
        return Report(program, device, **at, model=self.model(device, engine))


IDEAL = CostModelChoice("ideal")


@lru_cache(maxsize=256)
def with_graphs(made: DeviceCostModel, graphs: int) -> DeviceCostModel:
    """The cost model with CUDA graphs of up to `graphs` decodes; 0 means the engine's own limit."""
    if not graphs or not isinstance(made, CalibratedModel) or not made.runs:
        return made
    sections = {**made.runs.sections, "graphs": CudaGraphs((GraphSizes(decodes=graphs),))}
    return replace(made, runs=replace(made.runs, sections=sections))


@lru_cache(maxsize=256)
def _without_variants(made: CalibratedModel) -> CalibratedModel:
    """The cost model with only the main kernels of the engine."""
    assert made.runs
    sections = {name: of for name, of in made.runs.sections.items() if name != "variants"}
    return replace(made, runs=replace(made.runs, sections=sections))


@lru_cache(maxsize=256)
def _hosted(made: DeviceCostModel, host: EngineCpu) -> DeviceCostModel:
    """The cost model with another engine CPU time."""
    assert isinstance(made, CalibratedModel)
    return replace(made, host=host)


@lru_cache(maxsize=256)
def _instead(device: Device, engine: str) -> CalibratedModel:
    """The default engine of the device, in place of an engine without measurements.

    The basis of each op then says so.
    """
    return replace(calibrated(device), engine=engine, host_error=UNKNOWN)


@lru_cache(maxsize=256)
def _unmeasured(device: Device, engine: str, without: str) -> Device:
    """The device without its own kernels, so that kernels are transferred to it; or without the kernels of
    one engine.
    """
    own = device.calibration.engines if device.calibration and without == "engine" else {}
    left = {name: fits for name, fits in own.items() if kernel_engine(name) != kernel_engine(engine)} or {
        NONE: {}
    }
    return replace(device, own_calibration=Calibration(min(left, key=rank), left))


def cost_model_choice(cost: str, without: str | None = None) -> CostModelChoice:
    """The cost model choice of a name; InputError if `without` has no effect."""
    name = choice("cost", cost, ("calibrated", "ideal"))
    if without is None:
        return CostModelChoice(name)
    if name == "ideal":
        raise InputError(f"without {without!r}: the roofline uses no measured kernels; leave one of them out")
    return CostModelChoice(name, choice("without", without, WITHOUT))


def kernel_relation(device: Device, basis: Basis, engine: str = "") -> str:
    """The relation of the kernels of a basis to a device and engine.

    Kernels of a library count as the engine's own if the engine calls this library, and otherwise not.
    """
    if basis.kind != "calibrated":
        return basis.kind
    if basis.device:
        return relation(device, library.load(basis.device))
    called = basis.engine in LIBRARIES and engine not in LIBRARIES
    return ENGINE if basis.engine and not called else basis.kind


def basis_summary(
    device: Device,
    times: Sequence[Any],
    bases: Sequence[Basis],
    errors: Sequence[float | None],
    engine: str = "",
) -> tuple[str, Array, str]:
    """Summarize the bases of ops, weighted by their times: the bases (largest share first), the mean error,
    and the relation.
    """
    shares: dict[str, float] = {}
    relations: dict[str, float] = {}
    for time, basis in zip(times, bases, strict=True):
        shares[str(basis)] = shares.get(str(basis), 0.0) + float(np.sum(time))
        how = kernel_relation(device, basis, engine)
        relations[how] = relations.get(how, 0.0) + float(np.sum(time))
    known = [(time, error) for time, error in zip(times, errors, strict=True) if error is not None]
    whole = sum(time for time, _ in known)
    with np.errstate(invalid="ignore"):
        band = np.asarray(sum(time * error for time, error in known) / whole if known else np.nan)
    words = "; ".join(sorted(shares, key=lambda basis: -shares[basis]))
    return words, band, max(relations, key=lambda how: relations[how])


def step_basis(report: Report) -> BasisSummary:
    """Summarize the bases of a step, at the middle point of a grid."""
    ops, kernels = report.ops, [*report.work] or report.ops
    basis, *_ = basis_summary(report.device, *_sums(ops))
    *_, relation = basis_summary(report.device, *_sums(kernels))
    return BasisSummary(basis, nan if report.error is None else float(np.mean(report.error)), relation)


def _sums(ops: Sequence[Any]) -> tuple[list[Any], list[Basis], list[None]]:
    return [op.repeat * op.time_s for op in ops], [op.basis for op in ops], [None] * len(ops)
