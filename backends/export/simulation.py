"""A simulated server: latencies of its requests, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmir.backends.simulate.load import Array
from llmir.backends.simulate.replications import RATES, Replications
from llmir.backends.simulate.result import QUANTILES, Simulation, Spread
from llmir.base.formats import exporter

from . import json, spending, table, units, wording
from .sections import Section, sectioned

if TYPE_CHECKING:
    from rich.console import Group

HEADINGS = ("", "mean", *(f"p{q}" for q in QUANTILES))
LATENCIES = {
    "ttft": "TTFT, first token",
    "queue": "  waiting until it is read",
    "prefill": "  being read",
    "transfer": "cache on its way",
    "admission": "waiting to decode",
    "tpot": "TPOT, later tokens of a request",
    "itl": "ITL, from token to token",
    "e2e": "end to end",
}

# The same beside intervals, which leave 16 columns of 80.
SHORT = LATENCIES | {
    "ttft": "TTFT",
    "queue": "  waiting",
    "admission": "waits to decode",
    "tpot": "TPOT",
    "itl": "ITL",
}

FIGURES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "largest_rate": "requests/s at most",
    "goodput": "requests/s within the limits",
    "goodput_share": "share within the limits",
    "cost_usd_per_mtok": "$ a million output",
    "busy_cost_usd_per_mtok": "$ of it in steps",
    "energy_j_per_token": "J an output, at most",
    "goodput_per_usd": "within limits, a dollar",
}


def latencies(found: Simulation) -> list[tuple[str, ...]]:
    """A row a figure."""
    spreads = ((LATENCIES[name], spread) for name, spread in found.latencies.items())
    return [(label, *map(units.time, spread)) for label, spread in spreads if spread]


def asked(found: Simulation) -> list[tuple[str, str]]:
    """What served which requests."""
    kept = ("model", "precision", "device", "links", "cost model")
    load, room = found.load, found.capacity
    lengths = (
        f"{what} {units.digits(float(n.mean()))}"
        for what, n in (("prompt", load.prompt), ("generate", load.generate))
    )
    reads = "chunks of prompts" if found.policy.chunked else "whole prompts"
    order = f"{reads} beside decodes" if found.policy.mixes else f"{reads} first, then decodes"
    states = f", {room.state:,} of which hold the states of each sequence" if room.state else ""
    limits = f"{room.tokens:,} tokens and {room.sequences:,} sequences at most"
    return [
        *(pair for pair in wording.head(found.job) if pair[0] in kept),
        ("requests", f"{len(load):,}{comes(found)}, {', '.join(lengths)} tokens on average"),
        ("load", _state(found)),
        *([("warm-up", f"{found.warm_up:,} requests, which do not count")] if found.warm_up else []),
        ("policy", f"{found.policy.name}: {order}; a step has {limits}"),
        ("cache", f"{room.blocks:,} blocks of {room.block} token{'s' * (room.block > 1)}{states}"),
    ]


def comes(found: Simulation) -> str:
    """How requests come."""
    load = found.load
    if load.users:
        return f", {load.users:,} users in a closed loop"
    if load.talks is None:
        return f", {units.digits(found.rate)} a second" if found.rate else ", at once"
    rate = f"{units.digits(found.rate or 0)} requests/s"
    begin = f", {units.digits(load.sessions_per_s)} of which begin a second" if load.sessions_per_s else ""
    return f" turns of {load.talks:,} sessions{begin}; {rate} came"


def _state(found: Simulation) -> str:
    most = f"{units.digits(found.largest_rate)} requests/s can be served at most"
    if found.load.users:  # who may be few enough that none is preempted, so that more are answered
        return f"{units.digits(found.largest_rate)} requests/s are answered where some always wait"
    words = {None: "", True: "overloaded: ", False: "stable: "}
    return f"{words[found.overloaded]}{most}"


def served(found: Simulation) -> list[tuple[str, str]]:
    """What the server did."""
    limits = (("TTFT", found.max_ttft_s), ("TPOT", found.max_tpot_s))
    named = " and ".join(f"{name} within {units.time(limit)}" for name, limit in limits if limit)
    good, share = found.goodput, found.goodput_share
    full = found.most_blocks / found.capacity.blocks
    many = int((found.preemptions > 0).sum())
    preempted = f"{int(found.preemptions.sum()):,}, of {many:,} requests" if many else "none"
    return [
        *([] if good is None or share is None else [("goodput", _good(good, share, named))]),
        *money(found),
        (
            "time",
            f"{units.time(found.duration_s)}, {units.percent(found.busy)} of it in {found.steps:,} steps",
        ),
        ("requests/s", units.digits(found.requests_per_s)),
        ("output tokens/s", units.digits(found.output_tokens_per_s)),
        ("decoding in a step", f"{units.digits(found.decodes)} sequences on average"),
        ("caches", f"{found.most_blocks:,} blocks in use at most, {units.percent(full)}"),
        *([("prefix hits", f"{units.percent(found.prefix_hits)} of tokens")] if found.cached.any() else []),
        ("preemptions", preempted),
        *([("cancelled", f"{found.cancelled:,} requests")] if found.cancelled else []),
        *([("given up", _lost(found, timeout))] if (timeout := found.load.timeout_s) else []),
    ]


def _good(rate: float, share: float, named: str) -> str:
    return f"{units.digits(rate)} requests/s within limits, {units.met(share)} of them: {named}"


def money(found: Simulation) -> list[tuple[str, str]]:
    """What the devices cost, by the clock and in steps, what a dollar buys, and what they draw."""
    known, lines = found.spending, []
    if known.cost_usd_per_mtok is not None:
        whole, busy = (spending.usd(x) for x in (known.cost_usd_per_mtok, known.busy_cost_usd_per_mtok))
        lines.append(("cost", f"{whole} a million output tokens, {busy} of it in steps"))
    if known.goodput_per_usd is not None:
        lines.append(("a dollar buys", f"{units.digits(known.goodput_per_usd)} requests within the limits"))
    if known.energy_j_per_token is not None:
        lines.append(
            ("energy", f"at most {spending.joules(known.energy_j_per_token)} an output token, in steps")
        )
    return lines


def _lost(found: Simulation, timeout_s: float) -> str:
    share = units.percent(float(found.given_up.mean()))
    return f"{int(found.given_up.sum()):,} requests ({share}) that took {units.time(timeout_s)}"


@sectioned(of=Simulation)
def simulation(found: Simulation) -> list[Section]:
    """What was asked, the latencies, and what the server did."""
    return [
        Section(("", ""), asked(found)),
        Section(HEADINGS, latencies(found)),
        Section(("", ""), served(found)),
    ]


@exporter("csv", ".csv", of=Simulation)
def simulation_csv(found: Simulation) -> str:
    """A line a latency, in seconds; then rates and what else has but one value, as its mean."""
    rows: list[dict[str, Any]] = [
        {"figure": name, **spread._asdict()} for name, spread in found.latencies.items() if spread
    ]
    single = {name: getattr(found, name) for name in ("rate", *RATES)} | found.spending._asdict()
    none = dict.fromkeys(Spread._fields)
    rows += [{"figure": name, **none, "mean": x} for name, x in single.items() if x is not None]
    return json.to_csv(rows)


def requests_csv(found: Simulation) -> str:
    """A line for each request that was served, which `--trace` reads again."""
    load = found.load
    return _lines(
        {
            "arrival_s": found.arrival_s,
            "prompt": load.prompt,
            "generate": load.generate if load.asked is None else load.asked,
            **_cancellations(found),
            "cached": found.cached,
            "start_s": found.start_s,
            "first_s": found.first_s,
            "end_s": found.end_s,
            "preemptions": found.preemptions,
            "made": found.made,
            **found.places,
        }
    )


def _cancellations(found: Simulation) -> dict[str, Array]:
    """After how many tokens, and when, clients leave before their answer; masked where they stay."""
    load = found.load
    columns: dict[str, Array] = {}
    if load.asked is not None:
        columns["cancel_tokens"] = np.ma.masked_where(load.generate == load.asked, load.generate)
    if load.leave_s is not None:
        columns["cancel_s"] = np.ma.masked_invalid(found.arrival_s + load.leave_s)
    return columns


def steps_csv(found: Simulation) -> str:
    """A line for each run of equal steps."""
    counts = ("steps", "decodes", "kept", "new", "reads", "waiting", "blocks", "replica")
    return _lines({n: c.astype(np.int64) if n in counts else c for n, c in found.events.items()})


def _lines(columns: Mapping[str, Array]) -> str:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return (
        "\n".join([",".join(columns), *(",".join("" if x is None else repr(x) for x in row) for row in rows)])
        + "\n"
    )


@table.printed(of=Replications)
def replications(found: Replications) -> Group:
    """What was asked, and the latencies with their intervals."""
    shown = table.columns(HEADINGS, HEADINGS[1:], HEADINGS[:1])
    for name, stats in found.latencies.items():
        cells = (f"{units.time(mean)} ± {_half(mean, half)}" for mean, half in stats.values())
        table.add(shown, (SHORT[name], *cells), styles=["" if LATENCIES[name][0] == " " else "bold"])
    rates = [
        (FIGURES[name], f"{units.digits(mean)} ± {_half(mean, half)}")
        for name, (mean, half) in found.figures.items()
    ]
    count = len(found.runs)
    head = [("replications", f"{count} of these, ± holds the mean in 95% of cases")]
    head += [("overloaded", f"{found.overloaded} of {count}")]
    return table.stack(table.pairs([*asked(found.runs[0]), *head]), "", shown, "", table.pairs(rates))


def _half(mean: float, half: float) -> str:
    return units.percent(half / mean) if mean else "0%"


@exporter("csv", ".csv", of=Replications)
def replications_csv(found: Replications) -> str:
    """A line a latency and statistic, in seconds; then rates and what else has but one value, as its mean."""
    each = {**found.latencies, **{name: {"mean": interval} for name, interval in found.figures.items()}}
    rows: list[dict[str, Any]] = [
        {"figure": name, "statistic": stat, **interval._asdict()}
        for name, stats in each.items()
        for stat, interval in stats.items()
    ]
    return json.to_csv(rows)
