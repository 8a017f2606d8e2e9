"""What devices cost and draw while they make tokens: USD and energy, where price and power are known."""

from __future__ import annotations

from typing import NamedTuple

from llmir.base.array_namespace import Number

from .device import Device

HOUR = 3600.0
MILLION = 1e6


class Spent(NamedTuple):
    """USD an hour and a million tokens, watts, and joules a token; None where the device does not say.

    `watts` is the limit of a board's power times the boards, as if each drew that all the time: an upper
    estimate of what the boards draw, without hosts, switches and cooling. Memory-bound steps draw less.
    """

    usd_per_hour: float | None
    usd_per_mtok: Number | None
    watts: float | None
    joules_per_token: Number | None


def spent(device: Device, devices: int, tokens_per_s: Number) -> Spent:
    """Of so many devices that make so many tokens a second together, a number or an array of them.

    >>> from llmir import hw
    >>> spent(hw.load("h100-sxm"), 2, 1000.0)
    Spent(usd_per_hour=7.98, usd_per_mtok=2.216666666666667, watts=1400.0, joules_per_token=1.4)
    """
    price, power = device.price_per_hour_usd, device.board_power_W
    hourly = None if price is None else price * devices
    watts = None if power is None else power * devices
    return Spent(
        hourly,
        None if hourly is None else MILLION * hourly / (HOUR * tokens_per_s),
        watts,
        None if watts is None else watts / tokens_per_s,
    )
