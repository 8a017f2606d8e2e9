"""The interface of cost models: `OpTime`, the time of an op, and `DeviceCostModel`, which builds it.

An `OpTime` returns the seconds at any point, the bound, the roofline, the basis and the error. `Roofline` is
an op time that is the maximum of several limits. A `DeviceCostModel` builds the op time of a `Row` (`price`),
and caches the op times of equal rows (`prices`).
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
    """The time of an op in a cost model. Op times that compare equal give equal results at every point, and
    have equal hashes.

    `sizes` may list all sizes on which the time depends. This makes many points with few distinct sizes fast.
    With `apart`, sequences of different kinds are evaluated separately, and the times are added.
    """

    apart: ClassVar[bool] = False

    @property
    def basis(self) -> Basis:
        """The basis of the time."""

    @property
    def error(self) -> float | None:
        """The known mean relative error of these times; None for a bound."""
        return None

    @property
    def lent(self) -> float:
        """The part of the error that is due to transfer; together with the calibration's part, it gives the
        error as the root of the sum of squares.
        """
        return 0.0

    @property
    def beyond(self) -> float:
        """The part of the transfer error that the error of whole runs does not cover."""
        return 0.0

    def which(self, at: Binding, hidden: Number = 0.0) -> Number:
        """The index of the op time that applies, if there are several; -1 means all."""
        return 0

    def held(self, which: Number) -> OpTime:
        """The op time with this index; the object itself if the index differs between points."""
        return self

    def of(self, at: Binding, hidden: Number = 0.0) -> OpTime:
        """The op time that applies at a point."""
        return self.held(self.which(at, hidden))

    @abstractmethod
    def time(self, at: Binding) -> Number:
        """Seconds of one call alone, with its whole launch."""

    @abstractmethod
    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds in a graph that hides this share of the launch, and the index of their bound in `BOUNDS`.

        Both are arrays on a grid. If no launch is hidden, the seconds equal `time`.
        """

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """Seconds alone, and seconds in a graph of kernels that hides this share of the launch."""
        time = self.time(at)
        return time, time

    @abstractmethod
    def least(self, at: Binding) -> Number:
        """Seconds of the roofline, a lower bound."""


@dataclass(frozen=True)
class Roofline(OpTime):
    """The largest of some limits: a lower bound, from the datasheet alone."""

    limits: tuple[Limit, ...]
    basis: Basis = ROOFLINE

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The amounts of work that the limits apply to."""
        return tuple(limit.amount for limit in self.limits)

    def times(self, at: Binding) -> list[Number]:
        """Seconds that each limit gives."""
        return [limit.time(at) for limit in self.limits]

    def time(self, at: Binding) -> Number:
        """The largest of the limits."""
        return reduce(maximum, self.times(at))

    def least(self, at: Binding) -> Number:
        """The largest of the limits."""
        return reduce(maximum, Roofline.times(self, at))

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """The largest limit, with its bound; the first of equal ones."""
        time, *others = self.times(at)
        bound, *bounds = (BOUNDS.index(limit.bound) for limit in self.limits)
        for other, its in zip(others, bounds, strict=True):
            bound, time = at.xp.where(other > time, its, bound), at.xp.maximum(time, other)
        return time, bound


class DeviceCostModel(ABC):
    """A cost model on one device. Models compare by identity; `model` returns the same object for equal
    options.

    `engine` is the requested engine; `host` is its model of CPU time, if known, and `host_error` is the mean
    relative error on held-out whole runs. `runs` is the engine, with its version range, of the model of CPU
    time. The op times of a `symbolic` model accept symbols. If a model has `asks`, its op times may depend on
    the name and stage of a row.
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
        """Estimate the time of an op."""

    def prices(self, rows: Sequence[Row]) -> tuple[OpTime, ...]:
        """Estimate the time of each row; rows that differ only in name and stage share an op time."""
        known = _known(self)
        if len(known) > _MAX_OP_TIMES:
            known.clear()
        for row in rows:
            if row.op not in known:
                known[row.op] = row, _op_time(self, row.anywhere)
        return tuple([known[row.op][1] for row in rows])


_MAX_OP_TIMES = 1 << 14  # number of op times that a model caches, with `Row.op` as the key


@lru_cache(maxsize=256)
def _known(model: DeviceCostModel) -> dict[tuple[int, int], tuple[Row, OpTime]]:
    """The op times of rows; the references to rows keep their ids valid as keys."""
    return {}


@lru_cache(maxsize=1 << 12)
def _op_time(model: DeviceCostModel, row: Row) -> OpTime:
    """The programs of a plan share most rows."""
    return model.price(row)
