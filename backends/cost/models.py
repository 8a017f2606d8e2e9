"""Choose the cost model by name for a device and an engine, or use an object of the user.

`model` returns the `DeviceCostModel` that the options name: `calibrated` if the device or a related one was
measured, else `ideal`. `custom_model` wraps a user's `CostModel`, any object with a method `price`:

>>> class Flat:
...     '''5 µs a kernel, and its bytes at 2 TB/s.'''
...     def price(self, row):
...         moved = row.read + row.write
...         return lambda at: 5e-6 + at(moved) / 2e12
>>> import llmir
>>> model = llmir.run(llmir.load("llama3.1-8b"), llmir.pipeline_of())
>>> flat = llmir.Estimation(cost=Flat())
>>> step = llmir.analyze(model, "h100-sxm", batch=8, new=1, context=2048, estimation=flat)
>>> step.cost_model, f"{step.time_s * 1e3:.1f} ms", f"{step.ideal_time_s * 1e3:.1f} ms"
('Flat', '10.2 ms', '5.1 ms')

The function that `price` returns may use all sizes of the row, such as `row.flops`, `row.read`, `row.write`,
`row.work.gemms` and `row.work.payload`. They are polynomials of B, T and C. `at` evaluates them to numbers,
or to arrays on a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.engine_cpu import EngineCpu
from llmir.backends.work.rows import Basis, Row
from llmir.base.arguments import choice, show_value
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError, InputError, LlmirError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.engine import Engine
from llmir.hw.engine_sections import Scheduler
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .calibrated import CalibratedModel
from .op_time import DeviceCostModel, OpTime, Roofline
from .registry import COSTS, cost_model
from .roofline import EfficiencyModel, IdealModel
from .transfer import check_families, engine_cpu, first_engine, kernel_engine, kernel_sources

# Cost models of users


class CostModel(Protocol):
    """The protocol of `analyze(cost=…)` for custom models: an object with `price`, named by its class.

    A class that is registered with `llmir.backends.cost.registry.cost_model` is called with the device.
    """

    def price(self, row: Row) -> Callable[[Binding], Number] | OpTime:
        """Seconds of one execution of an op on one rank, as a function of a binding; or a `Price`."""


NUMBERS = (int, float, np.number, np.ndarray, list, tuple)


@dataclass(frozen=True, eq=False)
class FunctionTime(OpTime):
    """An op time from the user's function; its bound and lower limit are those of the roofline."""

    seconds: Callable[[Binding], Number]
    roofline: Roofline
    model: str
    op: str

    @property
    def basis(self) -> Basis:
        """The user's model."""
        return Basis(self.model)

    def time(self, at: Binding) -> Number:
        """The result of the user's function; InputError if it is not a time."""
        try:
            found = self.seconds(at)
        except LlmirError:
            raise
        except Exception as error:  # an error in the user's function; the cause shows the original error
            raise InputError(
                f"cost model {self.model}: {self.op}: {type(error).__name__}: {error}"
            ) from error
        try:
            # An object that may be endless is not converted to an array.
            some = found if isinstance(found, NUMBERS) else np.nan
            time = np.broadcast_to(np.asarray(some, dtype=np.float64), at.shape)
        except (TypeError, ValueError, OverflowError):
            time = np.array(np.nan)
        if not (np.isfinite(time) & (time >= 0)).all():
            raise InputError(
                f"cost model {self.model}: {self.op} takes {show_value(found)}, expected seconds"
            )
        return cast("Number", time) if at.shape else float(time)

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds, with the bound of the roofline."""
        return self.time(at), self.roofline.due(at)[1]

    def least(self, at: Binding) -> Number:
        """Seconds of the roofline."""
        return self.roofline.time(at)


@dataclass(frozen=True, eq=False)
class CustomModel(DeviceCostModel):
    """A user's cost model on a device; it is evaluated again for each report, because it may change."""

    device: Device
    model: CostModel
    name: str
    symbolic: ClassVar[bool] = False  # the user's function has to accept numbers and arrays
    asks: ClassVar[bool] = True

    def prices(self, rows: Sequence[Row]) -> tuple[OpTime, ...]:
        """The time of each row; a custom model may depend on the row's position."""
        return tuple(map(self.price, rows))

    def price(self, row: Row) -> OpTime:
        """The result of the user's model; InputError if it is not an op time."""
        found: Any = self.model.price(row)
        if isinstance(getattr(found, "basis", None), Basis):
            return cast("OpTime", found)
        if not callable(found):
            got = f"price gives {type(found).__name__} for {row.name}"
            raise InputError(f"cost model {self.name}: {got}, expected a function of a binding, or a Price")
        return FunctionTime(found, IdealModel(self.device).price(row), self.name, row.name)


def custom_model(model: object, device: Device, name: str = "") -> CustomModel:
    """Wrap a custom cost model for a device; InputError if it is not one."""
    name = name or str(getattr(model, "name", "") or type(model).__name__)
    if isinstance(model, type) or not callable(getattr(model, "price", None)):
        raise InputError(f"cost: expected the name of a cost model, or an object with price(row), got {name}")
    return CustomModel(device, cast("CostModel", model), name)


# Settings of engines


@lru_cache(maxsize=256)
def with_scheduler(made: DeviceCostModel, stated: FrozenDict[str, Any]) -> DeviceCostModel:
    """The cost model of an engine whose scheduler has these fields (`Scheduler`)."""
    if not stated or not isinstance(made, CalibratedModel) or not made.runs:
        return made
    known = made.runs.section(Scheduler) or Scheduler()
    sections = {**made.runs.sections, "scheduler": replace(known, **stated)}
    return replace(made, runs=replace(made.runs, sections=sections))


# Faster ops


@dataclass(frozen=True)
class FasterTime(OpTime):
    """A part of the time of an op."""

    whole: OpTime
    share: float

    @property
    def apart(self) -> bool:  # type: ignore[override]  # a property in place of a field
        """Whether sequences of different kinds in one step are evaluated separately."""
        return self.whole.apart

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes that the time depends on."""
        return cast("tuple[Size, ...]", getattr(self.whole, "sizes", ()))

    @property
    def basis(self) -> Basis:
        return self.whole.basis

    def which(self, at: Binding, hidden: Number = 0.0) -> Number:
        return self.whole.which(at, hidden)

    def held(self, which: Number) -> OpTime:
        """The kernel that applies at this point, with its share."""
        return FasterTime(self.whole.held(which), self.share)

    def time(self, at: Binding) -> Number:
        """The share of the seconds of the op."""
        return self.share * self.whole.time(at)

    def in_graph(self, at: Binding, hidden: Number) -> tuple[Number, Number]:
        """The share of the seconds of the op, alone and in a graph."""
        alone, together = self.whole.in_graph(at, hidden)
        return self.share * alone, self.share * together

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """The share of the seconds of the op, and the bound of the whole op."""
        time, bound = self.whole.due(at, hidden)
        return self.share * time, bound

    def least(self, at: Binding) -> Number:
        """The share of the roofline of the op."""
        return self.share * self.whole.least(at)


@dataclass(frozen=True, eq=False)
class FasterOps(DeviceCostModel):
    """A cost model in which all ops of an `opcode` take a share of their time."""

    device: Device
    name: str
    model: DeviceCostModel
    opcode: str
    share: float
    engine: str | None = None
    host: EngineCpu | None = None
    host_error: float | None = None
    runs: Engine | None = None

    def price(self, row: Row) -> OpTime:
        whole = self.model.price(row)
        return FasterTime(whole, self.share) if row.node.op.opcode == self.opcode else whole


def faster_ops(model: DeviceCostModel, opcode: str, share: float) -> FasterOps:
    """A cost model in which all ops of an opcode take a share of their time."""
    of = model.engine, model.host, model.host_error, model.runs
    return FasterOps(model.device, model.name, model, opcode, share, *of)


# Built-in cost models

OURS = ("ideal", "calibrated")  # built once for each device


def model(
    device: Device,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> DeviceCostModel:
    """Build the cost model of the options: calibrated if the device or a similar one was measured, else
    ideal.

    Args:
        device: The device.
        cost: A name of a cost model, or the user's own cost model.
        engine: The engine of the kernels, with an optional version.
        efficiency: Shares of the roofline's rates; they need no calibration.

    Raises:
        InputError: Two options contradict each other.
        HardwareError: The engine has no calibration, or measured kernels are requested and there are none.
    """
    if isinstance(cost, str) and cost not in COSTS:
        cost = str(choice("cost", cost, tuple(COSTS)))
    if efficiency and (cost is not None or engine):
        option = "engine" if cost is None else "cost"
        raise InputError(f"efficiency: replaces the cost model, leave {option} out")
    if engine and not (cost is None or (isinstance(cost, str) and cost == "calibrated")):
        named = cost if isinstance(cost, str) else type(cost).__name__
        raise InputError(f"engine {engine!r}: cost model {named} knows no engines; leave one of them out")
    if isinstance(cost, str) and cost not in OURS:
        return custom_model(COSTS[cost](device), device, cost)
    if cost is not None and not isinstance(cost, str):
        return custom_model(cost, device)
    if efficiency:
        return _efficiency(device, FrozenDict(efficiency))
    measured = cost != "ideal" and first_engine(device) is not None
    if engine is not None:
        kernel_engine_names(device, engine)  # or a HardwareError, if the model cannot be built
    if cost == "ideal" or not (measured or cost or engine):
        return _ideal(device)
    if not measured:
        asked = f"cost {cost!r}" if cost else f"engine {engine!r}"
        raise HardwareError(f"{asked}: {roofline_reason(device)}; leave it out for the roofline")
    return _calibrated(device, engine)


def kernel_engine_names(device: Device, engine: str) -> tuple[str, Engine | None]:
    """The engine whose kernels are preferred, and the engine that runs them: for `vllm@0.12`, vllm and vllm
    0.12.

    HardwareError if an engine has no calibration, is not bundled and is not a file.
    """
    name, at, version = engine.partition("@")
    own = device.calibration.engines if device.calibration else ()
    if name in own or name in kernel_sources(device):  # an engine, or the name of one of its kernels
        if bundled := next((n for n in (name, kernel_engine(name)) if n in library.engines()), None):
            return name, library.engine(bundled + at + version)
        if at:
            raise HardwareError(f"engine {engine!r}: no version of {name} is known; leave @{version} out")
        return name, None
    profile = library.engine(engine, kernel_sources(device))
    return profile.kernels or engine, profile


def roofline_reason(device: Device) -> str:
    """The reason why no kernel law applies to a device: its file lacks a key, or there is no GPU to transfer
    kernels from.
    """
    if not (device.multiprocessors or device.cores):
        return f"kernel laws need `multiprocessors`, which {device.name}'s file does not state"
    return f"{device.name} was not measured, nor was a GPU like it"


_ideal = lru_cache(maxsize=256)(IdealModel)
_efficiency = lru_cache(maxsize=256)(EfficiencyModel)


@cost_model("calibrated")
def calibrated(device: Device) -> CalibratedModel:
    """With the default engine of the device."""
    return _calibrated(device, None)


def _calibrated(device: Device, engine: str | None) -> CalibratedModel:
    return _run(device, engine, *kernel_engine_names(device, engine)) if engine else _usual(device)


@lru_cache(maxsize=256)
def _usual(device: Device) -> CalibratedModel:
    """The calibrated model with the default engine of the device's calibration."""
    return _run(device, None, *kernel_engine_names(device, first_engine(device) or ""))


@lru_cache(maxsize=256)
def _run(device: Device, engine: str | None, name: str, profile: Engine | None) -> CalibratedModel:
    """The calibrated model. The cache key is the content of the engine file, because a file may change under
    the same name.
    """
    check_families(device)
    own = engine_cpu(device, engine)
    if own or profile is None:
        return CalibratedModel(device, engine and name, *(own or (None, None)))
    of = KERNELS[profile.family].of(profile.host.parameters, f"engine {profile.name}")
    assert isinstance(of, EngineCpu)
    return CalibratedModel(device, engine and name, of, profile.error, profile)
