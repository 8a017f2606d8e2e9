"""One basis for all sides of a comparison: times of one kind, by the kernels of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmir.backends.cost.calibration import engines, first
from llmir.backends.cost.models import model, unmeasured
from llmir.backends.cost.op_time import Model
from llmir.backends.cost.own import CostModel
from llmir.backends.step.evaluate import plan
from llmir.backends.work.basis import ROOFLINE
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.program import Program

Sides = Sequence[tuple[Program, Device]]


@dataclass(frozen=True)
class Common:
    """A cost model for each side, all of one basis; `why` it is the roofline, where nobody asked for that."""

    models: tuple[Model, ...]
    why: str = ""


def common(
    sides: Sides,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
    engine_after: str | None = None,
) -> Common:
    """The models that these options ask for on every side, of `engine_after` on the last.

    By default they are calibrated, with the kernels of one engine, if all ops of all sides have measured
    kernels; else the roofline. HardwareError if kernels are asked for and a device has none.
    """
    devices = [device for _, device in sides]
    if cost is not None or engine or efficiency or engine_after:
        names = [engine] * (len(devices) - 1) + [engine_after or engine]
        pairs = zip(devices, names, strict=True)
        return Common(tuple(model(device, cost, name, efficiency) for device, name in pairs))
    engine, why = _engine(devices)
    if not why:
        models = tuple(model(device, "calibrated", engine) for device in devices)
        why = next(
            (lack for (program, _), m in zip(sides, models, strict=True) if (lack := _lack(program, m))), ""
        )
    return Common(tuple(model(device, "ideal") for device in devices), why) if why else Common(models)


def _engine(devices: Sequence[Device]) -> tuple[str | None, str]:
    """The engine to take, None for the default of all; and what speaks against any."""
    firsts = [first(device) for device in devices]
    if None in firsts:
        return None, unmeasured(devices[firsts.index(None)])
    if len(set(firsts)) == 1:
        return None, ""
    if shared := [name for name in firsts if all(name in engines(device) for device in devices)]:
        return shared[0], ""
    on = ", ".join(f"{name} on {d.name}" for d, name in zip(devices, firsts, strict=True))
    return None, f"no engine was measured on all: {on}"


def _lack(program: Program, model: Model) -> str:
    """An op that no kernel was measured for, in words; none if there is none."""
    of = plan(program, model)
    missing = (row for row, price in zip(of.rows, of.prices, strict=True) if price.basis == ROOFLINE)
    row = next(missing, None)
    return f"no kernel for {row.node.op.opcode} was measured on {model.device.name}" if row else ""
