"""The interface of cost models: `OpTime`, the time of an op, and `DeviceCostModel`, which makes it.

An `OpTime` gives seconds at any point, the bound, the roofline below it, its basis and its error.
`Roofline` is the op time that is the largest of some limits. A `DeviceCostModel` makes the op time of a
`Row` (`price`) and caches those of equal rows (`prices`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import ClassVar, Protocol

from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.work.rows import BOUNDS, ROOFLINE, Basis, Limit, Row
from llmir.base.array_namespace import Number
from llmir.hw.device import Device
from llmir.hw.engine import Engine
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, maximum


class OpTime(Protocol):
    """What a cost model makes of an op. Equal prices are equal at every point, and hash alike.

    It may say, as `sizes`, all that it asks a binding for: many points at which those are few are then quick.
    Where it takes sequences of several kinds `apart`, a step takes the sum of what each kind takes.
    """

    apart: ClassVar[bool] = False

    @property
    def basis(self) -> Basis:
        """What the time is made of."""

    @property
    def error(self) -> float | None:
        """The mean relative error that is known of such times; None of a bound."""
        return None

    @property
    def lent(self) -> float:
        """How much of the error is of borrowing: with that at home, the root of the sum of squares."""
        return 0.0

    @property
    def beyond(self) -> float:
        """How much of that again is not in the error of whole runs that hosts were fitted to."""
        return 0.0

    def which(self, at: Binding, hidden: Number = 0.0) -> Number:
        """The place of the price that holds there, where several make up this one; -1 of all together."""
        return 0

    def held(self, which: Number) -> OpTime:
        """The price that holds where `which` says so; itself where that is now one and now another."""
        return self

    def of(self, at: Binding, hidden: Number = 0.0) -> OpTime:
        """The price that holds there."""
        return self.held(self.which(at, hidden))

    @abstractmethod
    def time(self, at: Binding) -> Number:
        """Seconds of one execution alone, with its whole launch."""

    @abstractmethod
    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds in a graph that hides this share of the launch, and their bound by its place in `BOUNDS`.

        Both are arrays on a grid. With nothing hidden the seconds are `time`.
        """

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """Seconds alone, and in a graph of kernels, which hides this share of the launch if that is known."""
        time = self.time(at)
        return time, time

    @abstractmethod
    def least(self, at: Binding) -> Number:
        """Seconds of the roofline, below which no time goes."""


@dataclass(frozen=True)
class Roofline(OpTime):
    """The largest of some limits: a lower bound, from the datasheet alone."""

    limits: tuple[Limit, ...]
    basis: Basis = ROOFLINE

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What the limits are of."""
        return tuple(limit.amount for limit in self.limits)

    def times(self, at: Binding) -> list[Number]:
        """Seconds by each limit."""
        return [limit.time(at) for limit in self.limits]

    def time(self, at: Binding) -> Number:
        """The largest of the limits."""
        return reduce(maximum, self.times(at))

    def least(self, at: Binding) -> Number:
        """The largest of the limits."""
        return reduce(maximum, Roofline.times(self, at))

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """The largest, and what it is a limit of; the first of equals."""
        time, *others = self.times(at)
        bound, *bounds = (BOUNDS.index(limit.bound) for limit in self.limits)
        for other, its in zip(others, bounds, strict=True):
            bound, time = at.xp.where(other > time, its, bound), at.xp.maximum(time, other)
        return time, bound


class DeviceCostModel(ABC):
    """A cost model on one device; models are told apart by identity, and `model` gives each once.

    `engine` is the one that was asked for, of a model that knows engines; `host` what it adds to its kernels,
    where that is known, and `host_error` the mean relative error of whole runs that it was not fitted to.
    `runs` is the engine that the host is of, with its versions. The prices of a `symbolic` one take symbols.
    Those of one that `asks` may depend on where a row stands: its name, its stage.
    """

    device: Device
    name: str
    engine: str | None = None
    host: EngineCpu | None = None
    host_error: float | None = None
    runs: Engine | None = None
    symbolic: ClassVar[bool] = True
    asks: ClassVar[bool] = False

    @abstractmethod
    def price(self, row: Row) -> OpTime:
        """What the model makes of an op."""

    def prices(self, rows: Sequence[Row]) -> tuple[OpTime, ...]:
        """The price of each row, one of those that differ in where they stand."""
        known = _known(self)
        if len(known) > _MAX_OP_TIMES:
            known.clear()
        for row in rows:
            if row.op not in known:
                known[row.op] = row, _op_time(self, row.anywhere)
        return tuple([known[row.op][1] for row in rows])


_MAX_OP_TIMES = 1 << 14  # of a model, that are found again by `Row.op`


@lru_cache(maxsize=256)
def _known(model: DeviceCostModel) -> dict[tuple[int, int], tuple[Row, OpTime]]:
    """Prices of rows that are held, so that what tells them apart stays theirs."""
    return {}


@lru_cache(maxsize=1 << 12)
def _op_time(model: DeviceCostModel, row: Row) -> OpTime:
    """Of programs alike, such as those of a plan, most rows are equal."""
    return model.price(row)
