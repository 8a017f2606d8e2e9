"""Measured tables in tests: their cases, their points, and kernels fitted to times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.kernels.base import Kernel, Shape
from llmir.backends.silicon.calibrate.cases import CalibrationCase, calibration_cases
from llmir.backends.silicon.calibrate.fit import fit_kernels
from llmir.backends.silicon.rows import DeviceLookup
from llmir.backends.silicon.tables.table import KernelTable, TablePoints, load
from llmir.hw.device import Device


def fitted(kind: type[Kernel], device: Device, shape: Shape, times: Any, **how: int) -> Any:
    """One kernel alone, fitted to its own times."""
    return fit_kernels({"one": kind}, lambda k: np.asarray(k["one"].seconds(device, shape)), times, **how)[
        "one"
    ]


def cases_of(path: Path, family: str = "") -> tuple[list[CalibrationCase], list[str]]:
    """The cases of a table, of one family or all, and what cannot be used."""
    format, rows = load(path)
    assert isinstance(format, KernelTable)
    problems: list[str] = []
    found = calibration_cases(path.name, format, rows, DeviceLookup(path.parent), tell=problems.append)
    return [case for case in found if family in ("", *case.families)], [*rows.problems, *problems]


def points_of(path: Path) -> list[TablePoints]:
    """The points of a table of one device, all of whose rows can be priced."""
    format, rows = load(path)
    assert isinstance(format, KernelTable)
    found = list(format.points(rows, DeviceLookup(path.parent)(rows["gpu"][0])))
    assert all(isinstance(points, TablePoints) for points in found), found
    return [points for points in found if isinstance(points, TablePoints)]
