"""Throughput and time over the batch, time over the context."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmir.backends.export.dot.label import INK, MUTED
from llmir.backends.request.workload import Workload
from llmir.backends.search.sweep import Sweep
from llmir.backends.step.report import Report
from llmir.base.values import Array

from .frame import MARKS, Mark, axes, counts, hatched, head, line, notes, plain, unit
from .points import Curve, curves

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


def _within(curve: Curve) -> Array:
    """Seconds less and more by the error that is known."""
    return np.asarray(curve.time_s * (1 + np.array([[-1], [1]]) * curve.error))


def _draw(ax: Any, curve: Curve, y: Any, mark: Mark, band: Any) -> None:
    """A line with the band of its error; what does not fit has hollow marks."""
    late = curve.fits == 0
    style = {"color": mark.color, "linestyle": mark.linestyle, "marker": mark.marker, "markersize": 5}
    full = np.flatnonzero(~late).tolist()
    ax.plot(curve.x, y, label=curve.label or "_", linewidth=1.5, markevery=full, **style)
    if late.any():
        hollow = {"facecolors": "white", "edgecolors": mark.color, "marker": mark.marker, "s": 26}
        ax.scatter(curve.x[late], y[late], zorder=3, **hollow)
    if np.isfinite(band).all():
        ax.fill_between(curve.x, *band, color=mark.color, alpha=0.15, linewidth=0)


def _frame(ax: Any, label: str, each: tuple[Curve, ...]) -> None:
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
    """The region beyond a limit, if it is in sight, and where it begins."""
    low, high = ax.get_xlim()
    limit = None if limit is None else max(limit, low)
    if limit is None or limit >= high:
        return
    hatched(ax, limit, high)
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


def _handle(label: str, mark: Mark) -> Any:
    return line(label, color=mark.color, marker=mark.marker, linestyle=mark.linestyle, markersize=5)


def _band(each: tuple[Curve, ...]) -> str:
    known = np.concatenate([c.error[np.isfinite(c.error)] for c in each])
    if not known.size:
        return ""
    low, high = (f"{100 * float(f(known)):.0f}" for f in (np.min, np.max))
    return f"shaded: ± {low if low == high else f'{low}–{high}'}%, the mean error that is known of such times"


def _hollow(each: tuple[Curve, ...]) -> str:
    return HOLLOW if any((c.fits == 0).any() for c in each) else ""
