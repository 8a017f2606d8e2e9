"""Charts of simulated servers: state over time, and latency against the request rate.

`serving` draws running requests, waiting requests and used blocks (`llmir.plot_serving`). `latencies` draws
percentiles of a latency over the request rate, with limits and the region of overload
(`llmir.plot_latencies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.export import units, wording
from llmir.backends.export.dot.labels import MUTED
from llmir.backends.export.serving import LATENCIES
from llmir.backends.simulate.replications import Replications
from llmir.backends.simulate.result import ReplicaSimulation, Simulation
from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.base.values import Array

from .frame import (
    CHOSEN,
    LIMIT,
    MARKS,
    TEXT,
    annotate,
    axes,
    hatch_region,
    head,
    line,
    notes,
    plain,
    setting,
    unit,
)

# State over time

BINS = 300  # time bins of a line


class LoadTimeline(NamedTuple):
    """Means over intervals of time: running requests, waiting requests, and the share of blocks in use."""

    edges_s: Array
    running: Array
    waiting: Array
    blocks: Array


def load_timeline(run: Simulation) -> LoadTimeline:
    """The timeline of all replicas together; in idle time, no requests run or wait."""
    if not len(run.load) or not run.events["steps"].size:
        raise InputError("plot_serving: this simulation has no steps")
    replicas: Sequence[Simulation] = run.replicas if isinstance(run, ReplicaSimulation) else (run,)
    begin = float(run.arrival_s.min())
    end = float((run.events["start_s"] + run.events["time_s"]).max())
    edges = np.linspace(begin, max(end, begin + 1e-9), BINS + 1)
    running, waiting, blocks = (np.zeros(BINS) for _ in range(3))
    for one in replicas:
        if not one.events["steps"].size:
            continue
        of = one.events
        starts, ends = of["start_s"], of["start_s"] + of["time_s"]
        running += _means(edges, starts, ends, of["decodes"] + of["reads"])
        waiting += _means(edges, starts, ends, of["waiting"])
        until = np.append(ends[1:], ends[-1])
        blocks += _means(edges, ends, np.maximum(until, ends), of["blocks"])
    return LoadTimeline(edges - begin, running, waiting, blocks / (len(replicas) * run.capacity.blocks))


def _means(edges: Array, starts: Array, ends: Array, values: Array) -> Array:
    """The mean in each time bin of values that apply from a start to an end and are zero otherwise."""
    knots = np.stack([starts, ends], axis=1).ravel()
    area = np.repeat(np.cumsum(values * (ends - starts)), 2)
    area[0::2] -= values * (ends - starts)
    return np.asarray(np.diff(np.interp(edges, knots, area, left=0.0)) / np.diff(edges))


def serving(run: Simulation, ax: Any = None) -> Any:
    """`llmir.plot_serving`."""
    found = load_timeline(run)
    ax = axes("plot_serving", ax, 4.8)
    right = ax.twinx()
    runs, waits, full = MARKS[0], MARKS[1], MARKS[2]
    ax.stairs(found.running, found.edges_s, color=runs.color, linewidth=1.5, label="running")
    ax.stairs(found.waiting, found.edges_s, color=waits.color, linewidth=1.3, linestyle="--", label="waiting")
    style = {"color": full.color, "linewidth": 1.2, "linestyle": (0, (1, 1.4))}
    right.stairs(100 * found.blocks, found.edges_s, label="blocks", **style)
    plain(ax)
    right.spines["top"].set_visible(False)
    right.tick_params(labelsize=8)
    right.set_ylim(-1.5, 105)
    top = max(float(found.running.max()), float(found.waiting.max()), 1.0)
    ax.set(xlim=(0, float(found.edges_s[-1])), ylim=(-0.015 * top, 1.08 * top))
    unit(ax.xaxis, "s")
    ax.set_xlabel("time since the first request came", fontsize=TEXT)
    ax.set_ylabel("requests", fontsize=TEXT)
    right.set_ylabel("blocks of caches in use, %", fontsize=TEXT)
    load, room = run.load, run.capacity
    comes = (
        f"{load.users:,} users"
        if load.users
        else f"{units.digits(run.rate)} requests/s"
        if run.rate
        else "at once"
    )
    state = "" if run.overloaded is None else ", overloaded" if run.overloaded else ", stable"
    lengths = f"prompt {load.prompt.mean():,.0f}, generate {load.generate.mean():,.0f} on average"
    copies = f"{len(run.replicas)} replicas · " if isinstance(run, ReplicaSimulation) else ""
    model = run.job.prefill.plan.model
    head(
        ax,
        f"Serving over time: {wording.model_on_devices(run.job)}",
        f"{copies}{comes}{state} · {lengths} · policy of {run.policy.name} · "
        + setting(run.job.program, model, run.job.prefill.error),
    )
    handles = [
        line("running (left)", color=runs.color),
        line("waiting (left)", color=waits.color, linestyle="--"),
        line("blocks in use (right)", **style),
    ]
    most = f"at most {run.most_blocks:,} of {room.blocks:,} blocks of {room.block} tokens in use"
    preempted = int(run.preemptions.sum())
    notes(ax, handles, f"{most}; {preempted:,} preemptions; lines are means over {_piece(found)}")
    return ax


def _piece(found: LoadTimeline) -> str:
    return units.time(float(found.edges_s[1] - found.edges_s[0]))


# Latency against the rate

STYLES = {"p50": (":", "o", "#56708F"), "p90": ("--", "s", "#2F5C94"), "p99": ("-", "D", "#0F172A")}
LIMITED = {"ttft": "max_ttft_s", "tpot": "max_tpot_s"}
ROOM = 1.1  # the largest visible rate is this factor above the last one
Runs = Sequence[Simulation | Replications]


class PercentileCurve(NamedTuple):
    """A percentile at each rate, with half the width of its confidence interval (0 for a single run)."""

    rate: Array
    seconds: Array
    half: Array


def curves(of: str, runs: Runs, times: float = 1) -> dict[str, PercentileCurve]:
    """Percentiles of a latency over the rates of some runs; rates are multiplied by `times`, the number of
    equal servers.
    """
    rates = times * np.array([rate_of(run) for run in runs])
    order = np.argsort(rates, kind="stable")
    found = {}
    for stat in STYLES:
        pairs = [_figure(run, of, stat) for run in runs]
        mean, half = np.array(pairs, dtype=float).T
        found[stat] = PercentileCurve(rates[order], mean[order], half[order])
    return found


def rate_of(run: Simulation | Replications) -> float:
    """The arrival rate per second; the mean for several runs."""
    each = run.runs if isinstance(run, Replications) else (run,)
    rates = [one.rate for one in each]
    if any(one.load.users for one in each) or not all(rates):
        raise InputError("plot_latencies: expected runs with a request rate; a closed loop has none")
    return float(np.mean([rate for rate in rates if rate]))


def _figure(run: Simulation | Replications, of: str, stat: str) -> tuple[float, float]:
    """The latency in seconds, and half the width of its interval; NaN without values."""
    nothing = (float("nan"), 0.0)
    if isinstance(run, Replications):
        known = run.latencies[of][stat] if of in run.latencies else None
        return (known.mean, known.half) if known else nothing
    spread = run.latencies.get(of)
    return (float(getattr(spread, stat)), 0.0) if spread else nothing


def largest(runs: Runs) -> float:
    """The largest stable rate, on average over runs."""
    each = [one for run in runs for one in (run.runs if isinstance(run, Replications) else (run,))]
    return float(np.mean([one.largest_rate for one in each]))


class ChartTarget(NamedTuple):
    """The rate to mark, limits that the runs do not have, and the number of servers by which rates are
    multiplied.
    """

    rate: float | None = None
    limit_s: float | None = None
    servers: int = 1


def latencies(data: Iterable[Simulation | Replications], ax: Any, of: str, asked: ChartTarget) -> Any:
    """`llmir.plot_latencies`."""
    runs = list(data)
    if not runs:
        raise InputError("plot_latencies: expected runs, got none")
    one = _one(runs[0])
    choice("of", of, tuple(one.latencies))
    if len({(r.job.program.name, r.job.device.name) for r in map(_one, runs)}) > 1:
        raise InputError(
            "plot_latencies: the runs have several models or devices; expected runs of one model and device"
        )
    found = curves(of, runs)
    ax = axes("plot_latencies", ax, 4.8)
    words = draw(ax, of, runs, asked)
    requests = f"{len(one.load):,} requests a run, prompt {one.load.prompt.mean():,.0f}, "
    requests += f"generate {one.load.generate.mean():,.0f} on average"
    about = (requests, f"policy of {one.policy.name}", setting(one.job.program, one.job.prefill.plan.model))
    head(ax, f"{title(of)} against rate: {wording.model_on_devices(one.job)}", " · ".join(about))
    shaded = any(curve.half.any() for curve in found.values())
    notes(ax, handles(), words, "shaded: holds the mean in 95% of cases" if shaded else "")
    return ax


def title(of: str) -> str:
    """The name of a latency."""
    return LATENCIES[of].strip()


def handles() -> list[Any]:
    """The lines that the legend explains."""
    known = STYLES.items()
    return [
        line(f"{stat} of requests", linestyle=s, marker=m, color=c, markersize=4) for stat, (s, m, c) in known
    ]


def draw(ax: Any, of: str, runs: Runs, asked: ChartTarget) -> str:
    """Lines, limits and the region of overload, with an explanation if it is visible."""
    found, one = curves(of, runs, asked.servers), _one(runs[0])
    stable = asked.servers * largest(runs)
    for stat, (linestyle, marker, color) in STYLES.items():
        curve = found[stat]
        style = {"linestyle": linestyle, "marker": marker, "color": color, "markersize": 4}
        ax.plot(curve.rate, curve.seconds, label=stat, linewidth=1.5, zorder=3, **style)
        if curve.half.any():
            low, high = np.maximum(curve.seconds - curve.half, 0), curve.seconds + curve.half
            ax.fill_between(curve.rate, low, high, color=color, alpha=0.18, linewidth=0)
    limit = asked.limit_s or (getattr(one, LIMITED[of]) if of in LIMITED else None)
    right = furthest(found, stable, asked.rate)
    ax.set_ylim(0, height(found, stable, limit))
    plain(ax)
    unit(ax.yaxis, "s")
    ax.set_ylabel(title(of), fontsize=TEXT)
    ax.set_xlabel("requests/s", fontsize=TEXT)
    if stable < right:
        hatch_region(ax, stable, right)
        ax.axvline(stable, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    ax.set_xlim(0, right)
    if limit:
        ax.axhline(limit, color=LIMIT, linewidth=1.3, linestyle="--")
        annotate(ax, (0, limit), f"limit {units.time(limit)}", (4, 3), color=LIMIT)
    if asked.rate:
        ax.axvline(asked.rate, color=CHOSEN, linewidth=1.1, linestyle=":")
        words = f"asked: {units.digits(asked.rate)}"
        annotate(ax, (asked.rate, ax.get_ylim()[1]), words, (-4, -4), color=CHOSEN, ha="right", va="top")
    return (
        f"hatched: overloaded, above {units.digits(stable)} requests/s the queue grows"
        if stable < right
        else ""
    )


def _one(run: Simulation | Replications) -> Simulation:
    return run.runs[0] if isinstance(run, Replications) else run


def height(found: dict[str, PercentileCurve], stable: float, limit: float | None) -> float:
    """The upper end of the time axis; it is chosen so that stable rates are readable."""
    every = [c.seconds[np.isfinite(c.seconds)] for c in found.values()]
    calm = [c.seconds[(c.rate <= stable) & np.isfinite(c.seconds)] for c in found.values()]
    of = [seconds for seconds in calm if seconds.size] or every
    top = max((float(seconds.max()) for seconds in of if seconds.size), default=1.0)
    return max(top * 1.25, 1.15 * limit if limit and limit < 8 * top else 0.0) or 1.0


def furthest(found: dict[str, PercentileCurve], stable: float, asked: float | None) -> float:
    """The largest visible rate: slightly more than the last rate, or than the stable rate."""
    last = float(max(*found["p99"].rate.tolist(), asked or 0.0))
    return ROOM * (max(stable, last) if stable < 1.6 * last else last)
