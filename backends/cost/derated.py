"""The roofline with rates that the user says are reached, instead of the datasheet's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmir.convert import number
from llmir.dim import Binding, Number, maximum
from llmir.errors import InputError
from llmir.frozen import Figures
from llmir.hw import Device
from llmir.names import suggest

from .basis import EFFICIENCY, Basis
from .ideal import Ideal
from .limit import BOUNDS, Limit
from .price import Roofline
from .rows import Row

SHARES = tuple(bound for bound in BOUNDS if bound != "overhead")
LARGEST_LAUNCH = 1.0  # seconds, beyond which a launch is a mistake


@dataclass(frozen=True)
class Derated(Roofline):
    """The largest of the limits, each at a share of its rate, after `launch_s` for every op."""

    basis: Basis = EFFICIENCY
    shares: tuple[float, ...] = ()
    launch_s: float = 0.0

    def _times(self, at: Binding) -> list[Number]:
        return [x.time(at) / share for x, share in zip(self.limits, self.shares, strict=True)]

    def time(self, at: Binding) -> Number:
        """The largest of the limits, after the launch."""
        first, *others = self._times(at)
        for time in others:
            first = maximum(first, time)
        return first + self.launch_s

    def due(self, at: Binding) -> tuple[Number, Any]:
        """Seconds, and their bound: overhead where the launch is half of them or more."""
        time, times = self.time(at), self._times(at)
        if not at.shape:
            bound = self.limits[times.index(max(times))].bound
            return time, "overhead" if 2 * self.launch_s >= time else bound
        largest = np.argmax([np.broadcast_to(t, at.shape) for t in times], axis=0)
        bounds = np.array([x.bound for x in self.limits])[largest]
        return np.broadcast_to(time, at.shape), np.where(2 * self.launch_s >= time, "overhead", bounds)


@dataclass(frozen=True, eq=False)
class Efficiency(Figures):
    """The `efficiency` cost model: shares of compute, memory and network rates, and seconds a launch."""

    device: Device
    shares: Mapping[str, float]

    name = "efficiency"
    engine = None
    host = None
    host_error = None

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

    def limits(self, row: Row) -> tuple[Limit, ...]:
        """Those of the roofline, before any share."""
        return Ideal(self.device).limits(row)

    def price(self, row: Row) -> Derated:
        """The limits with the shares that their rates reach."""
        limits = self.limits(row)
        shares = tuple(float(self.shares.get(x.bound, 1)) for x in limits)
        return Derated(limits, EFFICIENCY, shares, float(self.shares.get("launch", 0)))
