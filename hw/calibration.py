"""What a device file says of measured kernels: their parameters by engine and family, with an origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmir.frozen import Record


@dataclass(frozen=True, eq=False)
class Fitted(Record):
    """The parameters of one family of kernels, fitted to so many `rows`.

    `error` is the mean size of the relative error on shapes that were left out of the fit, as a ratio.
    """

    parameters: Mapping[str, float]
    origin: str
    rows: int
    error: float


@dataclass(frozen=True, eq=False)
class Calibration(Record):
    """What was fitted for each engine and family; `engine` is the one to take where none is named."""

    engine: str
    engines: Mapping[str, Mapping[str, Fitted]]
