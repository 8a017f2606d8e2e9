"""Plans as text for a terminal, CSV, Markdown and HTML.

Order of the file: the Pareto front drawn with characters (`chart`); one hour of traffic on the first plan
(`hourly_sections`); and the report of `llmir plan` (`plans`): answer, plans, reasons, assumptions, front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import log
from typing import TYPE_CHECKING, Any

from llmir.backends.search.plan import (
    BindingLimit,
    Candidate,
    HourlyCost,
    LosingReason,
    NearestStructure,
    Plans,
    PoolCandidate,
    decode_step,
    device_refusal,
    nearest_structure,
)
from llmir.backends.search.structures import Structure
from llmir.backends.search.traffic import BUDGET, DEFAULT_STATISTIC, SEEDS
from llmir.backends.search.trial import ERROR, MISSES, RATE_ERROR, UNIT
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.step.facts import precision
from llmir.base.errors import InputError
from llmir.base.formats import exporter
from llmir.hw.device import Device

from . import json, table, units, wording
from .sections import Section, section_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

# Pareto front in characters

WIDTH, HEIGHT = 66, 9
MARKS = "○◇□△▽◁▷"  # marks of the devices, in order
BEST = "✓"


def chart(plans: Plans) -> Iterator[Text]:
    """The Pareto front of each device and the simulated first plan; the axis of tokens/s per user is
    logarithmic.
    """
    from rich.text import Text

    users, gpus = plans.tokens_per_s_user[plans.front], plans.tokens_per_s_device[plans.front]
    of = [plans.structures[int(i)].device.name for i in plans.points.structure[plans.front]]
    best = plans.best
    points = list(zip(users.tolist(), gpus.tolist(), of, strict=True))
    every = points + ([(best.tokens_per_s_user, best.tokens_per_s_device, "")] if best else [])
    low, high = min(x for x, *_ in every), max(x for x, *_ in every)
    top = max(y for _, y, _ in every)
    names = list(dict.fromkeys(of))
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(x: float, y: float, mark: str) -> None:
        column = round((WIDTH - 1) * log(x / low) / log(high / low)) if high > low else 0
        cells[HEIGHT - 1 - round((HEIGHT - 1) * y / top)][column] = mark

    for x, y, device in points:
        put(x, y, MARKS[names.index(device) % len(MARKS)])
    if best:
        put(best.tokens_per_s_user, best.tokens_per_s_device, BEST)
    title = Text("Pareto front of each device", style="bold")
    title.append(" at full load, by closed form: tokens/s per GPU against tokens/s per user (log scale)", "")
    yield title
    for i, line in enumerate(cells):
        label = units.digits(top * (HEIGHT - 1 - i) / (HEIGHT - 1)) if i % 2 == 0 else ""
        yield Text(f"{label:>7} ┤{''.join(line).rstrip()}" if label else f"{'':>7} │{''.join(line).rstrip()}")
    yield Text(f"{'':>8}└{'─' * WIDTH}")
    middle = units.digits((low * high) ** 0.5)
    ends = units.digits(low), units.digits(high)
    yield Text(f"{'':>9}{ends[0]}{middle:^{WIDTH - len(ends[0]) - len(ends[1])}}{ends[1]}")
    legend = [f"{MARKS[i % len(MARKS)]} {device}" for i, device in enumerate(names)]
    legend += [f"{BEST} the first plan, at the requested rate"] if best else []
    yield Text(f"{'':>9}{'   '.join(legend)}")


# One hour of traffic


def hourly_sections(plans: Plans) -> list[str]:
    """The requests, latencies, queue and KV blocks of the simulated hour; empty if no plan meets the
    limits.
    """
    try:
        found = plans.hour
    except InputError as error:
        return [f"no hour is simulated: {error}"]
    return [] if found is None else [_came(found), _answered(found), _kv_usage(found)]


def hourly_misses(plans: Plans) -> list[str]:
    """The limits that the simulated hour misses, although the runs of the search met them."""
    try:
        found = plans.hour
    except InputError:
        return []
    if found is None or not (found.missed or found.grows):
        return []
    limits = zip(("ttft", "tpot"), plans.traffic.limits, strict=True)
    missed = [
        f"{name.upper()} {of.of} is {units.time(found.missed[name])}, above {units.time(of.seconds)}"
        for name, of in limits
        if of and name in found.missed
    ]
    missed += ["the queue grows"] if found.grows else []
    return [
        f"in this hour {'; '.join(missed)}. One hour varies more than all runs of the search together; "
        f"--margin adds a reserve"
    ]


def _came(found: HourlyCost) -> str:
    plan, requests = found.candidate, found.simulation.load
    unit = "unit" if isinstance(plan, PoolCandidate) else "replica"
    one = "one" if found.replicas == 1 else f"{found.replicas:,}"
    its = "its" if found.replicas == 1 else "their"
    of = f" of {plan.replicas:,} {unit}s" if plan.replicas > 1 else f" {unit}"
    tokens = f"{units.count(found.output_tokens)} output tokens"
    share = "" if found.part == 1 else f", the first {units.percent(found.part)} of the hour"
    simulated = f"{one}{of} with {its} {_requests(len(requests))}{share} (seed {found.seed})"
    return f"one hour of traffic: {_requests(found.requests)}, {tokens}; simulated: {simulated}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _answered(found: HourlyCost) -> str:
    times = []
    for name, of in found.spreads.items():
        p50, p99, worst = map(units.time, (of.p50, of.p99, found.worst[name]))
        times.append(f"{name.upper()} p50 {p50}, p99 {p99}, worst {worst}")
    limited = any(found.candidate.traffic.limits)
    late = round((1 - found.within) * len(found.simulation.load))
    share = f"{units.share_met(found.within)} of requests meet all limits, {late:,} do not"
    return "; ".join([*times, *([share if late else "all requests meet all limits"] if limited else [])])


def _kv_usage(found: HourlyCost) -> str:
    room, most = found.simulation.capacity.blocks, found.simulation.most_blocks
    waits = (
        f"queue for prefill: at most {_requests(found.most_waiting)}, for at most "
        f"{units.time(found.longest_queue_s)}"
    )
    blocks = f"KV blocks in use: at most {most:,} of {room:,} ({units.percent(most / room)})"
    return f"{waits}; {blocks}; preemptions: {f'{found.preemptions:,}' if found.preemptions else 'none'}"


# Report of a plan

NUMBERS = range(2, 7)  # columns that contain numbers
GOOD, BAD, QUIET = "green", "red", "bright_black"
LINES = 6  # reasons that a terminal shows
LIMITED = ("TTFT", "TPOT")


def headings(plans: Plans) -> tuple[str, ...]:
    """Headings of the columns; each latency is the statistic to which its limit applies, or the p99."""
    ttft, tpot = (of.of if of else DEFAULT_STATISTIC for of in plans.traffic.limits)
    return "", "plan", "GPUs", "$/h", f"TTFT {ttft}", f"TPOT {tpot}", "within", "why not"


def weights(structure: Structure) -> str:
    """The dtype of most weights, and other dtypes that were chosen: `bf16`, `fp8 kv fp8`."""
    types = structure.types
    return str(types._replace(weights=types.weights or precision(structure.program)["weights"] or ""))


def name(plans: Plans, candidate: Candidate) -> str:
    """A plan as text, `H100-SXM bf16 tp 2 × 16`; the dtype of weights is omitted if there is only one."""
    return _named(plans, candidate.structure, candidate.laid)


def _named(plans: Plans, s: Structure, laid: str) -> str:
    several = len({weights(s) for s in plans.structures}) > 1
    return " ".join((s.device.name, *([weights(s)] if several else []), laid))


def answer(plans: Plans) -> str:
    """The GPUs to order and why; or the statement that no plan meets the limits."""
    best, most = plans.best, plans.most_devices
    if best is None:
        few = "one GPU" if most == 1 else f"{most or 0:,} GPUs or fewer"
        return "no plan meets the limits" + ("" if most is None else f" with {few}")
    decided = "cheapest plan" if plans.priced else "fewest GPUs"
    return f"{decided}: {_order(best)}, {weights(best.structure)} weights"


def _order(candidate: Candidate) -> str:
    """`8 × H100-SXM as 4 replicas of tp 2`."""
    return f"{candidate.devices:,} × {candidate.structure.device.name} as {_laid(candidate)}"


def _laid(candidate: Candidate) -> str:
    """Text such as `7 replicas of tp 4`, or the servers of each pool."""
    if not isinstance(candidate, PoolCandidate):
        count = f"{candidate.replicas:,} replicas" if candidate.replicas > 1 else "one replica"
        return f"{count} of {candidate.structure.split}"
    sides = zip(("prefill", "decode"), candidate.servers, (candidate.reads, candidate.structure), strict=True)
    words = [f"{candidate.replicas * n:,} {side} of {of.split}" for side, n, of in sides]
    return f"{' and '.join(words)} over {candidate.link}"


def basis(plans: Plans) -> str:
    """Limits of the engine, the cost or the reason why plans are not ranked by cost, and parts of the model
    that are omitted.
    """
    left_out = wording.left_out_line(*(s.program for s in plans.structures))
    return "; ".join([_started(plans), *(f"{label}: {words}" for label, words in left_out)])


def _started(plans: Plans) -> str:
    best = plans.best
    if best is None and not plans.structures:
        return "no split of the model is possible, for the reasons below"
    if best is None and plans.priced:
        return "plans are ranked by cost, since all devices have a price"
    if best is None or not plans.priced:
        names = dict.fromkeys(s.device.name for s in plans.structures if s.device.price_per_hour_usd is None)
        unpriced = " and ".join(names) or "some device"
        return f"ranked by GPU count: no price is known for {unpriced}; set one with --price"
    hourly, million = (units.digits(usd or 0) for usd in (best.cost_per_hour_usd, best.cost_usd_per_mtok))
    return f"${hourly} per hour, ${million} per million output tokens"


def sizes(plans: Plans) -> list[str]:
    """The largest batch and step of each replica of the first plan."""
    best = plans.best
    if best is None:
        return []
    pooled = isinstance(best, PoolCandidate)
    decode, prefill = (" on each decode server", "prefill ") if pooled else ("", "")
    each = "" if pooled or best.replicas == 1 else "each replica: "
    return [f"{each}at most {best.batch:,} requests at once{decode}, {best.chunk:,} tokens per {prefill}step"]


def energy(plans: Plans) -> list[str]:
    """Upper limit of the power and energy of the first plan, if the power of its device is known."""
    best = plans.best
    if best is None or best.spent.watts is None:
        return []
    kw, joules = units.digits(best.spent.watts / 1e3), wording.joules(best.energy_j_per_token)
    return [f"at most {kw} kW and {joules} per output token, with all GPUs at their power limit"]


SETTINGS = {  # names of changed settings
    "chunked_prefill": "chunked prefill",
    "max_batched_tokens": "tokens per step",
    "max_num_seqs": "requests at once",
    "memory_utilization": "memory utilization",
}


def settings(candidate: Candidate) -> list[str]:
    """The settings of the engine that a plan changes, with their defaults."""
    changed = [
        f"{SETTINGS[name]} {_setting(value)} (default {_setting(default)})"
        for name, (default, value) in candidate.changed_settings.items()
    ]
    return [f"changed engine settings: {', '.join(changed)}"] if changed else []


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else units.digits(value)


def doubts(plans: Plans) -> list[str]:
    """Limits that the plan meets, and differences of cost, by less than the error of the estimated times."""
    best = plans.best
    if best is None:
        return []
    lines = []
    for i, limit in enumerate(plans.traffic.limits):
        if limit and best.within_error(i):
            longer, error = best.trial.limited(i) * (1 + best.errors[i]), units.percent(best.errors[i])
            lines.append(
                f"{LIMITED[i]} may miss its limit: with times {error} longer (the error of the estimate), "
                f"it is {units.time(longer)}, above {units.time(limit.seconds)}"
            )
    if lines:
        safe, margin = plans.sturdy, f"{max(best.errors):.2f}"
        lines.append(
            f"cheapest plan that meets the limits with the error added: {_order(safe)}; "
            f"choose it, or search with --margin {margin}"
            if safe
            else "no plan meets the limits with the error added; allow more GPUs or a longer limit"
        )
    if plans.close:
        numbers = ", ".join(str(plans.shown.index(each) + 1) for each in plans.close)
        which = f"plan{'s' if len(plans.close) > 1 else ''} {numbers}"
        lines.append(
            f"too close to call: the costs of the first plan and of {which} differ by no more than the error "
            f"of the estimates; measure them on your servers (--emit writes a benchmark)"
        )
    return lines


def goals(plans: Plans) -> list[str]:
    """The best plan by each other goal."""
    figures: dict[str, tuple[str, Callable[[Candidate], str]]] = {
        "ttft": ("lowest TTFT (p99)", lambda c: units.time(c.trial.ttft_s.p99)),
        "tpot": ("lowest TPOT (p99)", lambda c: units.time(c.trial.tpot_s.p99)),
        "tokens_per_s_device": ("most tokens/s per GPU", lambda c: units.digits(c.tokens_per_s_device)),
    }
    number = {id(each): f"plan {n}" for n, each in enumerate(plans.shown, 1)}
    number |= {id(plans.best): "the first plan"}
    said = [
        f"{what}: {number[id(plans.goals[name])]}, {figure(plans.goals[name])}"
        for name, (what, figure) in figures.items()
        if name in plans.goals
    ]
    return ["; ".join(said)] if len(plans.ranked) > 1 else []


def latencies(plans: Plans) -> list[Section]:
    """The latencies of the first plan next to their limits; empty without a plan."""
    best, traffic = plans.best, plans.traffic
    if best is None:
        return []
    binding = plans.why(best).constraint.upper()
    statistics = [limit.of if limit else DEFAULT_STATISTIC for limit in traffic.limits]
    same, rows = set(statistics) == {DEFAULT_STATISTIC}, []
    for i, (what, limit, of) in enumerate(zip(LIMITED, traffic.limits, statistics, strict=True)):
        spread, half = (best.trial.ttft_s, best.trial.tpot_s)[i], best.trial.half_widths[i].p99
        used, half = (best.trial.limited(i), best.trial.half_width(i)) if limit else (spread.p99, half)
        figure = f"{'' if same else f'{of} '}{units.time(used)} ± {units.time(half)}"
        allowed = units.time(limit.seconds) if limit else "none"
        mark = "← tightest" if limit and what == binding else ""
        rows.append((what, units.time(spread.p50), figure, allowed, mark))
    heading = f"at {units.digits(traffic.rate)} requests/s"
    return [Section((heading, "p50", DEFAULT_STATISTIC if same else "limited", "limit", ""), rows)]


def traffic_lines(plans: Plans) -> list[str]:
    """The share of requests within all limits, and the share of the largest stable rate that the traffic
    uses.
    """
    best, traffic = plans.best, plans.traffic
    if best is None:
        return []
    stable = f"stable up to {units.digits(plans.largest_rate or 0)} requests/s"
    if traffic.headroom:
        part = units.percent(traffic.rate / plans.largest_rate) if plans.largest_rate else ""
        stable += (
            f"; the traffic uses {part} of it (at most {units.percent(1 - traffic.headroom)}, --headroom)"
        )
    within = (
        f"{units.share_met(best.trial.within)} of requests meet all limits; " if any(traffic.limits) else ""
    )
    return [within + stable]


def assumptions(plans: Plans) -> list[str]:
    """The simulations, precision, errors and prices of the results."""
    traffic, best = plans.traffic, plans.best
    of = dict.fromkeys(limit.of for limit in (traffic.ttft, traffic.tpot) if limit)
    none = "" if plans.shown else "; no plan was worth a simulation"
    runs = f"{SEEDS} or more simulated runs of {traffic.requests:,} or more requests, with Poisson arrivals"
    limited = f"limits apply to the {' and '.join(of)} of requests, in {runs}" if of else f"simulated: {runs}"
    looks = not ROUTERS[traffic.router].blind
    one = "one of the equal replicas is simulated, with its share of the requests"
    together = f"up to {UNIT} replicas are simulated together, with their share of the requests"
    lines = [f"{limited}; {together if looks else one} ({traffic.router} router){none}"]
    if of:
        lines.append(
            f"each verdict has a confidence of {units.percent(1 - ERROR)}, or is undecided after "
            f"{BUDGET} runs (fewer if runs are longer); ± is the confidence interval"
        )
    if traffic.margin:
        change = "longer" if traffic.margin > 0 else "shorter"
        lines.append(
            f"all times are {units.percent(abs(traffic.margin))} {change} than estimated (--margin), "
            f"except in the hour of traffic"
        )
    if plans.structures:
        stated = dict.fromkeys(weights(s) for s in plans.structures)
        roles = [role for role in ("weights", "kv") if any(getattr(s.types, role) for s in plans.structures)]
        chosen = (dict.fromkeys(getattr(s.types, role) for s in plans.structures) for role in roles)
        allowed = [f"--{r}: {', '.join(filter(None, of))}" for r, of in zip(roles, chosen, strict=True)]
        given = f"searched: {'; '.join(allowed)}" if allowed else "as in the checkpoint"
        lines.append(f"precision: {', '.join(stated)}, {given}")
    if best and plans.drafts and best.draft_share is not None:
        share = units.percent(best.draft_share)
        lines.append(f"first plan: {share} of a step generates drafts, and the rest verifies them")
    errors = []
    for device, candidate in {c.structure.device.name: c for c in plans.shown}.items():
        step = decode_step(candidate)
        errors.append(f"{device} {wording.basis_text(step)}{wording.error_band(step.error)}")
    if errors:
        lines.append(f"times: {'; '.join(errors)}")
    priced = dict.fromkeys(c.structure.device for c in plans.shown if c.cost_per_hour_usd is not None)
    if priced:
        lines.append(f"prices: {'; '.join(map(_price_source, priced))}")
    lines += dict.fromkeys(note for each in plans.shown for note in decode_step(each).plan.notes)
    if best and best.ttft_s < float("inf"):
        ttft, tpot = units.time(best.ttft_s), units.time(best.tpot_s)
        mean = units.time(best.trial.ttft_s.mean), units.time(best.trial.tpot_s.mean)
        lines.append(
            f"first plan by closed form: mean TTFT {ttft} (simulated: {mean[0]}), "
            f"mean TPOT {tpot} (simulated: {mean[1]})"
        )
    return lines


def _price_source(device: Device) -> str:
    """The price list and its date, or another source of the price: `H100-SXM Lambda, 2026-09`."""
    parts = device.source("price_per_hour_usd").split(", ")
    return f"{device.name} {', '.join(dict.fromkeys((parts[0], parts[-1])))}"


def row(plans: Plans, number: int, candidate: Candidate) -> tuple[str, ...]:
    """The row of a plan."""
    trial, hourly = candidate.trial, candidate.cost_per_hour_usd
    spreads = (trial.ttft_s, trial.tpot_s)
    limits = zip(candidate.traffic.limits, spreads, strict=True)
    times = [trial.limited(i) if limit else spread.p99 for i, (limit, spread) in enumerate(limits)]
    return (
        "✓" if candidate is plans.best else str(number),
        name(plans, candidate),
        f"{candidate.devices:,}",
        "–" if hourly is None else units.digits(hourly),
        *map(units.time, times),
        units.share_met(trial.within),
        short_reason(plans, candidate),
    )


def short_reason(plans: Plans, candidate: Candidate) -> str:
    """Why a plan is not the first, as the text of a cell: `+34% cost`, `misses TPOT`; empty for the first
    plan.

    `reason` returns the details.
    """
    if candidate is plans.best:
        return ""
    if candidate is plans.first_like(candidate):
        return "no price"
    why = plans.why(candidate)
    if why.constraint in ("ttft", "tpot"):
        i = ("ttft", "tpot").index(why.constraint)
        return f"{'misses' if candidate.trial.verdict_on(i) == MISSES else 'undecided:'} {LIMITED[i]}"
    if why.than is None:
        overload = "overloaded" if candidate.overloaded else "undecided: rate"
        return overload if why.constraint == "rate" else ""
    what = "cost" if why.constraint == "cost" else "GPUs"
    return f"+{units.percent(why.by)} {what}" if why.by else f"equal {what}"


def reason(plans: Plans, why: BindingLimit, candidate: Candidate) -> str:
    """Why a plan is not the first, as a sentence."""
    op = f"{why.op} is {units.percent(why.share)} of a {why.step} step"
    best = plans.first_like(candidate)
    if candidate is best is not plans.best:
        device = candidate.structure.device.name
        return (
            f"no price is known for {device} (--price); it has the fewest GPUs of the plans without a price"
        )
    if why.constraint in ("ttft", "tpot"):
        return _latency_reason(plans, why, candidate, op)
    if why.than is None:
        overloaded = _overloaded(candidate) if why.constraint == "rate" else "no limit binds"
        return f"{overloaded}; {op}{decision(plans, candidate)}"
    assert best is not None
    if why.constraint == "cost":
        hourly = [units.digits(c.cost_per_hour_usd or 0) for c in (candidate, best)]
        more = f"costs {units.percent(why.by)} more (${hourly[0]} instead of ${hourly[1]} per hour)"
    else:
        more = f"needs {units.percent(why.by)} more GPUs ({candidate.devices:,} instead of {best.devices:,})"
    if why.constraint == "cost" and candidate.devices <= best.devices and why.by:
        each = [units.digits(c.structure.device.price_per_hour_usd or 0) for c in (candidate, best)]
        dearer = f"each GPU costs ${each[0]} per hour instead of ${each[1]}"
        return f"{more}: {dearer}{decision(plans, candidate)}"
    if not why.by:
        same = "has an equal cost" if why.constraint == "cost" else "needs as many GPUs"
        users = [units.digits(c.tokens_per_s_user) for c in (candidate, best)]
        slower = f"each user gets {users[0]} tokens/s instead of {users[1]}"
        more = f"{same}, and {slower if users[0] != users[1] else 'each user gets equally many tokens/s'}"
    if isinstance(best, PoolCandidate) and not isinstance(candidate, PoolCandidate):
        more += "; its decode steps wait for the prefill of other requests"
    return f"{more}{decision(plans, candidate)}"


FEWER = {  # effect of fewer replicas of a plan, by the constraint because of which the plan is not chosen
    "rounding": "a fraction of a replica would be enough, but the number of replicas is whole",
    "kv_capacity": "fewer replicas have too few KV-cache blocks",
    "max_num_seqs": "fewer replicas run too few requests at once (--max-num-seqs)",
    "headroom": "fewer replicas leave too little headroom (--headroom)",
    "rate": "fewer replicas cannot serve the rate within the limits",
}


def decision(plans: Plans, candidate: Candidate) -> str:
    """The constraint because of which a plan is not chosen, and the smallest change with which it would
    be.
    """
    why = plans.rejection(candidate)
    if why is None:
        return ""
    parts = []
    if candidate.meets and why.statistic:
        limit = getattr(plans.traffic, why.constraint)
        at = f"{why.statistic}, {units.time(limit.seconds)}"
        parts = [f"fewer replicas miss the {why.constraint.upper()} limit ({at})"]
    elif why.constraint in FEWER and (candidate.meets or why.constraint != "rate"):
        parts = [FEWER[why.constraint] if candidate.meets else FEWER[why.constraint].replace("fewer", "the")]
    return "; ".join(["", *parts, *_change(why, candidate)])


def _change(why: LosingReason, candidate: Candidate) -> list[str]:
    """The smallest change with which a plan wins, or with which it meets its limits."""
    if why.change is None:
        return []
    what, now, needed, replicas, op = why.change
    split = candidate.structure.split
    wins = f"it would win as {split} × {replicas:,}" if candidate.meets else "it would meet the limits"
    if what == "times":
        return [f"{wins} if all times were {units.percent(now - needed)} shorter"]
    if what == "op":
        return [f"{wins} if each {op} op took {units.percent(now - needed)} less time"]
    if what in ("ttft", "tpot"):
        return [f"{wins} with --max-{what} {why.statistic}:{units.time(needed).replace(' ', '')}"]
    return [f"it would win at ${units.digits(needed)} per GPU-hour instead of ${units.digits(now)}"]


def _latency_reason(plans: Plans, why: BindingLimit, candidate: Candidate, op: str) -> str:
    """The time by which a plan exceeds a limit, or stays below it."""
    name = why.constraint.upper()
    if why.by <= 0:
        return f"the upper end of the {name} interval is {units.time(-why.by)} below the limit; {op}"
    i = LIMITED.index(name)
    limit, used = plans.traffic.limits[i], candidate.trial.limited(i)
    assert limit is not None
    value = f"{name} {limit.of} is {units.time(used)}"
    if candidate.trial.verdict_on(i) == MISSES:
        result = f"{value}, {units.time(used - limit.seconds)} above the limit of {units.time(limit.seconds)}"
    else:
        runs = f"undecided after {len(candidate.trial.runs)} runs"
        half, most = (units.time(x) for x in (candidate.trial.half_width(i), limit.seconds))
        result = f"{runs}: {value} ± {half}, and the limit is {most}"
    full = f"; at most {candidate.batch:,} requests run at once" if why.waiting else ""
    return f"{result}; {op}{full}{decision(plans, candidate)}"


def _grouped(whys: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Each reason once, with all plans to which it applies, in order of first appearance."""
    found: dict[str, list[str]] = {}
    for why, of in whys:
        found.setdefault(why, []).append(of)
    return [*found.items()]


def _several(names: list[str]) -> str:
    """The first name and the number of other names."""
    return f"{names[0]}:" if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more:"


def _overloaded(candidate: Candidate) -> str:
    answered, comes = map(units.digits, (candidate.largest_rate or 0.0, candidate.traffic.rate))
    if not candidate.overloaded:
        rate = f"{answered} ± {units.percent(RATE_ERROR)} requests/s"
        return f"undecided: serves at most {rate}, and the rate is {comes}"
    return f"serves at most {answered} of {comes} requests/s, with {candidate.batch:,} requests at once"


def misses(plans: Plans) -> list[str]:
    """The plan that is closest to the limits, and the limit that it misses."""
    if plans.missed:
        closest = plans.missed[0]
        return [f"the closest plan is {name(plans, closest)}: {reason(plans, plans.why(closest), closest)}"]
    if near := nearest_structure(plans):
        return [f"the closest plan is {_nearest_plan(plans, near)}"]
    first = [f"the closest plan is {of}: {refusal.why}" for of, refusal in plans.refused.items()][:1]
    return first or ["no plan meets the limits"]


def devices_without_plan(plans: Plans) -> dict[str, str]:
    """The reason why no plan of a device was simulated, by device."""
    return {name: _no_plan(plans, name) for name, best in plans.by_device.items() if best is None}


def _no_plan(plans: Plans, device: str) -> str:
    refusal = device_refusal(plans, device)
    if isinstance(refusal, NearestStructure):
        return f"no plan meets the limits; the closest is {_nearest_plan(plans, refusal)}"
    return refusal.why if refusal else "no number of replicas serves the rate"


def _nearest_plan(plans: Plans, near: NearestStructure) -> str:
    """The plan that exceeds the limits least, by closed form."""
    at_once = "one request" if near.batch == 1 else f"{near.batch:,} requests"
    used = f"{near.constraint.upper()} is {units.time(near.seconds)} with {at_once} at a time (closed form)"
    over = f"{units.time(near.seconds - near.limit)} above the limit of {units.time(near.limit)}"
    op = f"{near.op} is {units.percent(near.share)} of a {near.step} step"
    return f"{_named(plans, near.structure, str(near.structure.split))}: {used}, {over}; {op}"


def counts(plans: Plans) -> str:
    """The numbers of plans that were estimated, simulated and refused."""
    structures = len({(s.device.name, s.types, s.split) for s in plans.structures})
    points = plans.points.rate.size
    few, many = len(plans.refused), f"{structures:,} split{'' if structures == 1 else 's'}"
    none = f"{few:,} splits are impossible or need" if few > 1 else "one split is impossible or needs"
    refused = f"; {none} more GPUs" if few else ""
    return (
        f"searched: {points:,} plans of {many} by closed form, {len(plans.shown)} of them simulated{refused}"
    )


@table.table_of(of=Plans)
def plans(plans: Plans) -> Group:
    """The answer, the plans, the reason why each other plan loses, the assumptions, and the front."""
    from rich.text import Text

    def quiet(line: str) -> Text:
        return Text(line, style=QUIET)

    head = Text(answer(plans), style=f"bold {GOOD if plans.best else BAD}")
    changed = settings(plans.best) if plans.best else []
    parts: list[Any] = [head, basis(plans), *sizes(plans), *changed, *energy(plans)]
    for section in latencies(plans):
        parts += ["", section_table(section), *traffic_lines(plans)]
        parts += _tightest(plans)
    parts += ["", *found] if (found := doubts(plans)) else []
    heads = headings(plans)
    shown = table.columns(heads, (heads[i] for i in NUMBERS), gap=1)
    for number, each in enumerate(plans.shown, 1):
        table.add(shown, row(plans, number, each), styles=_styles(plans, each))
    whys = [(n, each) for n, each in enumerate(plans.shown, 1) if each is not plans.best]
    same = _grouped((reason(plans, plans.why(each), each), str(n)) for n, each in whys)
    lines = [(f" {', '.join(numbers)}", why) for why, numbers in same]
    lines += [(" –", f"{device}: {why}") for device, why in devices_without_plan(plans).items()]
    closest = _grouped((refusal.why, name) for name, refusal in plans.refused.items())
    lines += [(" –", f"{_several(names)} {why}") for why, names in closest][: max(0, LINES - len(lines))]
    if plans.shown:
        parts += ["", shown]
    parts += ["", *goals(plans)] if goals(plans) else []
    if lines:
        parts += ["", Text("why not", style="bold"), table.pairs(lines)]
    parts += (
        ["", *hourly_sections(plans), *(Text(line, style=BAD) for line in hourly_misses(plans))]
        if plans.best
        else []
    )
    parts += ["", Text("how it was found", style="bold"), *map(quiet, assumptions(plans))]
    if plans.front.size:
        parts += ["", *chart(plans)]
    return table.stack(*parts, "", counts(plans), *map(quiet, plans.notes))


def _styles(plans: Plans, candidate: Candidate) -> list[str]:
    """The first plan is green; latencies above their limit are red."""
    if candidate is plans.best:
        return [f"bold {GOOD}"] * len(headings(plans))
    late = [
        BAD if limit and candidate.trial.upper(i) > limit.seconds else ""
        for i, limit in enumerate(plans.traffic.limits)
    ]
    return ["", "", "", "", *late, BAD if any(late) else ""]


def _tightest(plans: Plans) -> list[str]:
    """How far the first plan is from its tightest limit, if a latency decides."""
    best = plans.best
    if best is None or plans.why(best).constraint not in ("ttft", "tpot"):
        return []
    return [reason(plans, plans.why(best), best)]


def _rows(plans: Plans) -> list[dict[str, Any]]:
    found = []
    for candidate in plans.shown:
        flat: dict[str, Any] = {}
        for key, value in candidate.to_dict().items():
            if isinstance(value, dict):
                for inner, part in value.items():
                    more = part.items() if isinstance(part, dict) else [("", part)]
                    flat |= {f"{key}_{inner}_{stat}".rstrip("_"): each for stat, each in more}
            else:
                flat[key] = value
        found.append({**flat, "why": reason(plans, plans.why(candidate), candidate)})
    return found


@exporter("csv", ".csv", of=Plans)
def to_csv(plans: Plans) -> str:
    """A line for each simulated plan, in SI units."""
    return json.to_csv(_rows(plans))


def _report_parts(plans: Plans) -> tuple[list[str], list[Section], list[str]]:
    """The parts of a report: the answer, its tables, and the lines that explain how it was found."""
    rows = [row(plans, n, each) for n, each in enumerate(plans.shown, 1)]
    whys = [(str(n), reason(plans, plans.why(c), c)) for n, c in enumerate(plans.shown, 1)]
    whys += [("–", f"{device}: {why}") for device, why in devices_without_plan(plans).items()]
    changed = settings(plans.best) if plans.best else []
    first = [answer(plans), basis(plans), *sizes(plans), *changed, *energy(plans), *traffic_lines(plans)]
    tables = [*latencies(plans)]
    if rows:
        tables += [Section(headings(plans), rows, NUMBERS), Section(("", "why"), whys, 2)]
    found = [*goals(plans), *hourly_sections(plans), *hourly_misses(plans), *assumptions(plans)]
    return [*first, *doubts(plans)], tables, found


@exporter("md", ".md", of=Plans)
def to_markdown(plans: Plans) -> str:
    """The report as text."""
    first, tables, found = _report_parts(plans)
    parts = ["\n\n".join(map(json.md, first)) + "\n"]
    parts += [json.to_markdown(s.headings, s.rows, s.numeric) for s in tables]
    return "\n".join([*parts, "\n\n".join(map(json.md, found)) + "\n"])


@exporter("html", ".html", of=Plans)
def to_html(plans: Plans) -> str:
    """A report as HTML."""
    first, tables, found = _report_parts(plans)
    lines = [table.html(("", ""), [("", line) for line in part]) for part in (first, found)]
    return "".join((lines[0], *(table.html(s.headings, s.rows, s.numeric) for s in tables), lines[1]))
