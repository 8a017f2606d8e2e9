"""A kernel is a time as a function of what it is given and of a dozen physical parameters at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from llmir.dim import Number
from llmir.errors import HardwareError
from llmir.hw import Device
from llmir.names import suggest

S = TypeVar("S", bound="Shape")
K = TypeVar("K", bound="Kernel")


class Parameter(NamedTuple):
    """One physical parameter: where a fit starts, the least and the most it may be, its unit and meaning."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str


def parameter(default: float, low: float, high: float, unit: str, meaning: str) -> Any:
    """A field of a kernel; `unit` is "" for a ratio, which a sibling device shares most easily."""
    about = {"low": low, "high": high, "unit": unit, "meaning": meaning}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Shape:
    """What a kernel is given: numbers or arrays that broadcast together, and words that stay words."""

    def take(self: S, index: Any) -> S:
        """The same with each array indexed: some rows of a table."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: v[index] for n, v in arrays.items() if isinstance(v, np.ndarray)})


@dataclass(frozen=True)
class Kernel:
    """A family of kernels on one device; its fields are its parameters."""

    def seconds(self, device: Device, shape: Any) -> Number:
        """Time of one call, of the shape of what `shape` holds; never below the device's roofline."""
        raise NotImplementedError

    @classmethod
    def of(cls: type[K], values: Mapping[str, float], where: str) -> K:
        """The kernel with these parameters; HardwareError names one that is unknown or out of range."""
        known = {p.name: p for p in parameters(cls)}
        for name, value in values.items():
            if name not in known:
                near = suggest(name, known) or f", known are {', '.join(known)}"
                raise HardwareError(f"{where}: unknown parameter {name!r}{near}")
            low, high = known[name].low, known[name].high
            if not low <= value <= high:
                raise HardwareError(f"{where}.{name} must be {low:g} to {high:g}, got {value:g}")
        return cls(**values)


def parameters(kernel: type[Kernel]) -> tuple[Parameter, ...]:
    """The parameters of a family, in order."""
    return tuple(_parameter(f) for f in fields(kernel))


def _parameter(f: Field[Any]) -> Parameter:
    if f.default is MISSING:
        raise TypeError(f"{f.name}: a field of a kernel is a parameter(...)")
    return Parameter(f.name, f.default, *(f.metadata[k] for k in ("low", "high", "unit", "meaning")))
