"""What devices cost and draw, in words."""

from __future__ import annotations

from collections.abc import Callable

from llmir.backends.request.spending import Spending, spending
from llmir.backends.request.workload import Workload
from llmir.hw.device import Device
from llmir.hw.spent import Spent, spent

from . import units

AT_MOST = "at most, as if boards drew the limit of their power all the time"


def usd(x: float | None) -> str:
    """Dollars; `–` where no price is known.

    >>> usd(0.1234), usd(None)
    ('$0.123', '–')
    """
    return "–" if x is None else f"${units.digits(x)}"


def joules(x: float | None) -> str:
    """Joules; `–` where no power is known.

    >>> joules(1.234), joules(0.0125), joules(None)
    ('1.23 J', '12.5 mJ', '–')
    """
    if x is None:
        return "–"
    return f"{units.digits(1e3 * x)} mJ" if x < 1 else f"{units.digits(x)} J"


def lines(job: Workload) -> list[tuple[str, str]]:
    """What a workload's tokens cost and draw; nothing of what the device does not say."""
    found, of = spending(job), "image" if job.program.patches else "output token"
    cost = f"{_parts(found, _usd, f'a million {of}s', 'a million')}; {at(job.device)}"
    energy = f"at most {_parts(found, _joules, f'an {of}', 'one')}; boards of {_watts(job.device)}"
    known = ("cost", cost, found.answers.usd_per_mtok), ("energy", energy, found.answers.watts)
    return [(label, line) for label, line, figure in known if figure is not None]


def compared(job: Workload, first: float, second: float) -> list[tuple[str, str, str]]:
    """Rows of what output tokens cost and draw on the devices of a job, at either of two rates a second."""
    one, other = (spent(job.device, job.program.devices, rate) for rate in (first, second))
    cost = ("$ a million output", usd(one.usd_per_mtok), usd(other.usd_per_mtok))
    energy = ("energy, at most", joules(one.joules_per_token), joules(other.joules_per_token))
    return ([cost] if one.usd_per_hour else []) + ([energy] if one.watts else [])


def at(device: Device) -> str:
    """What an hour of a device costs."""
    return f"a device at {usd(device.price_per_hour_usd)} an hour"


def _watts(device: Device) -> str:
    return f"{units.digits(device.board_power_W or 0)} W"


def _usd(of: Spent) -> str:
    return usd(of.usd_per_mtok)


def _joules(of: Spent) -> str:
    return joules(of.joules_per_token)


def _parts(found: Spending, figure: Callable[[Spent], str], of: str, each: str) -> str:
    """All of it, and of what it is made: tokens that are read, and those after the first."""
    parts = [f"{w} {figure(part)}" for w, part in (("read", found.input), ("decoded", found.output)) if part]
    return f"{figure(found.answers)} {of}" + (f"; {each} {', '.join(parts)}" if parts else "")
