"""How an engine fills its steps: tokens in one at most, and whether prompts are read beside decodes."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.errors import HardwareError
from llmir.hw import schema
from llmir.hw.device import Device
from llmir.hw.versions import section

GIB = 1 << 30


@dataclass(frozen=True)
class Budget:
    """Tokens of a step, of devices with so much memory at least whose name begins so."""

    tokens: int
    memory_bytes: int = 0
    device: str = ""


@dataclass(frozen=True)
class Scheduler:
    """An engine's scheduler, as it is without options.

    A step has the tokens of the last of `budgets` that a device is under; without any, all that there are.
    One that `mixes` has chunks of prompts and decodes in one step; else prompts go first, and all wait.
    """

    budgets: tuple[Budget, ...] = ()
    mixes: bool = True
    source: str = ""

    def budget(self, device: Device) -> int | None:
        """Tokens of a step on the device."""
        found = None
        for each in self.budgets:
            if device.memory_bytes >= each.memory_bytes and device.name.startswith(each.device):
                found = each.tokens
        return found


@section("scheduler")
def scheduler(value: object, where: str) -> Scheduler:
    """What a file says of it; HardwareError for what is none."""
    said = _keys(value, where, ("source", "mixes", "budgets"))
    budgets = said.get("budgets", [])
    if not isinstance(budgets, list):
        raise HardwareError(f"{where}.budgets must be a list, got {schema.show(budgets)}")
    return Scheduler(
        tuple(_budget(each, f"{where}.budgets[{i}]") for i, each in enumerate(budgets)),
        schema.flag(said.get("mixes"), f"{where}.mixes", 1),
        schema.text(said.get("source"), f"{where}.source", 1),
    )


def _budget(value: object, where: str) -> Budget:
    said = _keys(value, where, ("tokens", "memory_GiB", "device"))
    least, device = said.get("memory_GiB"), said.get("device")
    return Budget(
        schema.count(said.get("tokens"), f"{where}.tokens", 1),
        0 if least is None else schema.size(least, f"{where}.memory_GiB", GIB),
        "" if device is None else schema.text(device, f"{where}.device", 1),
    )


def _keys(value: object, where: str, known: tuple[str, ...]) -> dict[str, object]:
    """A mapping of known keys."""
    if not isinstance(value, dict):
        raise HardwareError(f"{where} must be a mapping of {', '.join(known)}, got {schema.show(value)}")
    for key in value:
        if key not in known:
            raise HardwareError(f"{where}: unknown key {schema.show(key)}, known are {', '.join(known)}")
    return value
