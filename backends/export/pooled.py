"""Simulated pools: latencies of all requests, and the servers of each kind."""

from __future__ import annotations

from llmir.backends.simulate.simulated_pools import SimulatedPools
from llmir.backends.simulate.simulated_replicas import SimulatedReplicas

from . import units
from .sections import Section, sectioned
from .simulation import simulation

READERS = ("prefill", "requests", "busy", "blocks", "waiting", "waiting p99")
WRITERS = ("decode", "requests", "busy", "blocks", "waiting", "waiting p99", "decoding", "preempted")


def servers(fleet: SimulatedReplicas, headings: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A row a server."""
    rows = []
    for number, (known, one) in enumerate(zip(fleet.figures, fleet.replicas, strict=True)):
        wait = one.latencies["queue"]
        cells = {
            headings[0]: str(number),
            "requests": f"{known['requests']:,}",
            "busy": units.percent(known["busy"]),
            "blocks": f"{known['most_blocks']:,}",
            "waiting": units.time(wait.mean) if wait else "–",
            "waiting p99": units.time(wait.p99) if wait else "–",
            "decoding": units.digits(known["decodes"]),
            "preempted": f"{known['preemptions']:,}",
        }
        rows.append(tuple(cells[heading] for heading in headings))
    return rows


@sectioned(of=SimulatedPools)
def pooled(found: SimulatedPools) -> list[Section]:
    """What was asked and of what, the latencies, what the servers did, and each of them."""
    prefill, decode, channel = found.prefill, found.decode, found.channel
    assert prefill is not None
    assert decode is not None
    assert channel is not None
    each = (
        f"{len(fleet.replicas)} of tp {fleet.job.program.parallelism.tp} ({what})"
        for fleet, what in ((prefill, "prefill"), (decode, "decode"))
    )
    rates = (
        f"{name} {units.digits(rate)}"
        for name, rate in (
            ("prefill", prefill.largest_rate),
            ("links", found.carried_rate),
            ("decode", found.decoded_rate),
        )
    )
    head, *others = simulation(found)
    more = [
        ("servers", f"{' and '.join(each)}, {prefill.router}"),
        ("link", f"{channel.name}, {units.bytes(channel.link.Bps)}/s each way; {channel.basis}"),
        ("at most", f"{', '.join(rates)} requests/s"),
    ]
    return [
        Section(head.headings, [*head.rows, *more]),
        *others,
        Section(READERS, servers(prefill, READERS), 0),
        Section(WRITERS, servers(decode, WRITERS), 0),
    ]
