"""The roofline chart: FLOP/s of each op of a step against its FLOPs per byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from llmir.backends.cost.roofline import limits
from llmir.backends.export import units, wording
from llmir.backends.export.dot.labels import INK, MUTED, PAINT
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.errors import InputError

from .frame import (
    LETTERS,
    TEXT,
    TINY,
    Label,
    Labels,
    axes,
    head,
    lay_out,
    line,
    notes,
    plain,
    setting,
    swatch,
    unit,
)

# area of the mark of a whole step, and of the smallest mark in which its letter fits
WHOLE, LEAST = 3600.0, 70.0
NAMED = 0.04  # ops with at least this share of the step are labeled
SHAPES = ("s", "o", "^", "D")
NEAR = 17.0  # marks within this distance, in points, share a label


class RooflinePoint(NamedTuple):
    """Equal ops of a step: arithmetic intensity, achieved FLOP/s, and their share of the step."""

    name: str
    intensity: float
    flops_per_s: float
    share: float
    bound: str
    ideal: float  # the share of the roofline in the op's time


def steps(name: str, data: Workload | Report) -> Mapping[str, Report]:
    """The steps of a workload by phase, or the single step of a report; InputError for a grid."""
    found = data.steps if isinstance(data, Workload) else {data.phase or "step": data}
    if shape := next((step.shape for step in found.values() if step.shape), ()):
        raise InputError(f"{name}: expected a step at one point, got a grid of {shape}")
    return found


def ops(step: Report) -> tuple[list[RooflinePoint], dict[str, float]]:
    """The ops of a step with FLOPs, and the shares of the ops without FLOPs."""
    merged: dict[tuple[Any, ...], list[float]] = {}
    idle: dict[str, float] = {}
    for row in step.work:
        name, share = row.name.rpartition(".")[2], float(row.share)
        if row.flops and row.time_s and isfinite(float(row.intensity)):
            figures = float(row.intensity), float(row.flops) / float(row.time_s)
            key = (name, *figures, str(row.bound))
            known = merged.setdefault(key, [0.0, float(row.ideal_time_s) / float(row.time_s)])
            known[0] += share
        else:
            idle[name] = idle.get(name, 0.0) + share
    return [
        RooflinePoint(n, x, y, share, bound, ideal) for (n, x, y, bound), (share, ideal) in merged.items()
    ], idle


def roofs(steps: Iterable[Report]) -> tuple[float, dict[str, float]]:
    """The bandwidth in bytes per second, and the FLOP/s of the units that the ops of some steps use."""
    found: dict[str, float] = {}
    memory = 0.0
    for step in steps:
        for row in step.plan.rows:
            for limit in limits(step.plan.model.device, row):
                if limit.bound == "compute":
                    found[limit.what.removesuffix(" FLOPs")] = limit.rate
                elif limit.bound == "memory":
                    memory = limit.rate
    return memory, dict(sorted(found.items(), key=lambda roof: -roof[1]))


def roofline(data: Workload | Report, ax: Any = None) -> Any:
    """`llmir.plot_roofline`."""
    of = steps("plot_roofline", data)
    each = {phase: ops(step) for phase, step in of.items()}
    every = [op for found, _ in each.values() for op in found]
    if not every:
        raise InputError(f"plot_roofline: no op of {data.program.name} does FLOPs")
    ax = axes("plot_roofline", ax, 6.2)
    first = next(iter(of.values()))
    memory, peaks = roofs(of.values())
    _limits(ax, every, memory, peaks)
    shapes = dict(zip(of, SHAPES, strict=False))
    for phase, (found, _) in each.items():
        _marks(ax, found, shapes[phase], phase)
    plain(ax)
    unit(ax.yaxis)
    unit(ax.xaxis)
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
    ax.set_xlabel("arithmetic intensity, FLOP per byte moved", fontsize=TEXT)
    ax.set_ylabel("FLOP/s reached by a rank", fontsize=TEXT)
    both = ": prefill against decode" if {"prefill", "decode"} <= of.keys() else ""
    lines = (*settings(of), setting(first.program, first.plan.model))
    head(ax, f"Roofline of {wording.model_on_devices(data)}{both}", *lines)
    present = dict.fromkeys(op.bound for op in every)
    handles = [swatch(f"{LETTERS[b]}  {b}", b) for b in LETTERS if b in present]
    handles += [line(p, marker=shapes[p], linestyle="", markerfacecolor="white", color=INK) for p in of]
    notes(ax, handles, "area: share of its step", *_without_roofline(of, each))
    _named(ax, each, memory, peaks)
    return ax


def settings(of: Mapping[str, Report]) -> list[str]:
    """One line of text about each step, with its time."""
    return [
        f"{phase} {units.time(float(s.time_s))}{wording.error_band(s.error)}: {wording.step_title(s)}"
        for phase, s in of.items()
    ]


def _limits(ax: Any, every: Sequence[RooflinePoint], memory: float, peaks: Mapping[str, float]) -> None:
    """Set the scales of the axes so that all marks and the ridge point are visible, and draw the
    rooflines.
    """
    top = max(peaks.values(), default=max(op.flops_per_s for op in every))
    low = min(op.intensity for op in every) / 2.5
    high = max(*(op.intensity for op in every), top / memory if memory else 1) * 6
    bottom = min(op.flops_per_s for op in every) / 3
    top = max(top, *(op.flops_per_s for op in every)) * 3
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, top))
    best = max(peaks.values(), default=0.0)
    for i, (what, rate) in enumerate(peaks.items()):
        style: dict[str, Any] = {"color": INK, "linewidth": 1.6} if rate == best else {"color": MUTED}
        ridge = max(rate / memory, low) if memory else low
        dashes = "-" if rate == best else ("--", "-.", ":")[(i - 1) % 3]
        ax.plot([ridge, high], [rate, rate], linestyle=dashes, zorder=1, label=what, **style)
    if memory:
        ends = [low, best / memory if best else high]
        ax.plot(ends, [x * memory for x in ends], color=INK, linewidth=1.6, zorder=1, label="memory")
        if best:
            ax.axvline(best / memory, color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)), zorder=0)


def _marks(ax: Any, found: Sequence[RooflinePoint], shape: str, phase: str) -> None:
    """Draw the marks of one phase, the largest ones behind the others; each mark shows the letter of its
    bound.
    """
    for op in sorted(found, key=lambda op: -op.share):
        paint = PAINT[op.bound]
        ax.scatter(
            [op.intensity],
            [op.flops_per_s],
            s=area(op.share),
            marker=shape,
            facecolors=paint.fill,
            edgecolors=paint.line,
            linewidths=1.3,
            label=f"{phase} {op.name}",
            zorder=3,
        )
        ax.annotate(
            LETTERS[op.bound],
            (op.intensity, op.flops_per_s),
            ha="center",
            va="center_baseline",
            fontsize=TINY,
            fontweight="bold",
            color=paint.ink,
            zorder=3,
        ).set_in_layout(False)


def area(share: float) -> float:
    """The area of a mark in square points: proportional to the share, with a minimum."""
    return max(LEAST, WHOLE * share)


def _without_roofline(
    of: Mapping[str, Report], each: Mapping[str, tuple[list[RooflinePoint], dict[str, float]]]
) -> list[str]:
    """A note on parts of a step that have no place on a roofline: ops without FLOPs, and engine overhead."""
    idle = dict.fromkeys(name for _, names in each.values() for name in names)
    shares = (f"{units.percent(sum(names.values()))} of {phase}" for phase, (_, names) in each.items())
    lines = [f"not drawn, for they do no FLOPs: {', '.join(idle)}; {', '.join(shares)}"] if idle else []
    engine = [f"{phase} {wording.overhead(step)}" for phase, step in of.items() if step.engine]
    return [*lines, *([f"added by the engine: {'; '.join(engine)}"] if engine else [])]


def _named(
    ax: Any,
    each: Mapping[str, tuple[list[RooflinePoint], dict[str, float]]],
    memory: float,
    peaks: Mapping[str, float],
) -> None:
    """Label the largest ops and the rooflines, without overlaps."""
    lay_out(ax)
    labels = Labels(ax)
    for found, _ in each.values():
        for op in found:
            labels.occupy((op.intensity, op.flops_per_s), area(op.share))
    low, high = ax.get_xlim()
    labels.ruled([line.get_xydata() for line in ax.lines])
    for what, rate in peaks.items():
        ridge = max(rate / memory, low) if memory else low
        labels.beside((ridge, rate), (high, rate), f"{what} {units.flops(rate)}/s")
    if memory:
        labels.along(low, memory, f"memory {units.bytes(memory)}/s")
        if peaks:
            ridge = max(peaks.values()) / memory
            labels.foot(ridge, f"ridge {units.digits(ridge)} FLOP/byte")
    for phase, (found, _) in each.items():
        for group in _merge_labels(ax, [op for op in found if op.share >= NAMED]):
            labels.place(_label(group, phase))


def _merge_labels(ax: Any, found: Sequence[RooflinePoint]) -> list[list[RooflinePoint]]:
    """Group ops that are close enough to share one label, the largest first."""
    groups: list[list[RooflinePoint]] = []
    scale = 72 / ax.figure.dpi
    place = {op: ax.transData.transform((op.intensity, op.flops_per_s)) * scale for op in found}
    for op in sorted(found, key=lambda op: -op.share):
        for group in groups:
            away = place[op] - place[group[0]]
            if float(away @ away) < NEAR**2:
                group.append(op)
                break
        else:
            groups.append([op])
    return groups


def _label(group: Sequence[RooflinePoint], phase: str) -> Label:
    """The names of the ops, with their shares below; for a single op, also the share of the roofline in its
    time.
    """
    names = ", ".join(dict.fromkeys(op.name for op in group[:3])) + (" …" if len(group) > 3 else "")
    shares = ", ".join(units.percent(op.share) for op in group[:3])
    roof = f", {units.percent(group[0].ideal)} of its roof" if len(group) == 1 and group[0].ideal < 1 else ""
    first = group[0]
    return Label((first.intensity, first.flops_per_s), area(first.share), names, f"{shares} of {phase}{roof}")
