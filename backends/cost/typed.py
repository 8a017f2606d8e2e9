"""A device whose rates are told later: code that is made of its prices takes them as they are typed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from llmir.backends.tape.outside import Outside
from llmir.base.array_namespace import SCALARS
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.transfer import SAME_DIE, SAME_SM

from .relatives import kernels_of, relation

TERA, GIGA = 1e12, 1e9


class Rate(NamedTuple):
    """One rate: its key in the device's file, the factor from the unit there to SI, and what it is."""

    key: str
    unit: float
    value: float


def rates(device: Device) -> Iterator[Rate]:
    """Those that a device's file says: peaks, bandwidth, links."""
    for group, peaks in (("matrix", device.matrix_flops), ("vector", device.vector_flops)):
        yield from (Rate(f"{group}_tflops.{name}", TERA, peak) for name, peak in peaks.items())
    yield Rate("memory_GBps", GIGA, device.memory_Bps)
    yield from (Rate(f"links.{name}.GBps", GIGA, link.Bps) for name, link in device.links.items())
    if device.node and device.node.network:
        yield Rate("node.network.GBps", GIGA, device.node.network.Bps)


def peak_key(device: Device, unit: str) -> str:
    """The key of the peak of matrix products that a unit does."""
    return f"{'matrix' if unit in device.matrix_flops else 'vector'}_tflops.{unit}"


def with_rates(device: Device, known: Mapping[str, Any]) -> Device:
    """The device with these rates, in SI units by key."""
    matrix, vector = (
        {name: known.get(f"{group}_tflops.{name}", peak) for name, peak in peaks.items()}
        for group, peaks in (("matrix", device.matrix_flops), ("vector", device.vector_flops))
    )
    links = {
        name: replace(link, Bps=known.get(f"links.{name}.GBps", link.Bps))
        for name, link in device.links.items()
    }
    node = device.node
    if node and node.network and "node.network.GBps" in known:
        node = replace(node, network=replace(node.network, Bps=known["node.network.GBps"]))
    peaks: dict[str, Any] = {"matrix_flops": matrix, "vector_flops": vector}
    memory = known.get("memory_GBps", device.memory_Bps)
    return replace(device, **peaks, memory_Bps=memory, links=links, node=node)


@lru_cache(maxsize=64)
def typed(device: Device) -> Device:
    """The device with all its rates as symbols of an `Outside`, by key."""
    usual = {rate.key: rate.value for rate in rates(device)}
    tape = Outside(SCALARS, usual)
    return with_rates(device, {key: tape.symbol(key) for key in usual})


class Kin(NamedTuple):
    """A device whose kernels another takes, its `own` or a relative's: of one die, if peaks are nearly equal.

    That of `key` is `usual`, and as many multiprocessors of the relative have `alike`. `others` is the device
    at other rates: of that die, and of another.
    """

    key: str
    own: bool
    usual: float
    alike: float
    others: tuple[Device, Device]


@lru_cache(maxsize=64)
def kin(device: Device) -> Kin | None:
    """The one whose kernels a device takes, if its rates decide how near the two are."""
    own = device.own_calibration is None and device.calibration is not None
    other = library.load(device.measured_as) if own else kernels_of(device)
    if other is None or relation(device, other) not in (SAME_DIE, SAME_SM):
        return None
    alike = other.matrix_peak("bf16")[0] / (other.multiprocessors or 1) * (device.multiprocessors or 1)
    usual, unit = device.matrix_peak("bf16")
    slower = {rate.key: rate.value / 2 for rate in rates(device)}
    key = peak_key(device, unit)
    die, chip = (with_rates(device, {**slower, key: peak}) for peak in (alike, alike / 4))
    return Kin(key, own, usual, alike, (die, chip))
