"""The error of transferred calibrations: rows of one GPU and engine, estimated with kernels of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from llmir.backends.cost.transfer import basis, kernel_engine, relation, transfer_kernel
from llmir.backends.kernels.base import KERNELS
from llmir.backends.silicon.rows import Array
from llmir.base.dataclass import dataclass
from llmir.hw.calibration import DATED, LIBRARIES
from llmir.hw.device import Device
from llmir.hw.transfer import ENGINE, OTHER_SM, OTHER_VENDOR, RELATIONS, SAME_DIE, SAME_SM

from .cases import CalibrationCase

# Share of rows within a band; for the residuals of these kernels, a mean error covers two thirds.
WITHIN = 2 / 3
# Percents for relations without rows, at most those of another instruction set. H200 and GB200, which were
# held out, have errors of 9 to 13%: with 7 to 8% at home, the die adds 5 to 10, of which this is the middle.
# The instruction set alone is assumed to add twice as much. `llmir validate elementwise_recent.csv --by
# device` has rows of both, which no kernel is fitted to. 68% of 19 rows of H200 are within their band, and
# 64% of 11 of RTX 4090; two thirds should be.
SAME = {SAME_DIE: 7.0, SAME_SM: 14.0}


@dataclass(frozen=True, eq=False)
class TransferCase:
    """The rows of a case, estimated with kernels of another `device` or `engine`.

    `own` is the mean error of these kernels on the device where they were measured. `off` is (predicted −
    measured) / measured, for each row.
    """

    case: CalibrationCase
    relation: str
    device: Device
    engine: str
    own: float
    off: Array

    @property
    def group(self) -> str:
        """The group of the last kernel family, because the rows mainly measure it."""
        return KERNELS[self.case.families[-1]].group

    @property
    def mean(self) -> float:
        """Mean absolute value of the relative errors."""
        return float(np.abs(self.off).mean())

    @property
    def excess(self) -> Array:
        """The part of each row's error in excess of the error on the measured device, if errors are
        independent.
        """
        return np.sqrt(np.maximum(self.off**2 - self.own**2, 0.0))


def transfer_cases(cases: Iterable[CalibrationCase], devices: Sequence[Device]) -> Iterator[TransferCase]:
    """Estimate each case with the kernels of every other device and engine that has its families."""
    for case in cases:
        for device in devices:
            if device != case.device and (loan := _loan(case, device, case.engine, "")):
                yield loan
        calibration = case.device.calibration
        engines = {*calibration.engines} - {*LIBRARIES, *DATED} if calibration else set()
        main = sorted(engine for engine in engines if engine == kernel_engine(engine))
        for engine in main if case.engine in main else ():
            if engine != case.engine and (loan := _loan(case, case.device, engine, ENGINE)):
                yield loan


def _loan(case: CalibrationCase, device: Device, engine: str, how: str) -> TransferCase | None:
    """The case with transferred kernels; None if the other device lacks one of them.

    For another vendor, kernels of any engine count.
    """
    how = how or relation(case.device, device)
    abroad = how == OTHER_VENDOR
    fits = [basis(device, family, None if abroad else engine) for family in case.families]
    known = [f for f in fits if f and f.device == device and (abroad or f.engine == engine)]
    known = [f for f in known if f.family in case.families]  # CDNA has separate matrix products
    if len(known) < len(fits):
        return None
    kernels = {fit.family: transfer_kernel(fit, case.device).kernel for fit in known}
    off = case.predicted(kernels) / case.seconds - 1
    return TransferCase(case, how, device, known[-1].engine, max(f.fitted.error for f in known), off)


def relation_bands(found: Sequence[TransferCase]) -> dict[str, dict[str, float]]:
    """The percents of additional error, by relation and kernel group, that the share `WITHIN` of the rows
    does not exceed.

    Cases have equal weight. A more distant relation never has a smaller percent. If nothing was measured,
    another vendor takes the median of its relation, and the nearest relations take `SAME`.
    """
    groups = sorted({loan.group for loan in found})
    measured = {r: {g: _excess(found, r, g) for g in groups} for r in (*RELATIONS[2:], ENGINE)}
    table: dict[str, dict[str, float]] = {r: {} for r in (*RELATIONS, ENGINE)}
    for group in groups:
        floor = 0.0
        for far in RELATIONS[2:]:
            known = [v for v in measured[far].values() if v is not None]
            own = measured[far][group]
            floor = max(floor, float(np.median(known)) if own is None and known else own or 0.0)
            table[far][group] = floor
        for near, percent in SAME.items():
            table[near][group] = min(percent, table[OTHER_SM][group])
        known = [v for v in measured[ENGINE].values() if v is not None]
        own = measured[ENGINE][group]
        table[ENGINE][group] = float(np.median(known)) if own is None else own
    return table


def _excess(found: Sequence[TransferCase], relation: str, group: str) -> float | None:
    some = [loan for loan in found if loan.relation == relation and loan.group == group]
    if not some:
        return None
    sizes = np.concatenate([loan.excess for loan in some])
    weights = np.concatenate([np.full(len(loan.off), 1 / len(loan.off)) for loan in some])
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(100 * sizes[order][np.searchsorted(reached, WITHIN)])


def band_coverage(
    found: Sequence[TransferCase], table: Mapping[str, Mapping[str, float]]
) -> tuple[float, float]:
    """The shares of rows whose error is within the band of these percents, and within twice the band.

    Cases have equal weight.
    """
    shares = []
    for loan in found:
        band = np.hypot(loan.own, table[loan.relation][loan.group] / 100)
        shares.append([np.mean(np.abs(loan.off) <= times * band) for times in (1, 2)])
    one, two = np.mean(shares, axis=0)
    return float(one), float(two)
