"""Copies between this machine's memory and its GPU's: the rate of the link to the host."""

from __future__ import annotations

from llmir.base.errors import HardwareError
from llmir.hw.device import Device

from .kernels import Eager

BYTES = 256 * 2**20  # of a copy: no cache holds it, and a start of some µs does not count

ABOUT = f"measured by llmir calibrate --run, copies of {BYTES // 2**20} MiB of pinned memory, the slower way"


def host_rate(machine: Eager) -> float | None:
    """Bytes/s of copies of pinned memory, of the slower way; None of a CPU."""
    if not machine.gpu:
        return None
    torch = machine.torch
    there = torch.empty(BYTES, dtype=torch.uint8, device=machine.place)
    here = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    ways = (lambda: there.copy_(here, non_blocking=True), lambda: here.copy_(there, non_blocking=True))
    return BYTES / max(map(machine.median, ways))


def host_text(rate: float, device: Device) -> str:
    """The lines of a file that extends a device: the rate is that of its link to the host, if it has one."""
    try:
        name = device.host_link[0]
    except HardwareError:
        return ""
    said = f"links: {{{name}: {{host_GBps: {rate / 1e9:.4g}}}}}"
    return f"{said}\nsources:\n  links.{name}.host_GBps: {ABOUT}\n"
