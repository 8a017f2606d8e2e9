"""The price of an op: its time at any point, what bounds it, and how far off that may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from llmir.dim import Binding, Number, Size, maximum

from .basis import ROOFLINE, Basis
from .limit import Limit


class Price(Protocol):
    """What a cost model makes of an op. Equal prices are equal at every point, and hash alike.

    It may say, as `sizes`, all that it asks a binding for: many points at which those are few are then quick.
    """

    @property
    def basis(self) -> Basis:
        """What the time is made of."""

    @property
    def error(self) -> float | None:
        """The mean relative error that is known of such times; None of a bound."""

    def of(self, at: Binding) -> Price:
        """The price that holds there, where several make up this one; else itself."""

    def time(self, at: Binding) -> Number:
        """Seconds of one execution."""

    def due(self, at: Binding) -> tuple[Number, Any]:
        """Seconds, and what they are due to, one of `BOUNDS`; arrays on a grid."""

    def in_graph(self, at: Binding, hidden: float) -> tuple[Number, Number]:
        """Seconds alone, and in a graph of kernels, which hides this share of the launch."""

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline, below which no time goes."""


@dataclass(frozen=True)
class Roofline:
    """The largest of some limits: a lower bound, from the datasheet alone."""

    limits: tuple[Limit, ...]
    basis: Basis = ROOFLINE

    error = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What the limits are of."""
        return tuple(limit.amount for limit in self.limits)

    def of(self, at: Binding) -> Price:
        """This price, the only one there is."""
        return self

    def time(self, at: Binding) -> Number:
        """The largest of the limits."""
        time = self.limits[0].time(at)
        for limit in self.limits[1:]:
            time = maximum(time, limit.time(at))
        return time

    def in_graph(self, at: Binding, hidden: float) -> tuple[Number, Number]:
        """The same twice: no launch is told apart."""
        time = self.time(at)
        return time, time

    def least(self, at: Binding) -> Number:
        """The largest of the limits."""
        return Roofline.time(self, at)

    def due(self, at: Binding) -> tuple[Number, Any]:
        """The largest, and what it is a limit of."""
        times = [limit.time(at) for limit in self.limits]
        if not at.shape:
            time = max(times)
            return time, self.limits[times.index(time)].bound
        times = [np.broadcast_to(time, at.shape) for time in times]
        slowest = np.argmax(times, axis=0)
        return np.max(times, axis=0), np.array([limit.bound for limit in self.limits])[slowest]
