"""Charts of memory: the memory of a rank over a request, and over the ops of a step."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.export import units, wording
from llmir.backends.export.dot.labels import INK, MUTED
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.errors import InputError
from llmir.base.values import Array

from .frame import LIMIT, SMALL, TEXT, annotate, axes, head, lay_out, notes, plain, setting, unit

POINTS = (
    4096  # number of decode steps that are estimated; for a longer output, as many of its steps are selected
)
PARTS = (("weights", "#C3CAD6", ""), ("caches", "#9DB8DC", "////"), ("activations", "#F6C9AE", "...."))
NOTE = "activations at the peak of a step; caches grow evenly during prefill"
NAMES = 44  # number of ops whose names are shown below an axis
EDGE = "#3D4659"
GB = 10**9


class MemorySample(NamedTuple):
    """Bytes of one rank of the fullest stage over the time since the request began, in seconds."""

    time_s: Array
    weights: Array
    caches: Array
    activations: Array

    @property
    def total(self) -> Array:
        """All together."""
        return self.weights + self.caches + self.activations


def held_bytes(job: Workload) -> MemorySample:
    """The memory at the start and the end of prefill, and in decode steps.

    During prefill, caches grow along a straight line; the activations are those of the largest step.
    """
    read = job.prefill
    ends = [0.0, job.ttft_s]
    weights = [read.weight_bytes] * 2
    activations = [read.activation_peak_bytes] * 2
    at: dict[str, Any] = {"batch": job.batch, "new": 1, "context": max(job.cached - 1, 0)}
    how: dict[str, Any] = {"model": job.model, "cache_policy": job.cache_policy}
    caches = [_caches(job, job.cached), _caches(job, job.length)]
    if job.generate == 1:
        return MemorySample(*(np.array(part, dtype=float) for part in (ends, weights, caches, activations)))
    steps = job.generate - 1
    numbers = np.unique(np.linspace(0, steps - 1, min(steps, POINTS)).round().astype(int))
    late = Report(job.program, job.device, **{**at, "context": job.length + numbers}, **how)
    period = np.asarray(late.period_s)
    after = np.concatenate([[0.0], np.cumsum(np.diff(numbers) * (period[1:] + period[:-1]) / 2)])
    if len(numbers) == steps:
        after = np.concatenate([[0.0], np.cumsum(period)[:-1]])
    return MemorySample(
        np.concatenate([ends, job.ttft_s + after + period]),
        np.concatenate([weights, late.weight_bytes]),
        np.concatenate([caches, late.kv_cache_bytes]),
        np.concatenate([activations, late.activation_peak_bytes]),
    )


def _caches(job: Workload, tokens: int) -> float:
    """The bytes of the caches of all requests if each has `tokens` tokens."""
    if not tokens:
        return 0.0
    at: dict[str, Any] = {"batch": job.batch, "new": 1, "context": tokens - 1}
    step = Report(job.program, job.device, **at, model=job.model, cache_policy=job.cache_policy)
    return float(step.kv_cache_bytes)


def memory(data: Workload | Report, ax: Any = None) -> Any:
    """`llmir.plot_memory`."""
    return _request(data, ax) if isinstance(data, Workload) else _step(data, ax)


def _request(job: Workload, ax: Any) -> Any:
    if job.program.patches:
        raise InputError(f"plot_memory: {job.program.name} is an image model; pass its step (job.encode)")
    of = held_bytes(job)
    ax = axes("plot_memory", ax, 4.8)
    below = np.zeros(len(of.time_s))
    for (name, fill, hatch), part in zip(PARTS, of[1:], strict=True):
        style = {"facecolor": fill, "edgecolor": EDGE, "linewidth": 0.5, "hatch": hatch}
        ax.fill_between(of.time_s, below / GB, (below + part) / GB, label=name, **style)
        below = below + part
    capacity = job.capacity_bytes / GB
    ax.axhline(capacity, color=LIMIT, linewidth=1.4, linestyle="--")
    top = max(float(of.total.max()) / GB, capacity)
    ax.set(xlim=(0, float(of.time_s[-1])), ylim=(0, top * 1.13))
    plain(ax, grid="y")
    unit(ax.xaxis, "s")
    ax.set_xlabel("time since the requests came", fontsize=TEXT)
    ax.set_ylabel("memory of a rank, GB", fontsize=TEXT)
    peak = int(np.argmax(of.total))
    fullest = float(of.total[peak])
    _peak(ax, float(of.time_s[peak]), fullest / GB, f"peak {units.bytes(fullest)}")
    share = f"{100 * job.share:.3g}% of the device's" + (f", by {job.memory.engine}" if job.pool else "")
    words = f"{units.bytes(job.capacity_bytes)} may be used: {share}"
    annotate(ax, (float(of.time_s[-1]), capacity), words, (-4, 4), color=LIMIT, ha="right", va="bottom")
    if job.generate > 1:
        ax.axvline(job.ttft_s, color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
        words = f"first token, {units.time(job.ttft_s)}"
        annotate(ax, (job.ttft_s, 0), words, (5, 6), ha="left", va="bottom")
    asked = f"batch {job.batch:,} · prompt {job.length:,} · generate {job.generate:,}"
    fits = "fits" if job.fits else "DOES NOT FIT"
    head(
        ax,
        f"Memory over a request: {wording.model_on_devices(job)}",
        f"{asked} · {fits} · {setting(job.program, job.prefill.plan.model, job.prefill.error)}",
    )
    notes(ax, _parts(), _aside(job), NOTE)
    return ax


def _parts() -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=fill, edgecolor="#3D4659", hatch=hatch, label=name) for name, fill, hatch in PARTS
    ]


def _aside(job: Workload) -> str:
    """The memory that an engine reserves at its start, as text."""
    if not job.pool:
        return ""
    of = job.memory
    apart, over, caches = (units.bytes(n) for n in (of.activation_bytes, of.overhead_bytes, of.kv_bytes))
    return (
        f"{of.engine} sets {apart} for activations and {over} of overhead aside, and gives {caches} to caches"
    )


def _peak(ax: Any, x: float, y: float, words: str) -> None:
    """Mark the peak and label it on the side with space."""
    ax.plot([x], [y], marker="v", markersize=8, color=INK, clip_on=False, zorder=4)
    low, high = ax.get_xlim()
    left = x - low > 0.5 * (high - low)
    side = "right" if left else "left"
    annotate(ax, (x, y), words, (-8 if left else 8, 5), ha=side, va="bottom", fontweight="bold")


def moments(step: Report) -> list[tuple[str, float]]:
    """The bytes of activations while each op runs, in schedule order, on the fullest stage.

    Layers that differ in which tensors are alive appear separately: the first, a middle and the last
    iteration.
    """
    if step.shape:
        raise InputError(f"plot_memory: expected a step at one point, got a grid of {step.shape}")
    fullest = max(step.plan.memories, key=lambda memory: memory.peak(step.at))
    return [(moment.op, float(step.at(moment.bytes))) for moment in fullest.moments]


def _step(step: Report, ax: Any) -> Any:
    found = moments(step)
    if not found:
        raise InputError(f"plot_memory: {step.program.name} has no ops")
    ax = axes("plot_memory", ax, 5.2)
    values = np.array([size for _, size in found])
    places = np.arange(len(found))
    style = {"facecolor": PARTS[2][1], "edgecolor": "#8A5A3C", "linewidth": 0.6, "hatch": PARTS[2][2]}
    ax.bar(places, values, width=1.0, label="activations", **style)
    plain(ax, grid="y")
    ax.set(xlim=(-0.5, len(found) - 0.5), ylim=(0, float(values.max()) * 1.25 or 1))
    unit(ax.yaxis, "B")
    every = -(-len(found) // NAMES)
    names = [name.rpartition(".")[2] for name, _ in found]
    ax.set_xticks(places[::every], names[::every], rotation=90, fontsize=6.5 if len(found) > 28 else 7.5)
    ax.set_ylabel("activations of a rank while an op runs", fontsize=TEXT)
    more = f", one of {every} named" if every > 1 else ""
    ax.set_xlabel(f"ops in the order of the schedule{more}", fontsize=TEXT)
    peak = int(np.argmax(values))
    _peak(ax, peak, float(values[peak]), f"peak {units.bytes(float(values[peak]))} at {found[peak][0]}")
    _layers(ax, [name.rpartition(".")[0] for name, _ in found])
    of = step.peak
    most = ", ".join(f"{name} {units.bytes(float(size))}" for name, size in of.held[:3])
    resident = (
        f"beside {units.bytes(step.weight_bytes)} of weights and {units.bytes(step.kv_cache_bytes)} of caches"
    )
    head(
        ax,
        f"Memory over a step: {wording.model_on_devices(step)}",
        f"{step.phase or 'step'}: {wording.step_title(step)} · {resident}",
        setting(step.program, step.plan.model),
    )
    alike = "a layer appears once for each different set of live tensors: first, middle, last"
    lay_out(ax)
    down = ax.get_window_extent().y0 - ax.xaxis.label.get_window_extent().y0
    notes(ax, (), f"at the peak there are {most}" if most else "", alike, down=8 + down * 72 / ax.figure.dpi)
    return ax


def _layers(ax: Any, of: list[str]) -> None:
    """Mark the begin and end of each body of layers."""
    at = 0
    for name, group in groupby(of):
        count = len(list(group))
        if name:
            ax.axvspan(at - 0.5, at + count - 0.5, color="#EEF1F5", zorder=0, linewidth=0)
            ax.annotate(
                wording.plain(name),
                ((at + count / 2 - 0.5), 1),
                (0, -3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=SMALL,
                color=MUTED,
            )
        at += count
