"""Charts of Pareto fronts: tokens/s per GPU against tokens/s per user, of plans or of a sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from llmir.backends.export import plan as plan_text
from llmir.backends.export import units, wording
from llmir.backends.export.dot.labels import MUTED
from llmir.backends.search.front import front as best_of
from llmir.backends.search.plan import Plans, decode_step
from llmir.backends.search.sweep import Sweep
from llmir.backends.search.traffic import LatencyLimit
from llmir.base.errors import InputError
from llmir.base.values import Array

from . import curves
from .frame import (
    CHOSEN,
    FINE,
    LIMIT,
    MARKS,
    TEXT,
    axes,
    counts,
    hatch_region,
    head,
    line,
    notes,
    plain,
    unit,
)

NUMBERED = 9  # number of plans after the first one that are numbered in the picture
PALE = "#B9C0CB"
BEATEN = 500  # number of points that are drawn although they are not on the front


class FrontPoints(NamedTuple):
    """Plans of one device: tokens/s per user and per GPU; whether each plan is on the front, and whether it
    fits in memory.
    """

    device: str
    users: Array
    gpus: Array
    front: Array
    fits: Array


def of_plans(plans: Plans) -> list[FrontPoints]:
    """The points that the search estimated by closed form, by device."""
    names = np.array([s.device.name for s in plans.structures], dtype=object)[plans.points.structure]
    on = np.zeros(len(names), dtype=bool)
    on[plans.front] = True
    users, gpus = plans.tokens_per_s_user, plans.tokens_per_s_device
    found = []
    for name in dict.fromkeys(names.tolist()):
        of = names == name
        found.append(FrontPoints(str(name), users[of], gpus[of], on[of], np.ones(int(of.sum()), dtype=bool)))
    return found


def of_sweep(sweep: Sweep) -> list[FrontPoints]:
    """The decode steps of a sweep, by device."""
    columns = sweep.columns
    names = np.asarray(columns["hw"], dtype=object)
    time, batch, new, devices, fits = (
        np.asarray(columns[name], dtype=float) for name in ("time_s", "batch", "new", "devices", "fits")
    )
    known = np.isfinite(time) & (new == 1)
    if not known.any():
        raise InputError("plot_front: this sweep has no decode steps (new=1) with figures")
    found = []
    for name in dict.fromkeys(names[known].tolist()):
        of = known & (names == name)
        users, gpus, room = 1 / time[of], batch[of] / time[of] / devices[of], fits[of] != 0
        on = best_of(np.where(room, users, np.nan), np.where(room, gpus, np.nan))
        found.append(FrontPoints(str(name), users, gpus, on, room))
    return found


def front(data: Plans | Sweep, ax: Any = None) -> Any:
    """`llmir.plot_front`."""
    found = of_plans(data) if isinstance(data, Plans) else of_sweep(data)
    if not found:
        raise InputError("plot_front: no plan fits in memory, so there is no front")
    if len(found) > len(MARKS):
        raise InputError(f"plot_front: {len(found)} devices; the limit is {len(MARKS)}")
    ax = axes("plot_front", ax, 5.6)
    for each, mark in zip(found, MARKS, strict=False):
        off = each.fits & ~each.front
        some = np.flatnonzero(off)[:: -(-int(off.sum()) // BEATEN) or 1]
        small = {"marker": mark.marker, "s": 12, "facecolors": "none", "edgecolors": PALE, "linewidths": 0.7}
        ax.scatter(each.users[some], each.gpus[some], label=f"{each.device}, beaten", zorder=2, **small)
        out, crosses = ~each.fits, {"marker": "x", "s": 18, "color": PALE, "zorder": 1}
        ax.scatter(each.users[out], each.gpus[out], label=f"{each.device}, does not fit", **crosses)
        order = np.lexsort((-each.gpus[each.front], each.users[each.front]))
        style = {"color": mark.color, "linestyle": mark.linestyle, "marker": mark.marker, "markersize": 6}
        best = (each.users[each.front][order], each.gpus[each.front][order])
        ax.plot(*best, label=each.device, markerfacecolor="white", linewidth=1.4, zorder=3, **style)
    every = [x for each in found for x in each.users.tolist()]
    ax.set_xscale("log")
    plain(ax)
    low, high = min(every), max(every)
    several = FINE if high < 10 * low else (1, 2, 5)
    counts(ax.xaxis, [n * 10**p for p in range(-3, 6) for n in several if low / 2 <= n * 10**p <= high * 2])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.3g}")
    ax.set_ylim(0, max(y for each in found for y in each.gpus.tolist()) * 1.12)
    unit(ax.yaxis)
    ax.set_xlabel("tokens/s of a user, 1 / TPOT", fontsize=TEXT)
    ax.set_ylabel("output tokens/s of a GPU", fontsize=TEXT)
    handles = [
        line(f"front of {each.device}", markerfacecolor="white", **mark._asdict())
        for each, mark in zip(found, MARKS, strict=False)
    ]
    handles += [line("beaten", linestyle="", marker=MARKS[0].marker, color=PALE, markerfacecolor="none")]
    if any(not each.fits.all() for each in found):
        handles += [line("does not fit", linestyle="", marker="x", color=PALE)]
    if isinstance(data, Plans):
        _chosen(ax, data)
        head(ax, f"{_model(data)}: {plan_text.answer(data)}", _traffic(data))
        numbered = "numbers: other plans of the table, as simulated" if len(data.shown) > 1 else ""
        notes(ax, handles, "; ".join(filter(None, ["marks: closed forms, saturated", numbered])))
    else:
        where = " and ".join(each.device for each in found)
        about = " · ".join([*curves.fixed(data, "hw", "new"), *data.basis])
        head(ax, f"{data.model} on {where}: throughput against speed", about)
        notes(ax, handles, "marks: decode steps of the sweep, by closed form")
    return ax


def _model(plans: Plans) -> str:
    return plans.structures[0].program.name if plans.structures else "plans"


def _traffic(plans: Plans) -> str:
    """The requested traffic, as one line."""
    of = plans.traffic
    limits = [
        f"{name} ≤ {units.time(limit.seconds)} ({limit.of})"
        for name, limit in (("TTFT", of.ttft), ("TPOT", of.tpot))
        if limit
    ]
    most = [] if plans.most_devices is None else [f"at most {plans.most_devices:,} GPUs"]
    asked = [f"{units.digits(of.rate)} requests/s", f"prompt {of.prompt}", f"generate {of.generate}"]
    errors = []
    for device, each in {c.structure.device.name: c for c in plans.shown}.items():
        step = decode_step(each)
        errors.append(f"{device} {wording.basis_text(step)}{wording.error_band(step.error)}")
    return " · ".join([*asked, *limits, *most, *errors])


def _chosen(ax: Any, plans: Plans) -> None:
    """Draw the limit of TPOT and the plans with their numbers, and mark the first plan."""
    _slow(ax, plans.traffic.tpot)
    for number, each in enumerate(plans.shown[: NUMBERED + 1], 1):
        if each is plans.best:
            continue
        ax.annotate(
            str(number),
            (each.tokens_per_s_user, each.tokens_per_s_device),
            fontsize=7,
            fontweight="bold",
            color=MUTED,
            ha="center",
            va="center",
            zorder=5,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": MUTED, "linewidth": 1.1},
        )
    if best := plans.best:
        x, y = best.tokens_per_s_user, best.tokens_per_s_device
        style = {"edgecolors": CHOSEN, "facecolors": "white", "linewidths": 1.6}
        ax.scatter([x], [y], s=190, zorder=6, **style)
        ax.scatter([x], [y], s=80, color=CHOSEN, label="chosen", zorder=7)
        top = ax.get_ylim()[1]
        left, right = ax.get_xlim()
        side = np.log(x / left) > 0.5 * np.log(right / left)
        ax.plot([x, x], [y, 0.95 * top], color=CHOSEN, linewidth=1.1, zorder=2)
        ax.annotate(
            f"chosen: {plan_text.name(plans, best)}",
            (x, 0.95 * top),
            (-4 if side else 4, 0),
            textcoords="offset points",
            ha="right" if side else "left",
            va="center",
            fontsize=TEXT,
            fontweight="bold",
            color=CHOSEN,
            zorder=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
        )


def _slow(ax: Any, limit: LatencyLimit | None) -> None:
    """Shade the region beyond a TPOT limit."""
    if limit is None:
        return
    left, right = ax.get_xlim()
    at = 1 / limit.seconds
    if at <= left or at >= right:
        return
    hatch_region(ax, left, at)
    ax.set_xlim(left, right)
    ax.axvline(at, color=LIMIT, linewidth=1.4, linestyle="--")
    ax.annotate(
        f"TPOT above {units.time(limit.seconds)}",
        (at, 0.015),
        (-4, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color=LIMIT,
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
    )
