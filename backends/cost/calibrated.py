"""The `calibrated` model: what real kernels take, by the physics of each and a device's fitted parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmir.dim import Binding, Dim, Mixed, Number, maximum
from llmir.hw import Device

from .calibration import Basis, engines, nearest, owner, relatives
from .ideal import Ideal
from .kernels import Call, Host, calls
from .limit import Limit
from .nodes import split
from .price import Price, Roofline
from .rows import Row

# What one of A100, H100 and B200 is off when another predicts its products by datasheet: the middle of
# the table "From one GPU to another" in docs/results.md (`python benchmarks/transfer.py DIR`).
TRANSFER = 0.12
# What whole runs of vLLM on AMD's MI250 are off when NVIDIA's A100 predicts its kernels (docs/results.md,
# "Predictions against measurements"): software differs more than silicon.
ABROAD = 0.49


@dataclass(frozen=True)
class Measured:
    """The time of a calibrated kernel, and never less than the roofline's.

    `basis` says whose measurements it rests on; `error` is the mean relative error on unseen shapes.
    """

    device: Device
    call: Call
    fit: Basis
    roofline: Roofline
    hidden: float = 0.0
    engine: str = ""

    @property
    def basis(self) -> str:
        """calibrated, or transferred from another device; for another engine, where that is borrowed from."""
        if self.fit.device != self.device:
            return f"transferred from {self.fit.device.name}"
        own = self.fit.engine in (self.engine, owner(self.engine))
        return "calibrated" if own else f"calibrated for {self.fit.engine}"

    @property
    def error(self) -> float:
        """The mean relative error that was found on unseen shapes, wider for a relative's parameters."""
        if self.fit.device == self.device:
            return self.fit.fitted.error
        return self.fit.fitted.error + (TRANSFER if self.fit.device.vendor == self.device.vendor else ABROAD)

    def of(self, at: Binding) -> Price:
        """Itself."""
        return self

    @property
    def launch_s(self) -> float:
        """Seconds of a call that has nothing to do."""
        return float(getattr(self.fit.kernel, "launch_us", 0.0)) * 1e-6

    def time(self, at: Binding) -> Number:
        """Seconds; of sequences of several kinds in one step, of the call that they make together."""
        least = self.roofline.time(at)
        time = self.call.seconds(self.fit.kernel, self.device, at, least)
        return maximum(time - self.hidden * self.launch_s, least) if self.hidden else time

    def least(self, at: Binding) -> Number:
        """The roofline's."""
        return self.roofline.time(at)

    def due(self, at: Binding) -> tuple[Number, Any]:
        """The same; due to the launch where half of it or more is there for a call with nothing to do."""
        time, (_, bound) = self.time(at), self.roofline.due(at)
        launch = 2 * self.launch_s * (1 - self.hidden)
        if not at.shape:
            return time, "launch" if 0 < launch >= time else bound
        time = np.broadcast_to(time, at.shape)
        return time, np.where((time <= launch) & (launch > 0), "launch", bound)


@dataclass(frozen=True)
class Phases:
    """The price of attention: one kernel for one new token of each sequence, another for more.

    `new` are the tokens. Sequences of several kinds in one step are taken one kind after another.
    """

    new: Dim | int
    prefill: Price
    decode: Price

    @property
    def basis(self) -> str:
        """That of decode, if the two differ."""
        return self.decode.basis

    @property
    def error(self) -> float | None:
        """The larger of the two."""
        known = [e for e in (self.prefill.error, self.decode.error) if e is not None]
        return max(known, default=None)

    def of(self, at: Binding) -> Price:
        """The one that holds; both where it is now one and now the other."""
        if isinstance(at, Mixed):
            return self
        one = np.asarray(at(self.new)) == 1
        return self.decode if one.all() else self if one.any() else self.prefill

    def _each(self, at: Binding, value: Callable[[Price, Binding], Number]) -> Number:
        if isinstance(at, Mixed):
            values = [self._each(part, value) for part in at.parts]
            return sum(values[1:], start=values[0])
        if (price := self.of(at)) is not self:
            return value(price, at)
        return np.where(at(self.new) == 1, value(self.decode, at), value(self.prefill, at))

    def time(self, at: Binding) -> Number:
        """Seconds, of all kinds of sequences together."""
        return self._each(at, lambda price, point: price.time(point))

    def least(self, at: Binding) -> Number:
        """The roofline's."""
        return self.decode.least(at)

    def due(self, at: Binding) -> tuple[Number, Any]:
        """The same, and what the kernel that holds is due to."""
        if isinstance(at, Mixed):
            return self.time(at), self.prefill.due(at)[1]
        if (price := self.of(at)) is not self:
            return price.due(at)
        one = np.broadcast_to(np.asarray(at(self.new)) == 1, at.shape)
        bounds = np.where(one, self.decode.due(at)[1], self.prefill.due(at)[1])
        return np.broadcast_to(self.time(at), at.shape), bounds


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The `calibrated` cost model on one device, with the kernels of an engine (None: the device's first)."""

    device: Device
    engine: str | None = None
    host: Host | None = None
    host_error: float | None = None

    name = "calibrated"

    @property
    def kernels(self) -> str:
        """The engine whose kernels come first: the device's own where the one asked for has none."""
        if self.engine in engines(self.device):
            return str(self.engine)
        known = (d.calibration for d in (self.device, *relatives(self.device)))
        return next((c.engine for c in known if c), "no")

    def limits(self, row: Row) -> tuple[Limit, ...]:
        """Those of the roofline, below which no time goes."""
        return Ideal(self.device).limits(row)

    def price(self, row: Row) -> Price:
        """A measured kernel's price, or the roofline's where none is known."""
        roofline = Ideal(self.device).price(row)
        if split(self.device, row.work.group)[1] > 1:
            return roofline  # between nodes nothing is calibrated
        found = [self._measured(call, roofline) for call in calls(row)]
        if len(found) > 1:
            decode, prefill = found
            return Phases(row.operands[0].shape[1], prefill, decode)
        return found[0] if found else roofline

    def _measured(self, made: Call, roofline: Roofline) -> Price:
        found = nearest(self.device, made.families, self.engine)
        hidden = self.host.hidden if self.host else 0.0
        return Measured(self.device, made, found, roofline, hidden, self.kernels) if found else roofline
