"""What differs by device: a list in an engine's file, of which the first that fits a device holds for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.values import Record

from . import schema
from .device import Device
from .schema import Key


@dataclass(frozen=True, eq=False, kw_only=True)
class ByDevice(Record):
    """Holds for devices of so much memory or more, in `tp` ranks or more, whose `isa` is not `unless`."""

    memory_bytes: int = 0
    tp: int = 1
    unless: str = ""

    def fits(self, device: Device, tp: int) -> bool:
        """Whether it holds for a device in so many tensor-parallel ranks."""
        return device.capacity_bytes >= self.memory_bytes and tp >= self.tp and device.isa != self.unless


B = TypeVar("B", bound=ByDevice)

KEYS = {
    "memory_GiB": Key("memory_bytes", schema.size, 2**30),
    "tp": Key("tp", schema.count),
    "unless": Key("unless", schema.label),
}


def first(known: Sequence[B], device: Device, tp: int) -> B:
    """The first that holds for a device; the last holds for all."""
    return next(each for each in known if each.fits(device, tp))


def options(kind: Callable[..., B], keys: Mapping[str, Key]) -> Callable[[object, str, float], tuple[B, ...]]:
    """What reads a list of such; HardwareError where the last does not hold for all devices."""
    keys = {**KEYS, **keys}

    def read(value: object, where: str, unit: float) -> tuple[B, ...]:
        if not isinstance(value, list) or not value:
            raise HardwareError(f"{where} must be a list by device, got {schema.show(value)}")
        found = tuple(kind(**schema.read(each, f"{where}[{i}]", keys)) for i, each in enumerate(value))
        if found[-1].memory_bytes or found[-1].unless or found[-1].tp > 1:
            raise HardwareError(f"{where}: the last must hold for all devices")
        return found

    return read
