"""A user's own cost model: anything that prices rows, in place of ours.

>>> class Flat:
...     '''5 µs a kernel, and its bytes at 2 TB/s.'''
...     def price(self, row):
...         moved = row.read + row.write
...         return lambda at: 5e-6 + at(moved) / 2e12
>>> import llmir
>>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.DEFAULT_PIPELINE)
>>> step = llmir.analyze(model, "h100-sxm", batch=8, new=1, context=2048, cost=Flat())
>>> step.cost_model, f"{step.time_s * 1e3:.1f} ms", f"{step.ideal_time_s * 1e3:.1f} ms"
('Flat', '10.2 ms', '5.1 ms')

What it gives for a row may read any of its sizes: `row.flops`, `row.read`, `row.write`, `row.work.gemms`,
`row.work.payload` … are polynomials of B, T and C, and `at` makes numbers of them, or arrays on a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from llmir.backends.work.basis import Basis
from llmir.backends.work.rows import Row
from llmir.base.arguments import shown
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, LlmirError
from llmir.hw.device import Device
from llmir.ir.sizes.binding import Binding

from .ideal import Ideal
from .op_time import Model, Price, Roofline


class CostModel(Protocol):
    """What `analyze(cost=…)` takes beside names: an object with `price`; its class is its name.

    Registered by a name, with `llmir.backends.cost.registry.cost_model`, it is called with the device.
    """

    def price(self, row: Row) -> Callable[[Binding], Number] | Price:
        """Seconds of one execution of an op on one rank, as a function of a binding; or a `Price`."""


NUMBERS = (int, float, np.number, np.ndarray, list, tuple)


@dataclass(frozen=True, eq=False)
class Seconds(Price):
    """A price that is a function; bounds and the least are the roofline's."""

    seconds: Callable[[Binding], Number]
    roofline: Roofline
    model: str
    op: str

    @property
    def basis(self) -> Basis:
        """The user's model."""
        return Basis(self.model)

    def time(self, at: Binding) -> Number:
        """What the function says; InputError for what is no time."""
        try:
            found = self.seconds(at)
        except LlmirError:
            raise
        except Exception as error:  # of the user's function, which the cause shows
            raise InputError(
                f"cost model {self.model}: {self.op}: {type(error).__name__}: {error}"
            ) from error
        try:
            some = found if isinstance(found, NUMBERS) else np.nan  # no array of what may have no end
            time = np.broadcast_to(np.asarray(some, dtype=np.float64), at.shape)
        except (TypeError, ValueError, OverflowError):
            time = np.array(np.nan)
        if not (np.isfinite(time) & (time >= 0)).all():
            raise InputError(f"cost model {self.model}: {self.op} takes {shown(found)}, expected seconds")
        return cast("Number", time) if at.shape else float(time)

    def due(self, at: Binding) -> tuple[Number, Number]:
        """Seconds, and what the roofline is due to."""
        return self.time(at), self.roofline.due(at)[1]

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.roofline.time(at)


@dataclass(frozen=True, eq=False)
class Own(Model):
    """A user's cost model on a device, made anew for each report: nothing is kept of one that may change."""

    device: Device
    model: CostModel
    name: str
    symbolic: ClassVar[bool] = False  # a user's function takes numbers and arrays
    asks: ClassVar[bool] = True

    def prices(self, rows: Sequence[Row]) -> tuple[Price, ...]:
        """The price of each row, of which a user's model may ask where it stands."""
        return tuple(map(self.price, rows))

    def price(self, row: Row) -> Price:
        """What the user's model says; InputError for what is no price."""
        found: Any = self.model.price(row)
        if isinstance(getattr(found, "basis", None), Basis):
            return cast("Price", found)
        if not callable(found):
            got = f"price gives {type(found).__name__} for {row.name}"
            raise InputError(f"cost model {self.name}: {got}, expected a function of a binding, or a Price")
        return Seconds(found, Ideal(self.device).price(row), self.name, row.name)


def own(model: object, device: Device, name: str = "") -> Own:
    """What prices a device by a user's model; InputError for what is none."""
    name = name or str(getattr(model, "name", "") or type(model).__name__)
    if isinstance(model, type) or not callable(getattr(model, "price", None)):
        raise InputError(f"cost: expected the name of a cost model, or an object with price(row), got {name}")
    return Own(device, cast("CostModel", model), name)
