"""Where a cost model enters: what it says of a step, a request, a kernel. One place for another model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from llmir import hw
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.cost import Ideal, Model, model
from llmir.backends.cost.calibration import basis
from llmir.backends.cost.kernels import MoeShape
from llmir.backends.silicon.calibrate import Family, families
from llmir.dim import Binding
from llmir.errors import InputError
from llmir.graph import Program
from llmir.hw import Device

from .kernels import Call

Array = np.ndarray[Any, np.dtype[Any]]


class Pricing(ABC):
    """A cost model as validation needs it; `engine` is whose kernels, where a calibration knows."""

    name: ClassVar[str]

    @abstractmethod
    def model(self, device: Device, engine: str) -> Model:
        """The cost model for an engine's runs on a device."""

    @abstractmethod
    def kernel(self, call: Call, device: Device, engine: str, name: str) -> Array:
        """Seconds of each row of a table of kernels; `name` is the engine with its kernel's."""

    def workload(
        self, program: Program, device: Device, engine: str, batch: int, prompt: int, generate: int
    ) -> Workload:
        """A batch of requests."""
        return Workload(program, device, batch, prompt, generate, model=self.model(device, engine))

    def step(
        self, program: Program, device: Device, engine: str, batch: Any, new: Any, context: Any
    ) -> Report:
        """One step."""
        at = {"batch": batch, "new": new, "context": context}
        return Report(program, device, **at, model=self.model(device, engine))


class IdealPricing(Pricing):
    """The roofline, which knows no engines."""

    name = "ideal"

    def model(self, device: Device, engine: str) -> Model:
        """The same for every engine."""
        return model(device, "ideal")

    def kernel(self, call: Call, device: Device, engine: str, name: str) -> Array:
        """The lower bound itself."""
        return bound(call, device).seconds


IDEAL = IdealPricing()


class CalibratedPricing(Pricing):
    """Measured kernels, of the engine that a row names where the device's calibration has it."""

    name = "calibrated"

    def model(self, device: Device, engine: str) -> Model:
        """The device's first engine for an unknown one."""
        own = device.calibration.engines if device.calibration else {}
        return model(device, "calibrated", engine if engine in own or engine in hw.engines() else None)

    def kernel(self, call: Call, device: Device, engine: str, name: str) -> Array:
        """Rows that a family of kernels is fitted to by that kernel, others by the ops of their program."""
        at, priced, family = Binding(**call.symbols), self.model(device, engine), _family(call)
        if family and (found := basis(device, family.name, name)):
            return np.asarray(found.kernel.seconds(device, family.shape(call.rows)))
        times = [np.broadcast_to(priced.price(row).time(at), at.shape) for row in call.ops]
        return np.asarray(np.maximum(np.sum(times, axis=0), bound(call, device).seconds))


class Bound(NamedTuple):
    """A kernel's lower bound and the limits that make it: seconds, and the bytes that must move."""

    seconds: Array
    memory: Array
    compute: Array
    network: Array
    moved: Array


def bound(call: Call, device: Device) -> Bound:
    """The roofline of the whole call as one kernel.

    What is computed between its ops needs no memory: it reads its inputs and weights and writes its outputs.
    Of experts it reads those that the routing of its row touches.
    """
    if (family := _family(call)) and isinstance(shape := family.shape(call.rows), MoeShape):
        flops, moved = map(np.asarray, shape.least)
        compute, memory = flops / device.matrix_peak(shape.dtype)[0], moved / device.memory_Bps
        return Bound(np.maximum(memory, compute), memory, compute, np.zeros(len(call.index)), moved)
    at = Binding(**call.symbols)
    graph = call.program.graphs["main"]
    outputs = {v.node for v in graph.outputs}
    zero = np.zeros(len(call.index))
    limits = {"compute": zero, "network": zero}
    moved = zero
    for row in call.ops:
        outside = (graph[v.node].op.source for v in row.node.operands)
        moved = moved + sum(at(n) for (_, n), far in zip(row.reads, outside, strict=True) if far)
        moved = moved + (at(row.write) if row.node.name in outputs else 0)
        for name, before in limits.items():
            own = [x.time(at) for x in Ideal(device).limits(row) if x.bound == name]
            limits[name] = before + np.max(own, axis=0) if own else before
    memory = moved / device.memory_Bps
    slowest = np.maximum(np.maximum(memory, limits["compute"]), limits["network"])
    return Bound(slowest, memory, limits["compute"], limits["network"], moved)


def _family(call: Call) -> Family | None:
    """The family of kernels that all rows of the call are of, if there is one."""
    return next((f for f in families(call.kind) if f.holds(call.rows)), None)


def priced_by(cost: str) -> Pricing:
    """The pricing of that name."""
    known: dict[str, Pricing] = {p.name: p for p in (CalibratedPricing(), IDEAL)}
    if cost not in known:
        raise InputError(f"cost: expected {' or '.join(known)}, got {cost!r}")
    return known[cost]
