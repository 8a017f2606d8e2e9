"""What simulated servers cost and draw: over all the time, and during steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llmir.hw.device import Device
from llmir.hw.spent import spent

from .result import Simulation
from .simulated_pools import SimulatedPools
from .simulated_replicas import SimulatedReplicas


class Servers(NamedTuple):
    """All `devices` of servers of one kind, which run steps for `busy_s` device-seconds together."""

    device: Device
    devices: int
    busy_s: float


class Spending(NamedTuple):
    """Cost and energy of a simulation; None where a device has no price or power, or no tokens were made.

    Dollars for a million output tokens, over all the time of all devices, and over the time of their steps;
    joules for a token in steps, at most; and requests within the limits for a dollar.
    """

    cost_usd_per_mtok: float | None
    busy_cost_usd_per_mtok: float | None
    energy_j_per_token: float | None
    goodput_per_usd: float | None

    @property
    def known(self) -> bool:
        """Whether there is a figure."""
        return any(figure is not None for figure in self)


def servers(found: Simulation) -> Iterator[Servers]:
    """The servers of a simulation, of each kind."""
    both = (found.prefill, found.decode) if isinstance(found, SimulatedPools) else (found,)
    for part in filter(None, both):
        each = part.job.program.devices
        copies = len(part.replicas) if isinstance(part, SimulatedReplicas) else 1
        yield Servers(part.job.device, each * copies, each * float(part.events["time_s"].sum()))


def spending(found: Simulation) -> Spending:
    """Cost and energy of all servers of a simulation."""
    tokens, good = int(found.made.sum()), found.goodput
    if not tokens:
        return Spending(None, None, None, None)
    whole = busy = energy = 0.0
    priced = powered = True
    for kind in servers(found):
        rented = spent(
            kind.device, kind.devices, tokens / found.duration_s if found.duration_s else float("inf")
        )
        works = spent(kind.device, 1, tokens / kind.busy_s if kind.busy_s else float("inf"))
        priced, powered = priced and rented.usd_per_mtok is not None, powered and works.watts is not None
        whole += float(rented.usd_per_mtok or 0.0)
        busy += float(works.usd_per_mtok or 0.0)
        energy += float(works.joules_per_token or 0.0)
    usd = whole * tokens / 1e6
    per_usd = good * found.duration_s / usd if good is not None and priced and usd else None
    return Spending(
        whole if priced else None,
        busy if priced else None,
        energy if powered else None,
        per_usd,
    )
