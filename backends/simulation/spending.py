"""What simulated servers cost and draw: while they work, and by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from llmir.hw import Device
from llmir.hw.spent import spent

from .simulated_pools import SimulatedPools
from .simulated_replicas import SimulatedReplicas
from .simulation import Simulation


class Servers(NamedTuple):
    """Servers of one kind: `devices` of all of them, which have a step for `busy_s` device-seconds."""

    device: Device
    devices: int
    busy_s: float


class Spending(NamedTuple):
    """Of a simulation; None where a device does not say, and where no tokens were made.

    Dollars of a million output tokens, for all the time of all devices, and for that in which they have a
    step; joules of a token at most, in steps alone; and requests within all limits that a dollar buys.
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
    """All that served; of pools both kinds."""
    both = (found.prefill, found.decode) if isinstance(found, SimulatedPools) else (found,)
    for part in filter(None, both):
        each = part.job.program.devices
        copies = len(part.replicas) if isinstance(part, SimulatedReplicas) else 1
        yield Servers(part.job.device, each * copies, each * float(part.events["time_s"].sum()))


def spending(found: Simulation) -> Spending:
    """That of all servers of a simulation, by their price and power."""
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
