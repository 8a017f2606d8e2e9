"""The roofline with rates that the user says are reached, instead of the datasheet's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmir.convert import number
from llmir.dim import Binding, Number
from llmir.errors import InputError
from llmir.frozen import Figures
from llmir.hw import Device
from llmir.names import suggest

from .basis import EFFICIENCY, Basis
from .ideal import limits
from .limit import BOUNDS
from .price import Model, Roofline
from .rows import Row

SHARES = tuple(bound for bound in BOUNDS if bound != "overhead")
LARGEST_LAUNCH = 1.0  # seconds, beyond which a launch is a mistake


@dataclass(frozen=True)
class Derated(Roofline):
    """The largest of the limits, each at a share of its rate, after `launch_s` for every op."""

    basis: Basis = EFFICIENCY
    shares: tuple[float, ...] = ()
    launch_s: float = 0.0

    def times(self, at: Binding) -> list[Number]:
        """Seconds by each limit, at its share."""
        times = super().times(at)
        return [time / share for time, share in zip(times, self.shares, strict=True)]

    def time(self, at: Binding) -> Number:
        """The largest of the limits, after the launch."""
        return super().time(at) + self.launch_s

    def due(self, at: Binding) -> tuple[Number, Any]:
        """Seconds, and their bound: overhead where the launch is half of them or more."""
        busy, bound = super().due(at)
        time = busy + self.launch_s
        bound = np.where(2 * self.launch_s >= time, "overhead", bound)
        return time, bound if at.shape else str(bound)


@dataclass(frozen=True, eq=False)
class Efficiency(Figures, Model):
    """The `efficiency` cost model: shares of compute, memory and network rates, and seconds a launch."""

    device: Device
    shares: Mapping[str, float]

    name = "efficiency"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in self.shares.items():
            if key not in (*SHARES, "launch"):
                near = (
                    suggest(key, (*SHARES, "launch"))
                    or f"; expected {', '.join(SHARES)}, or launch in seconds"
                )
                raise InputError(f"efficiency: there is no {key!r}{near}")
            most = LARGEST_LAUNCH if key == "launch" else 1
            number(f"efficiency: {key}", value, 0, most, above=key != "launch")

    def price(self, row: Row) -> Derated:
        """The limits with the shares that their rates reach."""
        bounds = limits(self.device, row)
        shares = tuple(float(self.shares.get(x.bound, 1)) for x in bounds)
        return Derated(bounds, EFFICIENCY, shares, float(self.shares.get("launch", 0)))
