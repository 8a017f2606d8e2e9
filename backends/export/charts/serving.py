"""A simulated server over time: what runs, what waits, and the blocks in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.export import units, wording
from llmir.backends.simulate.result import Simulation
from llmir.backends.simulate.simulated_replicas import SimulatedReplicas
from llmir.base.errors import InputError
from llmir.base.values import Array

from .frame import MARKS, TEXT, axes, head, line, notes, plain, setting, unit

BINS = 300  # of time, over which a line is a mean


class Course(NamedTuple):
    """Means over pieces of time: requests that run, requests that wait, and the share of blocks in use."""

    edges_s: Array
    running: Array
    waiting: Array
    blocks: Array


def course(run: Simulation) -> Course:
    """Of all replicas together; what is idle has nothing that runs or waits."""
    if not len(run.load) or not run.events["steps"].size:
        raise InputError("plot_serving: this simulation has no steps")
    replicas: Sequence[Simulation] = run.replicas if isinstance(run, SimulatedReplicas) else (run,)
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
    return Course(edges - begin, running, waiting, blocks / (len(replicas) * run.capacity.blocks))


def _means(edges: Array, starts: Array, ends: Array, values: Array) -> Array:
    """The mean in each piece of time of what is so much from a start to an end, and else nothing."""
    knots = np.stack([starts, ends], axis=1).ravel()
    area = np.repeat(np.cumsum(values * (ends - starts)), 2)
    area[0::2] -= values * (ends - starts)
    return np.asarray(np.diff(np.interp(edges, knots, area, left=0.0)) / np.diff(edges))


def serving(run: Simulation, ax: Any = None) -> Any:
    """`llmir.plot_serving`."""
    found = course(run)
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
    copies = f"{len(run.replicas)} replicas · " if isinstance(run, SimulatedReplicas) else ""
    model = run.job.prefill.plan.model
    head(
        ax,
        f"Serving over time: {wording.subject(run.job)}",
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


def _piece(found: Course) -> str:
    return units.time(float(found.edges_s[1] - found.edges_s[0]))
