"""The `calibrated` model: what real kernels take, by the physics of each and a device's fitted parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llmir.dim import Binding, Number, maximum
from llmir.hw import Device

from .calibration import Basis, basis, relatives
from .calls import Call, call
from .ideal import Ideal
from .limit import Limit
from .price import Price, Roofline
from .rows import Row

# A transferred efficiency is off by what one of these GPUs is from another, beside its own error.
TRANSFER = 0.12


@dataclass(frozen=True)
class Measured:
    """The time of a calibrated kernel, and never less than the roofline's.

    `basis` says whose measurements it rests on; `error` is the mean relative error on unseen shapes.
    """

    device: Device
    call: Call
    fit: Basis
    roofline: Roofline

    @property
    def basis(self) -> str:
        """calibrated, or transferred from another device."""
        return "calibrated" if self.fit.device is self.device else f"transferred from {self.fit.device.name}"

    @property
    def error(self) -> float:
        """The mean relative error that was found on unseen shapes, wider for a relative's parameters."""
        return self.fit.fitted.error + (0.0 if self.fit.device is self.device else TRANSFER)

    def time(self, at: Binding) -> Number:
        """Seconds; of sequences of several kinds in one step, of the call that they make together."""
        time = self.fit.kernel.seconds(self.device, self.call.at(at))
        time = time if np.ndim(time) else float(time)
        return maximum(time, self.roofline.time(at))

    def least(self, at: Binding) -> Number:
        """The roofline's."""
        return self.roofline.time(at)

    def due(self, at: Binding) -> tuple[Number, Any]:
        """The same; due to the launch where half of it or more is there for a call with nothing to do."""
        time, (_, bound) = self.time(at), self.roofline.due(at)
        launch = getattr(self.fit.kernel, "launch_us", 0.0) * 1e-6
        if not at.shape:
            return time, "launch" if 2 * launch >= time else bound
        time = np.broadcast_to(time, at.shape)
        return time, np.where(2 * launch >= time, "launch", bound)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The `calibrated` cost model on one device, with the kernels of an engine (None: the device's first)."""

    device: Device
    engine: str | None = None

    name = "calibrated"

    @property
    def kernels(self) -> str:
        """The engine whose kernels come first."""
        known = (d.calibration for d in (self.device, *relatives(self.device)))
        return self.engine or next((c.engine for c in known if c), "no")

    def limits(self, row: Row) -> tuple[Limit, ...]:
        """Those of the roofline, below which no time goes."""
        return Ideal(self.device).limits(row)

    def price(self, row: Row) -> Price:
        """A measured kernel's price, or the roofline's where none is known."""
        roofline = Ideal(self.device).price(row)
        if made := call(row):
            for family in made.families:
                if found := basis(self.device, family, self.engine):
                    return Measured(self.device, made, found, roofline)
        return roofline
