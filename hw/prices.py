"""What an hour of a device costs, as stated in place of the list price in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmir.base.errors import InputError

from .device import Device

Prices = Mapping[str, tuple[Device, float]]  # a device and USD an hour, by how it is called


def at_prices(devices: Sequence[Device], prices: Prices) -> list[Device]:
    """Each device at the price of its name, else at that of the device it is made of, else as it is.

    InputError for the price of a device that is not here, or that has two.
    """
    used, found = set(), []
    for device in devices:
        own = [name for name, (of, _) in prices.items() if of.name == device.name]
        made_of = [name for name, (of, _) in prices.items() if _made_of(device, of)]
        used |= {*own, *made_of}
        if len(own) > 1:
            raise InputError(f"price: {' and '.join(own)} are one device, {device.name}")
        found.append(_at(device, prices[(own or made_of)[0]][1]) if own or made_of else device)
    if idle := [name for name in prices if name not in used]:
        names = ", ".join(dict.fromkeys(device.name for device in devices))
        raise InputError(f"price: {idle[0]} is not among the devices here, {names}")
    return found


def _made_of(device: Device, of: Device) -> bool:
    """Whether it is a cluster of such devices, or a file that extends it."""
    return of.node is None and bool(of.measured_as) and device.measured_as == of.measured_as


def _at(device: Device, usd: float) -> Device:
    sources = {**device.sources, "price_per_hour_usd": "stated"}
    return replace(device, price_per_hour_usd=usd, sources=sources)
