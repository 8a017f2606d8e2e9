"""The registry of cost models: `COSTS`, the decorator `cost_model`, and the text form of a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llmir.base.names import plain
from llmir.base.registry import Kind
from llmir.hw.device import Device

Make = TypeVar("Make", bound=Callable[..., Any])

COSTS: Kind[Callable[[Device], Any]] = Kind("cost model", "llmir.backends.cost")


def cost_model(name: str) -> Callable[[Make], Make]:
    """A decorator: a call of the class or function with a device returns the cost model of this name."""
    return COSTS.register(name)


def model_source(model: Any) -> str:
    """The name of a cost model; the source of its kernels, and the engine with its version, if known."""
    if model.name != "calibrated":
        return plain(model.name)
    host = model.runs or (model.engine if model.engine != model.kernels else "")
    return f"calibrated, {model.kernels} kernels{f', CPU time of {plain(str(host))}' if host else ''}"
