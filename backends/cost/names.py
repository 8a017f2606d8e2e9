"""The cost models by name; each registers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llmir.hw import Device
from llmir.plugins import Kind

Make = TypeVar("Make", bound=Callable[..., Any])

COSTS: Kind[Callable[[Device], Any]] = Kind("cost model", "llmir.backends.cost")


def cost_model(name: str) -> Callable[[Make], Make]:
    """A decorator: the class or function, called with a device, gives its cost model of that name."""
    return COSTS.register(name)
