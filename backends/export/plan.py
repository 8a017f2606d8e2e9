"""Plans as text for a terminal, CSV, Markdown and HTML.

Order of the file: the Pareto front drawn in characters (`chart`), one hour of traffic on the first plan
(`hourly_sections`), and the report of `llmir plan` (`plans`): answer, assumptions, plans, reasons, front.
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
from llmir.backends.search.traffic import BUDGET, DEFAULT_STATISTIC, SEEDS, LatencyLimit
from llmir.backends.search.trial import ERROR, MISSES, RATE_ERROR, UNIT
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.step.facts import precision, precision_text
from llmir.base.errors import InputError
from llmir.base.formats import exporter
from llmir.hw.device import Device

from . import json, table, units, wording

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

# Pareto front in characters

WIDTH, HEIGHT = 66, 9
MARKS = "○◇□△▽◁▷"  # of the devices, in their order
BEST = "✓"


def chart(plans: Plans) -> Iterator[Text]:
    """The front of each device, and the first plan as it is simulated; a user's tokens on a log scale."""
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
    title = Text("tokens/s a GPU", style="bold")
    title.append(" against tokens/s a user (log): the front of each device, saturated, by closed form", "")
    yield title
    for i, line in enumerate(cells):
        label = units.digits(top * (HEIGHT - 1 - i) / (HEIGHT - 1)) if i % 2 == 0 else ""
        yield Text(f"{label:>7} ┤{''.join(line).rstrip()}" if label else f"{'':>7} │{''.join(line).rstrip()}")
    yield Text(f"{'':>8}└{'─' * WIDTH}")
    middle = units.digits((low * high) ** 0.5)
    ends = units.digits(low), units.digits(high)
    yield Text(f"{'':>9}{ends[0]}{middle:^{WIDTH - len(ends[0]) - len(ends[1])}}{ends[1]}")
    legend = [f"{MARKS[i % len(MARKS)]} {device}" for i, device in enumerate(names)]
    legend += [f"{BEST} the first plan, at the rate asked for"] if best else []
    yield Text(f"{'':>9}{'   '.join(legend)}")


# One hour of traffic


def hourly_sections(plans: Plans) -> list[str]:
    """What came, how it was answered, and what the servers held; nothing where no plan meets the limits."""
    try:
        found = plans.hour
    except InputError as error:
        return [f"no hour is simulated: {error}"]
    return [] if found is None else [_came(found), _answered(found), _kv_usage(found)]


def hourly_misses(plans: Plans) -> list[str]:
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
        f"in this hour {'; '.join(missed)}: one hour varies more than the runs that chose the plan; "
        f"--margin leaves room for it"
    ]


def _came(found: HourlyCost) -> str:
    plan, requests = found.candidate, found.simulation.load
    unit = "unit" if isinstance(plan, PoolCandidate) else "replica"
    one = "one" if found.replicas == 1 else f"{found.replicas:,}"
    is_, its = ("is", "its") if found.replicas == 1 else ("are", "their")
    of = f" of {plan.replicas:,} {unit}s {is_}" if plan.replicas > 1 else f" {unit} is"
    tokens = f"{units.count(found.output_tokens)} output tokens"
    share = "" if found.part == 1 else f", the first {units.percent(found.part)} of the hour"
    simulated = f"{one}{of} simulated, with {its} {_requests(len(requests))}{share} (seed {found.seed})"
    return f"an hour: {_requests(found.requests)}, {tokens}; {simulated}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _answered(found: HourlyCost) -> str:
    times = []
    for name, of in found.spreads.items():
        p50, p99, worst = map(units.time, (of.p50, of.p99, found.worst[name]))
        times.append(f"{name.upper()} p50 {p50}, p99 {p99}, worst {worst}")
    limited = any(found.candidate.traffic.limits)
    late = round((1 - found.within) * len(found.simulation.load))
    share = f"{units.share_met(found.within)} within all limits, {late:,} late"
    return "; ".join([*times, *([share if late else "all within all limits"] if limited else [])])


def _kv_usage(found: HourlyCost) -> str:
    room, most = found.simulation.capacity.blocks, found.simulation.most_blocks
    waits = (
        f"waiting to be read: {found.most_waiting:,} at most, {units.time(found.longest_queue_s)} at longest"
    )
    blocks = f"KV blocks: {most:,} of {room:,} at most ({units.percent(most / room)})"
    return f"{waits}; {blocks}; preemptions: {f'{found.preemptions:,}' if found.preemptions else 'none'}"


# Report of a plan

NUMBERS = range(2, 9)  # columns of numbers
GOOD, BAD, QUIET = "green", "red", "bright_black"
LINES = 6  # reasons that a terminal shows
LIMITED = ("TTFT", "TPOT")


def headings(plans: Plans) -> tuple[str, ...]:
    """Of the columns: beside the p99 stands what a limit is of, else the p50."""
    ttft, tpot = (
        of.of if of and of.of != DEFAULT_STATISTIC else "p50"
        for of in (plans.traffic.ttft, plans.traffic.tpot)
    )
    return "", "plan", "GPUs", "$/h", f"TTFT {ttft}", "p99", f"TPOT {tpot}", "p99 ", "within"


def weights(structure: Structure) -> str:
    """The type of most weights, and other types that were chosen: `bf16`, `fp8 kv fp8`."""
    types = structure.types
    return str(types._replace(weights=types.weights or precision(structure.program)["weights"] or ""))


def name(plans: Plans, candidate: Candidate) -> str:
    """`H100-SXM bf16 tp 2 × 16`; without the type of weights where there is one."""
    return _named(plans, candidate.structure, candidate.laid)


def _named(plans: Plans, s: Structure, laid: str) -> str:
    several = len({weights(s) for s in plans.structures}) > 1
    return " ".join((s.device.name, *([weights(s)] if several else []), laid))


def answer(plans: Plans) -> str:
    """What to order, and by what it was chosen; or that nothing does."""
    best, most = plans.best, plans.most_devices
    if best is None:
        few = "one GPU" if most == 1 else f"{most or 0:,} GPUs or fewer"
        return "no plan meets the limits" + ("" if most is None else f" with {few}")
    s, decided = best.structure, "least cost" if plans.priced else "fewest GPUs"
    types = precision_text(s.program, s.model)
    stated = ", ".join(types) if len(types) > 1 else f"weights {weights(s)}"
    return f"{decided}: {_order(best)}, {stated}"


def _order(candidate: Candidate) -> str:
    """`8 × H100-SXM as 4 replicas of tp 2`."""
    return f"{candidate.devices:,} × {candidate.structure.device.name} as {_laid(candidate)}"


def _laid(candidate: Candidate) -> str:
    """`7 replicas of tp 4`, or of pools their servers."""
    if not isinstance(candidate, PoolCandidate):
        count = f"{candidate.replicas:,} replicas" if candidate.replicas > 1 else "one replica"
        return f"{count} of {candidate.structure.split}"
    sides = zip(("prefill", "decode"), candidate.servers, (candidate.reads, candidate.structure), strict=True)
    words = [f"{candidate.replicas * n:,} {side} of {of.split}" for side, n, of in sides]
    return f"{' and '.join(words)} over {candidate.link}"


def basis(plans: Plans) -> str:
    """How to start the engine, what it costs or why cost does not decide, and what no figure counts."""
    left_out = wording.left_out_line(*(s.program for s in plans.structures))
    return "; ".join([_started(plans), *(f"{label}: {words}" for label, words in left_out)])


def _started(plans: Plans) -> str:
    best = plans.best
    sizes = ""
    if best:
        pooled = isinstance(best, PoolCandidate)
        servers = (" a decode server", "prefill ") if pooled else ("", "")
        each = "" if pooled or best.replicas == 1 else "each of "
        sizes = (
            f"{each}up to {best.batch:,} requests at once{servers[0]}, "
            f"{servers[1]}steps of {best.chunk:,} tokens; "
        )
    if best is None and not plans.structures:
        return "no split of the model can be, as the reasons below say"
    if not plans.priced:
        names = dict.fromkeys(s.device.name for s in plans.structures if s.device.price_per_hour_usd is None)
        return f"{sizes}not by cost: no price is known of {' and '.join(names) or 'some device'} (--price)"
    if best is None:
        return "all devices have a price, so that the least cost would decide"
    hourly, million = (units.digits(usd or 0) for usd in (best.cost_per_hour_usd, best.cost_usd_per_mtok))
    return f"{sizes}${hourly} an hour, ${million} a million output tokens"


def energy(plans: Plans) -> list[str]:
    """What the first plan draws at most, where the power of its device is known."""
    best = plans.best
    if best is None or best.spent.watts is None:
        return []
    kw, joules = units.digits(best.spent.watts / 1e3), wording.joules(best.energy_j_per_token)
    return [f"at most {kw} kW, {joules} an output token: all GPUs at the limit of their power"]


SETTINGS = {  # what changed settings are called
    "chunked_prefill": "chunked prefill",
    "max_batched_tokens": "tokens of a step",
    "max_num_seqs": "requests at once",
    "memory_utilization": "memory utilization",
}


def settings(candidate: Candidate) -> list[str]:
    """The engine's settings that a plan changes, with their defaults."""
    changed = [
        f"{SETTINGS[name]} {_setting(value)} (default {_setting(default)})"
        for name, (default, value) in candidate.changed_settings.items()
    ]
    return [f"changed settings: {', '.join(changed)}"] if changed else []


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else units.digits(value)


def doubts(plans: Plans) -> list[str]:
    """Where the error of the estimated times is larger than what is left of a limit, or than a difference."""
    best = plans.best
    if best is None:
        return []
    lines = []
    for i, limit in enumerate(plans.traffic.limits):
        if limit and best.within_error(i):
            longer, error = best.trial.limited(i) * (1 + best.errors[i]), units.percent(best.errors[i])
            lines.append(
                f"the limit of {LIMITED[i]} is within the error of the times: {error} longer, "
                f"it is {units.time(longer)} of {units.time(limit.seconds)}"
            )
    if lines:
        safe = plans.sturdy
        lines.append(
            f"cheapest plan that meets the limits with the error added: {_order(safe)}"
            if safe
            else "no plan meets the limits with the error added"
        )
    if plans.close:
        numbers = ", ".join(str(plans.shown.index(each) + 1) for each in plans.close)
        lines.append(f"too close to call, within the error of the times: the first and {numbers}")
    return lines


def goals(plans: Plans) -> list[str]:
    """Which plan is best by each goal that is not the first's."""
    figures: dict[str, tuple[str, Callable[[Candidate], str]]] = {
        "ttft": ("lowest TTFT (p99)", lambda c: units.time(c.trial.ttft_s.p99)),
        "tpot": ("lowest TPOT (p99)", lambda c: units.time(c.trial.tpot_s.p99)),
        "tokens_per_s_device": ("most tokens/s a GPU", lambda c: units.digits(c.tokens_per_s_device)),
    }
    number = {id(each): str(n) for n, each in enumerate(plans.shown, 1)} | {id(plans.best): "the first"}
    said = [
        f"{what}: {number[id(plans.goals[name])]}, {figure(plans.goals[name])}"
        for name, (what, figure) in figures.items()
        if name in plans.goals
    ]
    return ["; ".join(said)] if len(plans.ranked) > 1 else []


def _limit(limit: LatencyLimit | None, used: float, half: float) -> str:
    value = f"{units.time(used)} ± {units.time(half)}"
    return f"{value}, no limit" if limit is None else f"{value} of {units.time(limit.seconds)} ({limit.of})"


def traffic_lines(plans: Plans) -> list[str]:
    """How the first plan answers the traffic."""
    best, traffic = plans.best, plans.traffic
    if best is None:
        return []
    limits = (traffic.ttft, traffic.tpot)
    p99 = best.trial.ttft_s.p99, best.trial.tpot_s.p99
    halves = [half.p99 for half in best.trial.half_widths]
    each = [
        (best.trial.limited(i), best.trial.half_width(i)) if of else (p99[i], halves[i])
        for i, of in enumerate(limits)
    ]
    used = [f"{what} {_limit(of, *one)}" for what, of, one in zip(LIMITED, limits, each, strict=True)]
    rate = f"at {units.digits(traffic.rate)} requests/s: {', '.join(used)}"
    stable = f"stable to {units.digits(plans.largest_rate or 0)} requests/s"
    if traffic.headroom:
        part = units.percent(traffic.rate / plans.largest_rate) if plans.largest_rate else ""
        stable += f", of which it uses {part} ({units.percent(1 - traffic.headroom)} at most: --headroom)"
    within = f"{units.share_met(best.trial.within)} of requests within all limits; " if any(limits) else ""
    return [rate, within + stable]


def assumptions(plans: Plans) -> list[str]:
    """What the figures are of."""
    traffic, best = plans.traffic, plans.best
    of = dict.fromkeys(limit.of for limit in (traffic.ttft, traffic.tpot) if limit)
    none = "" if plans.shown else "; no plan got so far"
    runs = f"{SEEDS} runs of {traffic.requests:,} simulated requests or more, Poisson"
    limited = f"a limit is of the {' and '.join(of)} of requests, in {runs}" if of else f"simulated: {runs}"
    looks = not ROUTERS[traffic.router].blind
    one = "of equal replicas one is simulated"
    simulated = f"up to {UNIT} replicas are simulated together" if looks else one
    lines = [f"{limited}; {simulated}, with its share of them ({traffic.router} router){none}"]
    if of:
        lines.append(
            f"verdicts are certain at {units.percent(1 - ERROR)}, or undecided after the requests of "
            f"{BUDGET} runs; ± is the interval of that test"
        )
    if traffic.margin:
        change = "longer" if traffic.margin > 0 else "shorter"
        lines.append(
            f"all times are {units.percent(abs(traffic.margin))} {change} than estimated (--margin); "
            f"those of the hour are as estimated"
        )
    if plans.structures:
        stated = dict.fromkeys(weights(s) for s in plans.structures)
        roles = [role for role in ("weights", "kv") if any(getattr(s.types, role) for s in plans.structures)]
        chosen = (dict.fromkeys(getattr(s.types, role) for s in plans.structures) for role in roles)
        allowed = [f"--{r}: {', '.join(filter(None, of))}" for r, of in zip(roles, chosen, strict=True)]
        given = f"allowed by {'; '.join(allowed)}" if allowed else "the checkpoint's own"
        lines.append(f"precision: {', '.join(stated)}, {given}")
    if best and plans.drafts and best.draft_share is not None:
        share = units.percent(best.draft_share)
        lines.append(f"drafts of the first plan: {share} of a step makes them, the rest verifies them")
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
            f"closed form of the first plan: mean TTFT {ttft} (simulated {mean[0]}), TPOT {tpot} ({mean[1]})"
        )
    return lines


def _price_source(device: Device) -> str:
    """`H100-SXM Lambda, 2026-09`: the list and its date, or who states the price."""
    parts = device.source("price_per_hour_usd").split(", ")
    return f"{device.name} {', '.join(dict.fromkeys((parts[0], parts[-1])))}"


def row(plans: Plans, number: int, candidate: Candidate) -> tuple[str, ...]:
    """A plan's line."""
    trial, hourly, traffic = candidate.trial, candidate.cost_per_hour_usd, plans.traffic
    spreads = zip((traffic.ttft, traffic.tpot), (trial.ttft_s, trial.tpot_s), strict=True)
    times = [
        (trial.limited(i) if of and of.of != DEFAULT_STATISTIC else spread.p50, spread.p99)
        for i, (of, spread) in enumerate(spreads)
    ]
    return (
        "✓" if candidate is plans.best else str(number),
        name(plans, candidate),
        f"{candidate.devices:,}",
        "–" if hourly is None else units.digits(hourly),
        *(units.time(time_s) for pair in times for time_s in pair),
        units.share_met(trial.within),
    )


def reason(plans: Plans, why: BindingLimit, candidate: Candidate) -> str:
    """Why a plan is not the first, in words."""
    op = f"{why.op} is {units.percent(why.share)} of a {why.step} step"
    best = plans.first_like(candidate)
    if candidate is best is not plans.best:
        device = candidate.structure.device.name
        return f"no price is known of {device} (--price): of such plans the one with the fewest GPUs"
    if why.constraint in ("ttft", "tpot"):
        return _latency_reason(plans, why, candidate, op)
    if why.than is None:
        overloaded = _overloaded(candidate) if why.constraint == "rate" else "nothing limits it"
        return f"{overloaded}: {op}{decision(plans, candidate)}"
    assert best is not None
    if why.constraint == "cost":
        hourly = [units.digits(c.cost_per_hour_usd or 0) for c in (candidate, best)]
        more = f"costs {units.percent(why.by)} more (${hourly[0]}, not ${hourly[1]} an hour)"
    else:
        more = f"takes {units.percent(why.by)} more GPUs ({candidate.devices:,}, not {best.devices:,})"
    if why.constraint == "cost" and candidate.devices <= best.devices and why.by:
        each = [units.digits(c.structure.device.price_per_hour_usd or 0) for c in (candidate, best)]
        count = f"{candidate.devices:,} GPU{'s' if candidate.devices > 1 else ''}"
        return f"{more}, with {count}: one costs ${each[0]}, not ${each[1]}{decision(plans, candidate)}"
    if not why.by:
        same = "costs as much" if why.constraint == "cost" else "needs as many GPUs"
        users = [units.digits(c.tokens_per_s_user) for c in (candidate, best)]
        slower = f"is slower for each user: {users[0]} tokens/s, not {users[1]}"
        more = f"{same}, and {slower if users[0] != users[1] else 'is no faster for a user'}"
    if isinstance(best, PoolCandidate) and not isinstance(candidate, PoolCandidate):
        more += ": its decode steps wait for prompts that are read beside them"
    return f"{more}{decision(plans, candidate)}"


FEWER = {  # what fewer replicas of a plan do, by the constraint that decides against it
    "rounding": "a fraction of a replica would be enough, but replicas are whole",
    "kv_capacity": "fewer replicas have too few KV-cache blocks",
    "max_num_seqs": "fewer replicas run too few requests at once (--max-num-seqs)",
    "headroom": "fewer replicas leave too little headroom (--headroom)",
    "rate": "fewer replicas do not answer the rate within all limits",
}


def decision(plans: Plans, candidate: Candidate) -> str:
    """The constraint that decides against a plan, and the smallest change with which it is not rejected."""
    why = plans.rejection(candidate)
    if why is None:
        return ""
    parts = []
    if candidate.meets and why.statistic:
        limit = getattr(plans.traffic, why.constraint)
        at = f"{why.statistic}, {units.time(limit.seconds)}"
        parts = [f"fewer replicas miss the limit of {why.constraint.upper()} ({at})"]
    elif why.constraint in FEWER and (candidate.meets or why.constraint != "rate"):
        parts = [FEWER[why.constraint] if candidate.meets else FEWER[why.constraint].replace("fewer", "the")]
    return "; ".join(["", *parts, *_change(why, candidate)])


def _change(why: LosingReason, candidate: Candidate) -> list[str]:
    """The smallest change with which a plan wins, or meets its limits."""
    if why.change is None:
        return []
    what, now, needed, replicas, op = why.change
    split = candidate.structure.split
    wins = f"it wins as {split} × {replicas:,}" if candidate.meets else "it meets the limits"
    if what == "times":
        return [f"{wins} if all times are {units.percent(now - needed)} shorter"]
    if what == "op":
        return [f"{wins} if each {op} op takes {units.percent(now - needed)} less time"]
    if what in ("ttft", "tpot"):
        return [f"{wins} with --max-{what} {why.statistic}:{units.time(needed).replace(' ', '')}"]
    return [f"it wins at ${units.digits(needed)} an hour of a GPU, not ${units.digits(now)}"]


def _latency_reason(plans: Plans, why: BindingLimit, candidate: Candidate, op: str) -> str:
    """By how much a plan misses a limit, or what is left of it."""
    name = why.constraint.upper()
    if why.by <= 0:
        return f"{name} has {units.time(-why.by)} left of its limit at the end of its interval: {op}"
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
    full = f"; no more than {candidate.batch:,} requests run at once" if why.waiting else ""
    return f"{result}; {op}{full}{decision(plans, candidate)}"


def _grouped(whys: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Equal reasons once, with all that they are of, in the order in which they first come."""
    found: dict[str, list[str]] = {}
    for why, of in whys:
        found.setdefault(why, []).append(of)
    return [*found.items()]


def _several(names: list[str]) -> str:
    """The first, and how many more."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more:"


def _overloaded(candidate: Candidate) -> str:
    answered, comes = map(units.digits, (candidate.largest_rate or 0.0, candidate.traffic.rate))
    if not candidate.overloaded:
        return f"undecided: answers {answered} ± {units.percent(RATE_ERROR)} requests/s at most, {comes} come"
    return f"answers {answered} of {comes} requests/s at most, with {candidate.batch:,} at once"


def misses(plans: Plans) -> list[str]:
    """Where no plan meets the limits, the closest and what binds it."""
    if plans.missed:
        closest = plans.missed[0]
        return [f"closest is {name(plans, closest)}: {reason(plans, plans.why(closest), closest)}"]
    if near := nearest_structure(plans):
        return [f"closest is {_nearest_plan(plans, near)}"]
    first = [f"closest is {of}: {refusal.why}" for of, refusal in plans.refused.items()][:1]
    return first or ["no plan is within the limits"]


def devices_without_plan(plans: Plans) -> dict[str, str]:
    """Why no plan of a device was simulated, by device."""
    return {name: _no_plan(plans, name) for name, best in plans.by_device.items() if best is None}


def _no_plan(plans: Plans, device: str) -> str:
    refusal = device_refusal(plans, device)
    if isinstance(refusal, NearestStructure):
        return f"no plan is within the limits; closest is {_nearest_plan(plans, refusal)}"
    return refusal.why if refusal else "no number of replicas answers the rate"


def _nearest_plan(plans: Plans, near: NearestStructure) -> str:
    """The plan that misses the limits least, by closed form."""
    at_once = "one request" if near.batch == 1 else f"{near.batch:,} requests"
    used = f"{near.constraint.upper()} is {units.time(near.seconds)} of {units.time(near.limit)}"
    over = f"{units.time(near.seconds - near.limit)} too much"
    op = f"{near.op} is {units.percent(near.share)} of a {near.step} step"
    where = (
        f"{_named(plans, near.structure, str(near.structure.split))}, by closed form with {at_once} at a time"
    )
    return f"{where}: {used}, {over}; {op}"


def counts(plans: Plans) -> str:
    """How many plans there were."""
    structures = len({(s.device.name, s.types, s.split) for s in plans.structures})
    points = plans.points.rate.size
    few, many = len(plans.refused), f"{structures:,} split{'' if structures == 1 else 's'}"
    none = f"{few:,} splits cannot be or need" if few > 1 else "one split cannot be or needs"
    refused = f"; {none} more GPUs" if few else ""
    return f"{points:,} plans of {many} by closed form, {len(plans.shown)} simulated{refused}"


@table.table_of(of=Plans)
def plans(plans: Plans) -> Group:
    """The answer, what it assumes, the plans, why each loser lost, and the front."""
    from rich.text import Text

    def quiet(line: str) -> Text:
        return Text(line, style=QUIET)

    head = Text(answer(plans), style=f"bold {GOOD if plans.best else BAD}")
    changed = settings(plans.best) if plans.best else []
    parts: list[Any] = [head, basis(plans), *changed, *traffic_lines(plans), *energy(plans)]
    parts += (
        ["", *hourly_sections(plans), *(Text(line, style=BAD) for line in hourly_misses(plans))]
        if plans.best
        else []
    )
    parts += ["", *map(quiet, assumptions(plans))]
    heads = headings(plans)
    shown = table.columns(heads, heads[2:], gap=1)
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
    parts += ["", *found] if (found := doubts(plans)) else []
    if plans.best and plans.why(plans.best).constraint in ("ttft", "tpot"):
        parts += ["", f"nearest limit of the first: {reason(plans, plans.why(plans.best), plans.best)}"]
    if lines:
        parts += ["", Text("why not", style="bold"), table.pairs(lines)]
    if plans.front.size:
        parts += ["", *chart(plans)]
    return table.stack(*parts, "", counts(plans), *map(quiet, plans.notes))


def _styles(plans: Plans, candidate: Candidate) -> list[str]:
    """The first in green; what misses a limit in red."""
    if candidate is plans.best:
        return [f"bold {GOOD}"] * (NUMBERS.stop)
    pairs = []
    for i, of in enumerate((plans.traffic.ttft, plans.traffic.tpot)):
        late = BAD if of and candidate.trial.upper(i) > of.seconds else ""
        pairs += [
            "" if of and of.of == DEFAULT_STATISTIC else late,
            late if of and of.of == DEFAULT_STATISTIC else "",
        ]
    return ["", "", "", "", *pairs, BAD if any(pairs) else ""]


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
    """A line for each plan that was simulated, in SI units."""
    return json.to_csv(_rows(plans))


def _report_parts(plans: Plans) -> tuple[list[str], list[tuple[str, ...]], list[tuple[str, str]]]:
    """What a report says: lines, a row for each plan, and why each is where it is."""
    rows = [row(plans, n, each) for n, each in enumerate(plans.shown, 1)]
    whys = [(str(n), reason(plans, plans.why(c), c)) for n, c in enumerate(plans.shown, 1)]
    whys += [("–", f"{device}: {why}") for device, why in devices_without_plan(plans).items()]
    lines = [
        answer(plans),
        basis(plans),
        *(settings(plans.best) if plans.best else []),
        *traffic_lines(plans),
        *energy(plans),
        *hourly_sections(plans),
        *hourly_misses(plans),
    ]
    lines += [*goals(plans), *doubts(plans), *assumptions(plans)]
    return lines, rows, whys


@exporter("md", ".md", of=Plans)
def to_markdown(plans: Plans) -> str:
    """A report to read."""
    lines, rows, whys = _report_parts(plans)
    parts = ["\n\n".join(map(json.md, lines)) + "\n"]
    if rows:
        parts += [json.to_markdown(headings(plans), rows, NUMBERS), json.to_markdown(("", "why"), whys)]
    return "\n".join(parts)


@exporter("html", ".html", of=Plans)
def to_html(plans: Plans) -> str:
    """A report as HTML."""
    lines, rows, whys = _report_parts(plans)
    head = table.html(("", ""), [("", line) for line in lines])
    return head + table.html(headings(plans), rows, NUMBERS) + table.html(("", "why"), whys)
