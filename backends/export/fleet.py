"""Simulated replicas: the latencies of all their requests, and what tells one from another."""

from __future__ import annotations

from collections.abc import Iterator

from llmir.backends.simulate.simulated_replicas import SimulatedReplicas

from . import units
from .sections import Section, sectioned
from .simulation import simulation

COLUMNS = ("replica", "requests", "busy", "decoding", "blocks", "prefix hits", "TTFT", "TTFT p99")


def replicas(found: SimulatedReplicas) -> Iterator[tuple[str, ...]]:
    """A row a replica."""
    for number, known in enumerate(found.figures):
        ttft = known["ttft_s"]
        yield (
            str(number),
            f"{known['requests']:,}",
            units.percent(known["busy"]),
            units.digits(known["decodes"]),
            f"{known['most_blocks']:,}",
            units.percent(known["prefix_hits"]),
            *((units.time(ttft["mean"]), units.time(ttft["p99"])) if ttft else ("–", "–")),
        )


@sectioned(of=SimulatedReplicas)
def fleet(found: SimulatedReplicas) -> list[Section]:
    """What was asked and of how many, the latencies, what the servers did, and each of them."""
    head, *rest = simulation(found)
    many = f"{len(found.replicas):,} of this device, {found.router}"
    whole = Section(head.headings, [*head.rows, ("replicas", many)])
    return [whole, *rest, Section(COLUMNS, list(replicas(found)), 0)]
