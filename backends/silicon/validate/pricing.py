"""Which cost model prices a row, and how sure of its time the model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan
from typing import Any, NamedTuple

import numpy as np

from llmir import hw
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.cost import Basis, Calibrated, Model, model
from llmir.backends.cost.calibration import engines, first, owner
from llmir.backends.cost.models import calibrated
from llmir.backends.silicon.rows import Array
from llmir.convert import choice
from llmir.graph import Program
from llmir.hw import Device


class Trust(NamedTuple):
    """The basis of a time, of most of it first, and its mean relative error where that is known."""

    basis: str
    band: float


class Pricing(NamedTuple):
    """A cost model by name, of any device and engine."""

    name: str

    def model(self, device: Device, engine: str) -> Model:
        """That of the engine or of one of its kernels; of the device's first for an unknown one.

        The roofline where nothing like the device was measured.
        """
        if self.name == "ideal" or first(device) is None:
            return model(device, "ideal")
        known, name = (*engines(device), *hw.engines()), engine.partition("@")[0]
        found = next((e for e in (name, owner(name)) if e in known), None)
        if not found:
            return _instead(device, name)
        versions = found in hw.engines() or owner(found) in hw.engines()
        return model(device, self.name, engine.replace(name, found, 1) if versions else found)

    def workload(
        self, program: Program, device: Device, engine: str, batch: int, prompt: int, generate: int
    ) -> Workload:
        """A batch of requests."""
        return Workload(program, device, batch, prompt, generate, model=self.model(device, engine))

    def step(
        self, program: Program, device: Device, engine: str, batch: Any, new: Any, context: Any
    ) -> Report:
        """One step."""
        at = {"batch": batch, "new": new, "context": context}
        return Report(program, device, **at, model=self.model(device, engine))


IDEAL = Pricing("ideal")


@lru_cache(maxsize=256)
def _instead(device: Device, engine: str) -> Calibrated:
    """The device's first engine in place of one that nobody measured, as each basis then says."""
    return replace(calibrated(device), engine=engine)


def priced_by(cost: str) -> Pricing:
    """The pricing of that name."""
    return Pricing(choice("cost", cost, ("calibrated", "ideal")))


def trust(times: Sequence[Any], bases: Sequence[Basis], errors: Sequence[float | None]) -> tuple[str, Array]:
    """The bases of ops, those of most time first, and the mean of their errors by their times."""
    shares: dict[str, float] = {}
    for time, basis in zip(times, bases, strict=True):
        shares[str(basis)] = shares.get(str(basis), 0.0) + float(np.sum(time))
    known = [(time, error) for time, error in zip(times, errors, strict=True) if error is not None]
    whole = sum(time for time, _ in known)
    with np.errstate(invalid="ignore"):
        band = np.asarray(sum(time * error for time, error in known) / whole if known else np.nan)
    return "; ".join(sorted(shares, key=lambda basis: -shares[basis])), band


def of_step(report: Report) -> Trust:
    """The same of a step at one point, or at the middle of those of a grid."""
    if report.error is None:
        return Trust("; ".join(dict.fromkeys(str(op.basis) for op in report.ops)), nan)
    ops = report.ops
    basis, _ = trust([op.repeat * op.time_s for op in ops], [op.basis for op in ops], [None] * len(ops))
    return Trust(basis, float(np.mean(report.error)))
