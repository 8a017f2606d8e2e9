"""Charts of step time and throughput over the batch, and of step time over the context.

`curves` computes the points of a workload, a report on a grid or a sweep; `batch` and `context` draw them
(`llmir.plot_batch`, `llmir.plot_context`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.export import wording
from llmir.backends.export.dot.labels import INK, MUTED
from llmir.backends.request.workload import Workload
from llmir.backends.search.sweep import Sweep
from llmir.backends.step.report import Report
from llmir.base.errors import InputError, LlmirError
from llmir.base.values import Array

from .frame import MARKS, LineStyle, axes, counts, hatch_region, head, line, notes, plain, setting, unit

# Points of curves

LARGEST = 1 << 14  # the largest batch of a curve
FURTHEST = 1 << 20  # largest context in tokens, for models that state no maximum
PICKED = ("batch", "new", "time_s", "error", "fits")


class StepCurve(NamedTuple):
    """Steps along one axis: the label, the seconds, the relative error, and whether each point fits in
    memory.

    `error` and `fits` are NaN if unknown.
    """

    label: str
    x: Array
    tokens: Array  # axis: tokens per second of all sequences together
    time_s: Array
    error: Array
    fits: Array


class CurveGroup(NamedTuple):
    """Some curves, the title above them, and the first value that does not fit, if known."""

    title: str
    lines: tuple[str, ...]
    each: tuple[StepCurve, ...]
    limit: float | None = None


def curves(name: str, over: str, data: Workload | Report | Sweep) -> CurveGroup:
    """The curves over `batch` or `context`; InputError for data without this axis."""
    if isinstance(data, Workload):
        return of_workload(name, over, data)
    return of_report(name, over, data) if isinstance(data, Report) else of_sweep(name, over, data)


def of_report(name: str, over: str, step: Report) -> CurveGroup:
    """The points of a grid in which only the axis `over` varies."""
    if np.ndim(step.time_s) != 1 or step.beside:
        raise InputError(f"{name}: expected a report on a grid of one axis, such as {over}=[1, 2, 4]")
    grid = {axis: np.broadcast_to(getattr(step, axis), step.shape) for axis in ("batch", "new", "context")}
    varies = [axis for axis, values in grid.items() if len(set(values.tolist())) > 1]
    if varies not in ([over], []):
        raise InputError(
            f"{name}: {' and '.join(varies)} also varies; expected a report in which only {over} varies"
        )
    order = np.argsort(grid[over], kind="stable")
    error = np.nan if step.error is None else step.error
    error = np.broadcast_to(np.asarray(error, dtype=float), step.shape)
    found = StepCurve(
        "",
        grid[over][order],
        (grid["batch"] * grid["new"])[order],
        np.asarray(step.period_s)[order],
        error[order],
        np.full(step.shape, np.nan),
    )
    said = {"batch": "batch {:,}", "new": "{:,} new tokens each", "context": "{:,} cached"}
    same = (
        said[axis].format(int(values[0])).replace("1 new tokens", "1 new token", int(values[0]) == 1)
        for axis, values in grid.items()
        if axis not in (over, *varies)
    )
    mean = float(np.nanmean(error)) if np.isfinite(error).any() else None
    about = " · ".join((*same, setting(step.program, step.plan.model, mean)))
    return CurveGroup(f"{wording.model_on_devices(step)}: steps by {over}", (about,), (found,))


def of_workload(name: str, over: str, job: Workload) -> CurveGroup:
    """Decode steps of a workload: over the batch halfway through its output, or over the context for its
    batch.
    """
    if job.program.patches:
        raise InputError(f"{name}: {job.program.name} is an image model without decode steps")
    parts = job.program.micro_batches * job.program.parallelism.dp
    middle = job.length + job.generate // 2 - 1
    if over == "batch":
        limit = job.max_batch
        top = min(max(limit, job.batch, parts), LARGEST)
        values = {parts * 2**n for n in range(64) if parts * 2**n <= top} | {top // parts * parts, job.batch}
    else:
        positions = job.program.facts.get("positions")
        last = max(job.length + job.generate, positions if isinstance(positions, int) else FURTHEST)
        values = {*(2**n for n in range(7, 64) if 2**n < last), middle, last - 1}
        limit = longest(job, last)
    x = np.array(sorted(values))
    at: dict[str, Any] = {"batch": job.batch, "context": middle, "new": 1, over: x}
    step = Report(job.program, job.device, **at, model=job.model, cache_policy=job.cache_policy)
    found = of_report(name, over, step)
    each = tuple(curve._replace(fits=(curve.x <= limit).astype(float)) for curve in found.each)
    title = f"{wording.model_on_devices(job)}: decode steps by {over}"
    return found._replace(title=title, each=each, limit=limit)


def longest(job: Workload, most: int) -> int:
    """The longest context of a decode step that fits with this batch, up to `most` tokens."""

    def fits(tokens: int) -> bool:
        try:
            of = replace(job, prompt=max(tokens - job.program.image_tokens, 1), generate=1, cached=0)
            return replace(of, max_model_len=None).fits
        except LlmirError:
            return False

    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def of_sweep(name: str, over: str, sweep: Sweep) -> CurveGroup:
    """A curve for each structure and each combination of the other axes of a sweep; InputError for too many
    curves.
    """
    if len(sweep.axes[over]) < 2:
        raise InputError(f"{name}: this sweep has only one {over}; expected several")
    found = tuple(_lines(over, sweep))
    if not found:
        raise InputError(f"{name}: all rows of this sweep are refused")
    if len(found) > len(MARKS):
        others = " and ".join(a for a, v in sweep.axes.items() if len(v) > 1 and a != over)
        raise InputError(f"{name}: {len(found)} curves, one for each of {others}; the limit is {len(MARKS)}")
    about = " · ".join([*fixed(sweep, "hw"), *sweep.basis])
    device = " and ".join(map(str, sweep.axes["hw"]))
    title = f"{sweep.model} on {device}: steps by {over}"
    return CurveGroup(title, (about,), found)


def fixed(sweep: Sweep, *but: str) -> list[str]:
    """The axes of a sweep that have one value, as text, except the axes in a list."""
    said = ((a, v[0]) for a, v in sweep.axes.items() if len(v) == 1 and v[0] and a not in but)
    return [f"{a} {value:,}" if isinstance(value, int) else str(value) for a, value in said]


def _lines(over: str, sweep: Sweep) -> Iterator[StepCurve]:
    columns = sweep.columns
    others = [axis for axis, values in sweep.axes.items() if len(values) > 1 and axis != over]
    rows: dict[tuple[object, ...], list[int]] = {}
    keys = zip(*(columns[axis].tolist() for axis in others), strict=True) if others else iter(())
    for i, known in enumerate(np.isfinite(np.asarray(columns["time_s"], dtype=float)).tolist()):
        key = next(keys, ())
        if known:
            rows.setdefault(key, []).append(i)
    for key, of in rows.items():
        pairs = zip(others, key, strict=True)
        label = ", ".join(f"{a} {v:g}" if isinstance(v, float) else f"{a} {v}" for a, v in pairs)
        picked = {n: np.asarray(columns[n], dtype=float)[of] for n in PICKED}
        x = np.asarray(columns[over], dtype=float)[of]
        order = np.argsort(x, kind="stable")
        tokens, kept = picked["batch"] * picked["new"], ("time_s", "error", "fits")
        yield StepCurve(label, x[order], tokens[order], *(picked[n][order] for n in kept))


# Charts

HOLLOW = "hollow: the requests do not fit in memory together"


def batch(data: Workload | Report | Sweep, ax: Any = None) -> Any:
    """`llmir.plot_batch`."""
    name = "plot_batch"
    found = curves(name, "batch", data)
    ax = axes(name, ax)
    right = ax.twinx()
    one = len(found.each) == 1
    for curve, mark in zip(found.each, MARKS, strict=False):
        early, late = (MARKS[0], MARKS[1]) if one else (mark._replace(linestyle=s) for s in ("-", ":"))
        band = _within(curve)
        _draw(ax, curve, curve.tokens / curve.time_s, early, curve.tokens / band[::-1])
        _draw(right, curve, curve.time_s, late, band)
    _frame(ax, "sequences in a step", found.each)
    right.spines["top"].set_visible(False)
    right.set_yscale("log")
    right.tick_params(labelsize=8)
    for axis, label in ((ax, "throughput, tokens/s"), (right, "time of a step (TPOT of a decode)")):
        unit(axis.yaxis, "s" if axis is right else "")
        axis.set_ylabel(label, fontsize=9)
    _ruled(ax, found.limit, "more do not fit")
    head(ax, found.title, *found.lines)
    if one:
        said = [_handle("throughput, left", MARKS[0]), _handle("time of a step, right", MARKS[1])]
    else:
        said = [_handle(c.label, m._replace(linestyle="-")) for c, m in zip(found.each, MARKS, strict=False)]
        said += [line("throughput, left", color=INK), line("time, right", color=INK, linestyle=":")]
    notes(ax, said, _band(found.each), _hollow(found.each))
    return ax


def context(data: Workload | Report | Sweep, ax: Any = None) -> Any:
    """`llmir.plot_context`."""
    name = "plot_context"
    found = curves(name, "context", data)
    ax = axes(name, ax)
    for curve, mark in zip(found.each, MARKS, strict=False):
        _draw(ax, curve, curve.time_s, mark, _within(curve))
    _frame(ax, "context: tokens cached of each sequence", found.each)
    unit(ax.yaxis, "s")
    ax.set_ylabel("time of a step", fontsize=9)
    _ruled(ax, found.limit, "longer ones do not fit")
    head(ax, found.title, *found.lines)
    said = [_handle(c.label, mark) for c, mark in zip(found.each, MARKS, strict=False) if c.label]
    notes(ax, said, _band(found.each), _hollow(found.each))
    return ax


def _within(curve: StepCurve) -> Array:
    """The seconds less and plus the known error."""
    return np.asarray(curve.time_s * (1 + np.array([[-1], [1]]) * curve.error))


def _draw(ax: Any, curve: StepCurve, y: Any, mark: LineStyle, band: Any) -> None:
    """A line with the band of its error; points that do not fit have hollow marks."""
    late = curve.fits == 0
    style = {"color": mark.color, "linestyle": mark.linestyle, "marker": mark.marker, "markersize": 5}
    full = np.flatnonzero(~late).tolist()
    ax.plot(curve.x, y, label=curve.label or "_", linewidth=1.5, markevery=full, **style)
    if late.any():
        hollow = {"facecolors": "white", "edgecolors": mark.color, "marker": mark.marker, "s": 26}
        ax.scatter(curve.x[late], y[late], zorder=3, **hollow)
    if np.isfinite(band).all():
        ax.fill_between(curve.x, *band, color=mark.color, alpha=0.15, linewidth=0)


def _frame(ax: Any, label: str, each: tuple[StepCurve, ...]) -> None:
    positive = min((c.x[c.x > 0].min() for c in each if (c.x > 0).any()), default=1)
    zero = any((c.x == 0).any() for c in each)
    ax.set_xscale(*("symlog",) if zero else ("log",), **({"linthresh": positive} if zero else {}))
    ax.set_yscale("log")
    every = np.concatenate([c.x for c in each])
    powers = [x for x in every.tolist() if x == 0 or float(np.log2(x)).is_integer()]
    counts(ax.xaxis, powers if len(powers) > 1 else every.tolist())
    plain(ax)
    ax.set_xlabel(label, fontsize=9)


def _ruled(ax: Any, limit: float | None, words: str) -> None:
    """The region beyond a limit, if it is visible, and its start."""
    low, high = ax.get_xlim()
    limit = None if limit is None else max(limit, low)
    if limit is None or limit >= high:
        return
    hatch_region(ax, limit, high)
    ax.set_xlim(low, high)
    inside = np.log(limit / low) < 0.5 * np.log(high / low) if low > 0 else False
    ax.annotate(
        f"fits up to {limit:,.0f};\n{words}" if limit > low else "none fits",
        (limit, 0.02),
        (4 if inside else -4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="left" if inside else "right",
        va="bottom",
        fontsize=8,
        color=MUTED,
        backgroundcolor="white" if inside else "none",
    )
    ax.axvline(limit, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))


def _handle(label: str, mark: LineStyle) -> Any:
    return line(label, color=mark.color, marker=mark.marker, linestyle=mark.linestyle, markersize=5)


def _band(each: tuple[StepCurve, ...]) -> str:
    known = np.concatenate([c.error[np.isfinite(c.error)] for c in each])
    if not known.size:
        return ""
    low, high = (f"{100 * float(f(known)):.0f}" for f in (np.min, np.max))
    return f"shaded: ± {low if low == high else f'{low}–{high}'}%, the known mean error of such times"


def _hollow(each: tuple[StepCurve, ...]) -> str:
    return HOLLOW if any((c.fits == 0).any() for c in each) else ""
