"""The cost models by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from llmir.backends.kernels.base import KERNELS
from llmir.backends.kernels.engine_cpu import Host
from llmir.base.arguments import choice
from llmir.base.errors import HardwareError, InputError
from llmir.base.values import FrozenDict
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.engine import Engine

from .calibrated import Calibrated
from .calibration import engines, first, host, known, owner
from .ideal import Ideal
from .op_time import Model
from .own import CostModel, own
from .registry import COSTS, cost_model
from .roofline import Efficiency

OURS = ("ideal", "calibrated")  # which are given once for a device


def model(
    device: Device,
    cost: str | CostModel | None = None,
    engine: str | None = None,
    efficiency: Mapping[str, float] | None = None,
) -> Model:
    """The model that these options ask for: calibrated where a device was measured or can borrow, else ideal.

    `cost` is a name, or a model of the user's own.
    `efficiency` are shares of the roofline's rates, which need no calibration. InputError for options that
    contradict each other, HardwareError for an engine that is not calibrated, and for measured kernels asked
    for where there are none.
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
        return own(COSTS[cost](device), device, cost)
    if cost is not None and not isinstance(cost, str):
        return own(cost, device)
    if efficiency:
        return _efficiency(device, FrozenDict(efficiency))
    measured = cost != "ideal" and first(device) is not None
    if engine is not None:
        run_by(device, engine)  # or a HardwareError
    if cost == "ideal" or not (measured or cost or engine):
        return _ideal(device)
    if not measured:
        asked = f"cost {cost!r}" if cost else f"engine {engine!r}"
        raise HardwareError(f"{asked}: {unmeasured(device)}; leave it out for the roofline")
    return _calibrated(device, engine)


def run_by(device: Device, engine: str) -> tuple[str, Engine | None]:
    """Whose kernels come first, and what runs them, if that is known: vllm of `vllm@0.12`, and vllm 0.12.

    HardwareError for an engine that is neither calibrated nor bundled, nor a file.
    """
    name, at, version = engine.partition("@")
    own = device.calibration.engines if device.calibration else ()
    if name in own or name in engines(device):  # an engine, or one of its kernels
        if bundled := next((n for n in (name, owner(name)) if n in library.engines()), None):
            return name, library.engine(bundled + at + version)
        if at:
            raise HardwareError(f"engine {engine!r}: no version of {name} is known; leave @{version} out")
        return name, None
    profile = library.engine(engine, engines(device))
    return profile.kernels or engine, profile


def unmeasured(device: Device) -> str:
    """Why a device has no kernels to take times from."""
    return f"{device.name} was not measured, nor was a GPU like it"


_ideal = lru_cache(maxsize=256)(Ideal)
_efficiency = lru_cache(maxsize=256)(Efficiency)


@cost_model("calibrated")
def calibrated(device: Device) -> Calibrated:
    """With the device's first engine."""
    return _calibrated(device, None)


def _calibrated(device: Device, engine: str | None) -> Calibrated:
    return _run(device, engine, *run_by(device, engine)) if engine else _usual(device)


@lru_cache(maxsize=256)
def _usual(device: Device) -> Calibrated:
    """By the engine that the device's calibration names, which is no file."""
    return _run(device, None, *run_by(device, first(device) or ""))


@lru_cache(maxsize=256)
def _run(device: Device, engine: str | None, name: str, profile: Engine | None) -> Calibrated:
    """By what an engine's file says, and not by its name, under which another may lie next time."""
    known(device)
    own = host(device, engine)
    if own or profile is None:
        return Calibrated(device, engine and name, *(own or (None, None)))
    of = KERNELS[profile.family].of(profile.host.parameters, f"engine {profile.name}")
    assert isinstance(of, Host)
    return Calibrated(device, engine and name, of, profile.error, profile)
