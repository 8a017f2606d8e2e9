"""An hour of traffic on the first plan, in the words of its table."""

from __future__ import annotations

from llmir.backends.search.hour import Hour
from llmir.backends.search.plan import Plans, PooledCandidate
from llmir.base.errors import InputError

from . import units


def hour(plans: Plans) -> list[str]:
    """What came, how it was answered, and what the servers held; nothing where no plan meets the limits."""
    try:
        found = plans.hour
    except InputError as error:
        return [f"no hour is simulated: {error}"]
    return [] if found is None else [_came(found), _answered(found), _held(found)]


def contradiction(plans: Plans) -> list[str]:
    """What an hour misses that the runs that decide met, if anything."""
    try:
        found = plans.hour
    except InputError:
        return []
    if found is None or not (found.missed or found.grows):
        return []
    limits = zip(("ttft", "tpot"), plans.traffic.limits, strict=True)
    missed = [
        f"{name.upper()} is {units.time(found.missed[name])} of {units.time(of.seconds)} ({of.of})"
        for name, of in limits
        if of and name in found.missed
    ]
    missed += ["requests stay longer and longer"] if found.grows else []
    return [
        f"the hour contradicts the runs that chose it: {'; '.join(missed)}. Ask for longer ones (--requests)"
    ]


def _came(found: Hour) -> str:
    plan, requests = found.candidate, found.simulation.load
    unit = "unit" if isinstance(plan, PooledCandidate) else "replica"
    one = "one" if found.replicas == 1 else f"{found.replicas:,}"
    is_, its = ("is", "its") if found.replicas == 1 else ("are", "their")
    of = f" of {plan.replicas:,} {unit}s {is_}" if plan.replicas > 1 else f" {unit} is"
    tokens = f"{units.count(found.output_tokens)} output tokens"
    share = "" if found.part == 1 else f", the first {units.percent(found.part)} of the hour"
    simulated = f"{one}{of} simulated, with {its} {_requests(len(requests))}{share} (seed {found.seed})"
    return f"an hour: {_requests(found.requests)}, {tokens}; {simulated}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _answered(found: Hour) -> str:
    times = []
    for name, of in found.spreads.items():
        p50, p99, worst = map(units.time, (of.p50, of.p99, found.worst[name]))
        times.append(f"{name.upper()} p50 {p50}, p99 {p99}, worst {worst}")
    limited = any(found.candidate.traffic.limits)
    late = round((1 - found.within) * len(found.simulation.load))
    share = f"{units.met(found.within)} within all limits, {late:,} late"
    return "; ".join([*times, *([share if late else "all within all limits"] if limited else [])])


def _held(found: Hour) -> str:
    room, most = found.simulation.capacity.blocks, found.simulation.most_blocks
    waits = (
        f"waiting to be read: {found.most_waiting:,} at most, {units.time(found.longest_queue_s)} at longest"
    )
    blocks = f"KV blocks: {most:,} of {room:,} at most ({units.percent(most / room)})"
    return f"{waits}; {blocks}; preemptions: {f'{found.preemptions:,}' if found.preemptions else 'none'}"
