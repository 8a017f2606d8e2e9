"""What devices spend in some time: dollars at their price, joules at most, and both by token.

`device_s` is seconds times devices. Joules are those at the limit of a board's power, which it may not reach:
an upper estimate, of the boards alone, without hosts, networks or cooling. A device without a price or power
in its file spends none that is known: None, never 0.
"""

from __future__ import annotations

from typing import Any

from llmir.hw.device import Device

HOUR_S = 3600.0
MILLION = 1e6


def usd(device: Device, device_s: Any) -> Any:
    """Dollars of so many device-seconds, a number or an array; None where the device has no price.

    >>> from llmir.hw import load
    >>> usd(load("h100-sxm"), 8 * 3600.0), usd(load("h200"), 3600.0)
    (31.92, None)
    """
    hourly = device.price_per_hour_usd
    return None if hourly is None else hourly * device_s / HOUR_S


def joules(device: Device, device_s: Any) -> Any:
    """Joules of so many device-seconds at most, a number or an array; None where no power is known.

    >>> from llmir.hw import load
    >>> joules(load("h100-sxm"), 8 * 60.0), joules(load("gh200"), 60.0)
    (336000.0, None)
    """
    watts = device.board_power_W
    return None if watts is None else watts * device_s


def usd_per_mtok(device: Device, device_s: Any, tokens: Any) -> Any:
    """Dollars of a million tokens, of which so many take `device_s`; None where the device has no price.

    >>> from llmir.hw import load
    >>> usd_per_mtok(load("h100-sxm"), 3600.0, 1_000_000)
    3.99
    """
    spent = usd(device, device_s)
    return None if spent is None else MILLION * spent / tokens


def joules_per_token(device: Device, device_s: Any, tokens: Any) -> Any:
    """Joules of a token at most, of which so many take `device_s`; None where no power is known.

    >>> from llmir.hw import load
    >>> joules_per_token(load("h100-sxm"), 2.0, 1000)
    1.4
    """
    spent = joules(device, device_s)
    return None if spent is None else spent / tokens
