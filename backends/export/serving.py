"""Serving results as text: closed loop, simulation, replicas, pools, and series of rates.

Order of the file: a closed loop compared with a batch, with the terms of the difference
(`closed_loop_sections`); one simulated server (`simulation`); replicas (`fleet`); prefill and decode servers
(`pooled`); and a server at several rates (`rates`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmir.backends.request.closed_loop import ClosedLoopWorkload
from llmir.backends.simulate.load import Array
from llmir.backends.simulate.replications import RATES, RateSeries, Replications
from llmir.backends.simulate.result import (
    QUANTILES,
    LatencySpread,
    PoolSimulation,
    ReplicaSimulation,
    Simulation,
)
from llmir.base.formats import exporter

from . import json, table, units, wording
from .sections import Section, sectioned

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

# Closed loop

_NONE = "–"
_BAR = 24  # length of the longest bar, in characters
_STYLES = ("blue", "bright_black", "dark_orange")


def headings(service: ClosedLoopWorkload) -> tuple[str, str, str]:
    """Headings of the columns: a label, the batch, and the loop."""
    users = service.batch
    many = f"{users:,} users in a closed loop" if users > 1 else "1 user in a closed loop"
    return "", f"one batch of {users:,}", many


def loop_rows(service: ClosedLoopWorkload) -> list[tuple[str, str, str]]:
    """A row for each figure: its name, its value for the batch, and its value for the loop."""
    loop, ranks = service.loop, service.program.devices
    first = wording.error_band(service.prefill.error)
    batch = units.time(service.ttft_s) + first
    if wording.prefill_steps(service) > 1 and service.batch > 1:
        batch += f", mean {units.time(service.ttft_mean_s)}"
    first = units.time(loop.ttft_s) + wording.error_band(loop.ttft_error)
    rows = [("TTFT, first token", batch, first)]
    if (burst_s := loop.figures.burst_ttft_s) is not None and service.batch > 1:
        rows.append(("  with first burst", _NONE, units.time(burst_s)))
    if service.tpot_s is not None and service.decode and loop.tpot_s is not None:
        later = units.time(service.tpot_s) + wording.error_band(service.decode.error)
        served = units.time(loop.tpot_s) + wording.error_band(loop.error)
        rows.append(("TPOT, later tokens", later, served))
    each = f", {units.digits(loop.output_tokens_per_s / ranks)} per device" if ranks > 1 else ""
    rates = units.digits(service.output_tokens_per_s), units.digits(loop.output_tokens_per_s)
    rows += [("end to end", units.time(service.e2e_s), units.time(loop.e2e_s))]
    rows += [("output tokens/s", rates[0], rates[1] + each)]
    if service.tpot_s and loop.tpot_s:
        users = units.digits(1 / service.tpot_s), units.digits(1 / loop.tpot_s)
        rows.append(("tokens/s per user", *users))
    rows += wording.compare_costs(service, service.busy_output_tokens_per_s, loop.output_tokens_per_s)
    held = f"{loop.in_flight:,} of {loop.max_in_flight:,} {loop.limit}"
    rows.append(("in flight", f"{service.batch:,}" if service.fits else "does not fit", held))
    if service.max_tpot_s is not None:
        most, limit = service.most, f"most at {units.time(service.max_tpot_s)}"
        users_most = "none, not even 1"
        if most:
            users_most = f"{most.concurrency:,} users, {units.digits(most.output_tokens_per_s)} tokens/s"
        rows.append((limit, _NONE, users_most))
    return rows


def steps(service: ClosedLoopWorkload) -> str:
    """Whether the engine runs prefill before decodes or mixes them."""
    loop = service.loop
    mixes, whole = loop.scheduler.mixes, "" if loop.chunk else "whole "
    first = f"{whole}prompts first, then decodes"
    how = f"{'whole prompts' if whole else 'prefill chunks'} mixed with decodes" if mixes else first
    most = "without a limit of tokens (--chunk)"
    if loop.chunk:
        by = f" ({loop.job.budget_by})" if loop.job.budget_by else ""
        most = f"of at most {loop.chunk:,} tokens on each rank{by}"
    reads = wording.prefill_steps(service)
    alone = f"all prompts in {f'{reads:,} such steps' if reads > 1 else 'one step'}, then decodes"
    return f"steps {most}: {how}; the one batch runs {alone}"


def arrivals(service: ClosedLoopWorkload) -> str:
    """How the loop was simulated, or the arrivals that its closed form assumes."""
    figures, tokens = service.loop.figures, service.generate
    if figures.requests:
        least = service.loop.least_tokens
        answers = f"{tokens:,}" if least == tokens else f"{least:,} to {tokens:,}"
        first = f", without the first {figures.warm_up:,}" if figures.warm_up else ""
        counted = f"{figures.requests:,} requests{first}"
        unit = "token" if tokens == 1 else "tokens"
        return f"Simulated as by serve-sim --closed: {counted}; each has {answers} output {unit}."
    if service.loop.scheduler.mixes:
        return "Requests arrive one by one, evenly spread over the time of a request."
    return "Requests arrive in waves: they have equal lengths, and start and end together."


def tpot_terms(service: ClosedLoopWorkload) -> list[tuple[str, str, float]]:
    """The terms of the loop's TPOT: milliseconds, name, and share."""
    tpot = service.loop.tpot_s or 1.0
    return [
        (f"{units.digits(1e3 * term.time_s)}", term.what, term.time_s / tpot) for term in service.loop.terms
    ]


def _title(service: ClosedLoopWorkload) -> str:
    return f"TPOT of the loop: {units.time(service.loop.tpot_s or 0.0)} ="


@table.table_of(of=ClosedLoopWorkload)
def closed_loop_sections(service: ClosedLoopWorkload) -> Group:
    """The whole report: workload, both results, terms of the difference, and steps of the batch."""
    from rich.text import Text

    names = headings(service)
    answers = table.columns(names)
    for row in loop_rows(service):
        table.add(answers, row, styles=["bold"])
    parts: list[RenderableType] = [answers, ""]
    if terms := tpot_terms(service):
        parts += [Text(_title(service), style="bold"), _bars(terms)]
    parts += [
        f"{wording.plain(steps(service))}. {arrivals(service)}",
        "",
        table.pairs(wording.memory(service)),
    ]
    return table.answer_sections(service, *parts)


def _bars(terms: list[tuple[str, str, float]]) -> RenderableType:
    """A line for each term: milliseconds, name, bar and share."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for justify in ("right", "left", "left", "right"):
        shown.add_column(justify=justify, no_wrap=True)
    for (time, what, share), style in zip(terms, _colours(len(terms)), strict=True):
        bar = "█" * max(0, round(_BAR * share))
        shown.add_row(Text(f"  {time}", style=style), what, Text(bar, style=style), units.percent(share))
    return shown


def _colours(count: int) -> Iterator[str]:
    """Colors of the terms: the memory color for the first term, the compute color for the last."""
    yield from (_STYLES[0], *(_STYLES[1],) * (count - 2), *(_STYLES[2],) * (count > 1))


@exporter("md", ".md", of=ClosedLoopWorkload)
def service_markdown(service: ClosedLoopWorkload) -> str:
    """The report as text."""
    terms = [(time, what, units.percent(share)) for time, what, share in tpot_terms(service)]
    parts = [
        json.workload_markdown(service),
        "## Closed loop\n",
        json.to_markdown(headings(service), loop_rows(service)),
        *([json.to_markdown(("ms per token", "term", "share"), terms, (0, 2))] if terms else []),
        f"{steps(service).capitalize()}. {arrivals(service)}\n",
    ]
    return "\n".join(parts)


@exporter("html", ".html", of=ClosedLoopWorkload)
def service_html(service: ClosedLoopWorkload) -> str:
    """A report as HTML."""
    parts = [
        table.workload_html(service),
        table.caption("closed loop"),
        table.html(headings(service), loop_rows(service)),
    ]
    if terms := tpot_terms(service):
        rows = [(time, what, units.percent(share)) for time, what, share in terms]
        parts += [table.caption(_title(service)), table.html(("ms", "term", "share"), rows, (0, 2))]
    return "".join((*parts, *(table.caption(line, "small") for line in (steps(service), arrivals(service)))))


# Simulation of one server

HEADINGS = ("", "mean", *(f"p{q}" for q in QUANTILES))
LATENCIES = {
    "ttft": "TTFT",
    "queue": "  waiting in the queue",
    "prefill": "  prefill",
    "transfer": "KV-cache transfer",
    "admission": "waiting to decode",
    "tpot": "TPOT (per request)",
    "itl": "ITL (per token)",
    "e2e": "end to end",
}

# Names that fit next to confidence intervals, in the 16 of 80 columns that remain.
SHORT = LATENCIES | {
    "ttft": "TTFT",
    "queue": "  waiting",
    "transfer": "KV transfer",
    "admission": "waits to decode",
    "tpot": "TPOT",
    "itl": "ITL",
}

FIGURES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "largest_rate": "capacity, requests/s",
    "goodput": "requests/s within the limits",
    "goodput_share": "share within the limits",
    "cost_usd_per_mtok": "$/million output",
    "busy_cost_usd_per_mtok": "$ during steps",
    "energy_j_per_token": "J per output, at most",
    "goodput_per_usd": "goodput per dollar",
}


def latencies(found: Simulation) -> list[tuple[str, ...]]:
    """A row for each latency."""
    spreads = ((LATENCIES[name], spread) for name, spread in found.latencies.items())
    return [(label, *map(units.time, spread)) for label, spread in spreads if spread]


def simulation_settings(found: Simulation) -> list[tuple[str, str]]:
    """What was simulated: the model, the requests, and the limits of the server."""
    load, room = found.load, found.capacity
    lengths = (
        f"{units.digits(float(n.mean()))} {what}"
        for what, n in (("prompt", load.prompt), ("output", load.generate))
    )
    reads = "prefill chunks" if found.policy.chunked else "whole prompts"
    order = f"{reads} mixed with decodes" if found.policy.mixes else f"{reads} first, then decodes"
    states = f", {room.state:,} of them for the states of each sequence" if room.state else ""
    groups = sum(group.pages for group in room.groups)
    shared = f", shared by {groups:,} groups of layers" if groups > 1 else ""
    on = f", on {len(found.replicas):,} servers" if isinstance(found, ReplicaSimulation) else ""
    limits = f"at most {room.tokens:,} tokens and {room.sequences:,} sequences per step"
    return [
        *(pair for pair in wording.head_lines(found.job) if pair[0] in wording.SERVER_LINES),
        ("requests", f"{len(load):,}{arrival_text(found)}; on average {' and '.join(lengths)} tokens"),
        *(
            [("warm-up", f"the first {found.warm_up:,} requests, excluded from the results")]
            if found.warm_up
            else []
        ),
        ("policy", f"{found.policy.name}: {order}; {limits}"),
        (
            "KV blocks",
            f"{room.blocks:,} blocks of {room.block:,} token{'s' * (room.block > 1)}{shared}{states}; "
            f"{found.max_requests:,} requests of the longest length fit without preemption{on}",
        ),
    ]


def server_text(found: Simulation) -> str:
    """The model and the parts of it that are not counted, the devices, and the scheduler."""
    return f"{wording.model_on_devices(found.job)}, {found.policy.name} scheduler"


def answer_lines(found: Simulation) -> list[tuple[str, str]]:
    """Whether the server keeps up, and the requests that meet the limits."""
    limits = (("TTFT", found.max_ttft_s), ("TPOT", found.max_tpot_s))
    named = " and ".join(f"{name} within {units.time(limit)}" for name, limit in limits if limit)
    good, share = found.goodput, found.goodput_share
    return [
        ("server", server_text(found)),
        ("load", load_text(found)),
        *([] if good is None or share is None else [("goodput", _good(good, share, named))]),
    ]


def arrival_text(found: Simulation) -> str:
    """The arrivals of requests."""
    load = found.load
    if load.users:
        return f" from {load.users:,} users in a closed loop"
    if load.talks is None:
        return (
            f", arriving at {units.digits(found.rate)} per second in this sample"
            if found.rate
            else ", at once"
        )
    rate = f"{units.digits(found.rate or 0)} requests/s"
    begin = f", {units.digits(load.sessions_per_s)} new sessions per second" if load.sessions_per_s else ""
    return f" turns of {load.talks:,} sessions{begin}; {rate} arrived"


def load_text(found: Simulation) -> str:
    """Whether the load is stable, and the capacity of the server."""
    capacity = f"{units.digits(found.largest_rate)} requests/s"
    if found.load.users:  # if there are few users and no preemptions, the rate may be higher
        return f"capacity {capacity} with a queue that is never empty"
    if found.overloaded is None or not found.rate:
        return f"capacity {capacity}"
    part = f"{units.digits(found.rate)} requests/s, {units.percent(found.rate / found.largest_rate)}"
    if not found.overloaded:
        return f"stable: {part} of the capacity of {capacity}"
    return f"overloaded: {part} of the capacity of {capacity}; add replicas or lower the rate"


def server_lines(found: Simulation) -> list[tuple[str, str]]:
    """Throughput, caches, preemptions and cost."""
    full = found.most_blocks / found.capacity.blocks
    many = int((found.preemptions > 0).sum())
    preempted = f"{int(found.preemptions.sum()):,}, among {many:,} requests" if many else "none"
    until = "" if found.load.users else f" over the {units.time(found.duration_s)} until the last one ended"
    steps = f"{found.steps:,} steps take {units.percent(found.busy)} of {units.time(found.duration_s)}"
    return [
        ("output tokens/s", units.digits(found.output_tokens_per_s)),
        ("requests/s", f"{units.digits(found.requests_per_s)} completed{until}"),
        ("busy", f"{steps}; on average {units.digits(found.decodes)} sequences decode"),
        (
            "KV cache",
            f"at most {units.percent(full)} in use ({found.most_blocks:,} of "
            f"{found.capacity.blocks:,} blocks)",
        ),
        *([("prefix hits", f"{units.percent(found.prefix_hits)} of tokens")] if found.cached.any() else []),
        ("preemptions", preempted),
        *([("cancelled", f"{found.cancelled:,} requests")] if found.cancelled else []),
        *([("given up", _lost(found, timeout))] if (timeout := found.load.timeout_s) else []),
        *cost_lines(found),
    ]


def _good(rate: float, share: float, named: str) -> str:
    return f"{units.digits(rate)} requests/s ({units.share_met(share)} of all) with {named}"


def cost_lines(found: Simulation) -> list[tuple[str, str]]:
    """Cost over the whole time and during steps, requests per dollar, and energy."""
    known, lines = found.spending, []
    if known.cost_usd_per_mtok is not None:
        whole, busy = (wording.usd(x) for x in (known.cost_usd_per_mtok, known.busy_cost_usd_per_mtok))
        lines.append(("cost", f"{whole} per million output tokens, {busy} of it during steps"))
    if known.goodput_per_usd is not None:
        lines.append(
            ("a dollar buys", f"{units.digits(known.goodput_per_usd)} requests that meet the limits")
        )
    if known.energy_j_per_token is not None:
        lines.append(
            ("energy", f"at most {wording.joules(known.energy_j_per_token)} per output token, during steps")
        )
    return lines


def _lost(found: Simulation, timeout_s: float) -> str:
    share = units.percent(float(found.given_up.mean()))
    return f"{int(found.given_up.sum()):,} requests ({share}), after {units.time(timeout_s)}"


@sectioned(of=Simulation)
def simulation(found: Simulation) -> list[Section]:
    """The load, the latencies, the use of the server, and the settings of the simulation."""
    return [
        Section(("", ""), answer_lines(found)),
        Section(HEADINGS, latencies(found)),
        Section(("", ""), server_lines(found)),
        Section(("", ""), simulation_settings(found)),
    ]


@exporter("csv", ".csv", of=Simulation)
def simulation_csv(found: Simulation) -> str:
    """One line per latency, in seconds; then rates and other single values, as means."""
    rows: list[dict[str, Any]] = [
        {"figure": name, **spread._asdict()} for name, spread in found.latencies.items() if spread
    ]
    single = {name: getattr(found, name) for name in ("rate", *RATES)} | found.spending._asdict()
    none = dict.fromkeys(LatencySpread._fields)
    rows += [{"figure": name, **none, "mean": x} for name, x in single.items() if x is not None]
    return json.to_csv(rows)


def requests_csv(found: Simulation) -> str:
    """A line for each request that was served; `--trace` can read the lines again."""
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
    """The number of output tokens, or the time, at which the client cancels a request; masked if it does
    not.
    """
    load = found.load
    columns: dict[str, Array] = {}
    if load.asked is not None:
        columns["cancel_tokens"] = np.ma.masked_where(load.generate == load.asked, load.generate)
    if load.leave_s is not None:
        columns["cancel_s"] = np.ma.masked_invalid(found.arrival_s + load.leave_s)
    return columns


def steps_csv(found: Simulation) -> str:
    """A line for each series of equal steps."""
    counts = ("steps", "decodes", "kept", "new", "reads", "waiting", "blocks", "replica")
    return _lines({n: c.astype(np.int64) if n in counts else c for n, c in found.events.items()})


def _lines(columns: Mapping[str, Array]) -> str:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return (
        "\n".join([",".join(columns), *(",".join("" if x is None else repr(x) for x in row) for row in rows)])
        + "\n"
    )


@table.table_of(of=Replications)
def replications(found: Replications) -> Group:
    """The load, the latencies and rates with their intervals, and the settings of the simulation."""
    shown = table.columns(HEADINGS, HEADINGS[1:], HEADINGS[:1])
    for name, stats in found.latencies.items():
        cells = (f"{units.time(mean)} ± {_half(mean, half)}" for mean, half in stats.values())
        table.add(shown, (SHORT[name], *cells), styles=["" if LATENCIES[name][0] == " " else "bold"])
    rates = [
        (FIGURES[name], f"{units.digits(mean)} ± {_half(mean, half)}")
        for name, (mean, half) in found.figures.items()
    ]
    count = len(found.runs)
    first = found.runs[0]
    head = [("server", server_text(first))]
    head += [("load", f"{found.overloaded} of {count} replications are overloaded")]
    how = [("replications", f"{count} with different seeds; ± contains the mean in 95% of cases")]
    settings = table.pairs([*how, *simulation_settings(first)])
    return table.stack(table.pairs(head), "", shown, "", table.pairs(rates), "", settings)


def _half(mean: float, half: float) -> str:
    return units.percent(half / mean) if mean else "0%"


@exporter("csv", ".csv", of=Replications)
def replications_csv(found: Replications) -> str:
    """One line per latency and statistic, in seconds; then rates and other single values, as means."""
    each = {**found.latencies, **{name: {"mean": interval} for name, interval in found.figures.items()}}
    rows: list[dict[str, Any]] = [
        {"figure": name, "statistic": stat, **interval._asdict()}
        for name, stats in each.items()
        for stat, interval in stats.items()
    ]
    return json.to_csv(rows)


# Replicas

COLUMNS = ("replica", "requests", "busy", "decoding", "blocks", "prefix hits", "TTFT", "TTFT p99")


def replicas(found: ReplicaSimulation) -> Iterator[tuple[str, ...]]:
    """A row for each replica."""
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


@sectioned(of=ReplicaSimulation)
def fleet(found: ReplicaSimulation) -> list[Section]:
    """The load, the latencies, the use of the servers, each replica, and the settings of the simulation."""
    *rest, settings = simulation(found)
    many = f"{len(found.replicas):,} of this device, {found.router}"
    if (ranks := found.profile.ranks) > 1:
        many = f"{many}; data-parallel ranks that share nothing, {ranks} of each server"
    whole = Section(settings.headings, [("replicas", many), *settings.rows])
    return [*rest, Section(COLUMNS, list(replicas(found)), 0), whole]


# Prefill and decode servers

READERS = ("prefill", "requests", "busy", "blocks", "waiting", "waiting p99")
WRITERS = ("decode", "requests", "busy", "blocks", "waiting", "waiting p99", "decoding", "preempted")


def servers(fleet: ReplicaSimulation, headings: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A row for each server."""
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


@sectioned(of=PoolSimulation)
def pooled(found: PoolSimulation) -> list[Section]:
    """The load, the latencies, the use of the servers, each server, and the settings of the simulation."""
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
    *others, settings = simulation(found)
    more = [
        ("servers", f"{' and '.join(each)}, {prefill.router}"),
        ("link", f"{channel.name}, {units.bytes(channel.link.Bps)}/s each way; {channel.basis}"),
        ("at most", f"{', '.join(rates)} requests/s"),
    ]
    return [
        *others,
        Section(READERS, servers(prefill, READERS), 0),
        Section(WRITERS, servers(decode, WRITERS), 0),
        Section(settings.headings, [*more, *settings.rows]),
    ]


# Series of rates

_SHOWN = ("ttft", "tpot")
_PAIRS = (*wording.SERVER_LINES, "policy", "KV blocks")


def first_run(run: Simulation | Replications) -> Simulation:
    """The run; or the first one, if there are several."""
    return run.runs[0] if isinstance(run, Replications) else run


def rate_settings(found: RateSeries) -> list[tuple[str, str]]:
    """The model, the limits of the server, and the requests, without their rate."""
    one = first_run(found.runs[0])
    of = (("prompt", one.load.prompt), ("output", one.load.generate))
    lengths = " and ".join(f"{units.digits(float(n.mean()))} {name}" for name, n in of)
    pairs = [pair for pair in simulation_settings(one) if pair[0] in _PAIRS]
    return [*pairs, ("requests", f"{len(one.load):,} per run; on average {lengths} tokens")]


def rows(found: RateSeries) -> Iterator[dict[str, Any]]:
    """The latencies and rates at each request rate, as means over replications; `overloaded` is a share of
    the runs.
    """
    for run in found.runs:
        one = isinstance(run, Replications)
        each = run.runs if isinstance(run, Replications) else (run,)
        row: dict[str, Any] = {"rate": sum(float(r.rate or 0) for r in each) / len(each)}
        for name in each[0].latencies:
            of: Any = run.latencies.get(name)
            for stat in LatencySpread._fields:
                known = None if of is None else of[stat].mean if one else getattr(of, stat)
                row[f"{name}_{stat}_s"] = known
        figures: Any = run.figures if isinstance(run, Replications) else None
        for name in RATES:
            own = figures.get(name) if one else getattr(run, name)
            row[name] = own.mean if one and own is not None else own
        over = [r.overloaded for r in each if r.overloaded is not None]
        yield {**row, "overloaded": sum(over) / len(over) if over else None}


@table.table_of(of=RateSeries)
def rates(found: RateSeries) -> Group:
    """The capacity, a line for each rate, and the settings of the simulation."""
    stats = (f"{of.upper()} {stat}" for of in _SHOWN for stat in ("p50", "p99"))
    heads = ("requests/s", *stats, "tokens/s", "")
    shown = table.columns(heads, heads[:-1], gap=1)
    for row in rows(found):
        times = [row[f"{of}_{stat}_s"] for of in _SHOWN for stat in ("p50", "p99")]
        said = ["–" if t is None else units.time(t) for t in times]
        over = row["overloaded"]
        state = "" if over is None else "overloaded" if over >= 0.5 else "stable"
        table.add(shown, (units.digits(row["rate"]), *said, units.digits(row["output_tokens_per_s"]), state))
    stable = sum(row["largest_rate"] for row in rows(found)) / len(found.runs)
    one = first_run(found.runs[0])
    head = [("server", server_text(one)), ("capacity", f"{units.digits(stable)} requests/s")]
    return table.stack(table.pairs(head), "", shown, "", table.pairs(rate_settings(found)))
