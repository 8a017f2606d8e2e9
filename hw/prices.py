"""Prices of devices in USD per hour, and the cost and energy of generated tokens.

`prices.yaml` contains the list prices of bundled devices; a user's file or `at_prices` sets others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from llmir.base.array_namespace import Number
from llmir.base.errors import InputError

from . import schema
from .device import Device

# --- Prices of devices ---

_LIST = Path(__file__).parent / "prices.yaml"


class ListPrice(NamedTuple):
    """An on-demand list price: USD per hour of one device, with the price list and its month."""

    usd_per_hour: float
    source: str


@functools.cache
def list_prices() -> Mapping[str, ListPrice]:
    """The list prices of bundled devices, by the name of the device's file.

    >>> list_prices()["h100-sxm"]
    ListPrice(usd_per_hour=3.99, source='Lambda, lambda.ai/instances, 8x H100 SXM, 2026-09')
    """
    return {name: _list_price(row, f"{_LIST.name}: {name}") for name, row in schema.parse(_LIST).items()}


def _list_price(row: Any, where: str) -> ListPrice:
    said = dict(schema.mapping(row, where))
    source, date = (schema.text(said.get(key), f"{where}.{key}", 1) for key in ("source", "date"))
    return ListPrice(schema.number(said.get("usd_per_hour"), f"{where}.usd_per_hour", 1), f"{source}, {date}")


Prices = Mapping[str, tuple[Device, float]]  # a device and USD per hour, by its name


def at_prices(devices: Sequence[Device], prices: Prices) -> list[Device]:
    """Set the price of each device by its name, otherwise by the device of a cluster.

    InputError for the price of a device that is not in the list, or that has two prices.
    """
    used, found = set(), []
    for device in devices:
        own = [name for name, (of, _) in prices.items() if of.name == device.name]
        made_of = [name for name, (of, _) in prices.items() if _is_cluster_of(device, of)]
        used |= {*own, *made_of}
        if len(own) > 1:
            raise InputError(f"price: {' and '.join(own)} name the same device, {device.name}")
        found.append(_at(device, prices[(own or made_of)[0]][1]) if own or made_of else device)
    if idle := [name for name in prices if name not in used]:
        names = ", ".join(dict.fromkeys(device.name for device in devices))
        raise InputError(f"price: {idle[0]} is not among the devices of this command, {names}")
    return found


def _is_cluster_of(device: Device, of: Device) -> bool:
    """Whether a device is a cluster of another device, or a file that extends it."""
    return of.node is None and bool(of.measured_as) and device.measured_as == of.measured_as


def _at(device: Device, usd: float) -> Device:
    sources = {**device.sources, "price_per_hour_usd": "stated"}
    return replace(device, price_per_hour_usd=usd, sources=sources)


# --- Cost and energy of tokens ---

HOUR = 3600.0
MILLION = 1e6


class OperatingCost(NamedTuple):
    """USD per hour and per million tokens, watts, and joules per token; None for unknown values.

    `watts` is the number of boards times the power limit of a board. This is an upper estimate; hosts,
    switches and cooling are not included. Memory-bound steps draw less.
    """

    usd_per_hour: float | None
    usd_per_mtok: Number | None
    watts: float | None
    joules_per_token: Number | None


def operating_cost(device: Device, devices: int, tokens_per_s: Number) -> OperatingCost:
    """The cost of `devices` devices that generate `tokens_per_s` tokens per second together.

    >>> from llmir.hw import library
    >>> operating_cost(library.load("h100-sxm"), 2, 1000.0)
    OperatingCost(usd_per_hour=7.98, usd_per_mtok=2.216666666666667, watts=1400.0, joules_per_token=1.4)
    """
    price, power = device.price_per_hour_usd, device.board_power_W
    hourly = None if price is None else price * devices
    watts = None if power is None else power * devices
    return OperatingCost(
        hourly,
        None if hourly is None else MILLION * hourly / (HOUR * tokens_per_s),
        watts,
        None if watts is None else watts / tokens_per_s,
    )
