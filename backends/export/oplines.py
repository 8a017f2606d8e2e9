"""The rows of a report as short strings: one wording for the terminal, Markdown and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from llmir.backends.step.costs import OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.backends.work.rows import TRAFFIC
from llmir.base.array_namespace import Number

from . import units
from .wording import percent_off, plain

_NONE = "–"


class OpLine(NamedTuple):
    """One op as a table shows it; times, FLOPs and bytes are of one execution, the share of all repeats."""

    group: str
    name: str
    kind: str
    repeat: str
    time: str
    error: str
    share: str
    flops: str
    bytes: str
    roles: str
    intensity: str
    bound: str
    ideal: str
    shape: str


HEADINGS = OpLine(
    group="",
    name="op",
    kind="kind",
    repeat="×",
    time="time",
    error="±",
    share="share",
    flops="FLOPs",
    bytes="bytes",
    roles="w/kv/a",
    intensity="FLOP/B",
    bound="bound",
    ideal="ideal",
    shape="result shape",
)
NUMERIC = frozenset({"repeat", "time", "error", "share", "flops", "bytes", "roles", "intensity", "ideal"})
REMARKS = {
    "time": "time, FLOPs, bytes: of one execution; share, total: of all of them",
    "error": "±: mean error on shapes left out of the fit; ~: of another device's kernels",
    "roles": "w/kv/a: percent of the bytes that are weights, KV cache and activations",
    "ideal": "ideal: the roofline's part of the time",
}


def op_lines(report: Report) -> list[OpLine]:
    """The ops of one point, in schedule order."""
    return [_line(op) for op in report.ops]


def _line(op: OpCost) -> OpLine:
    group, _, name = op.name.rpartition(".")
    return OpLine(
        plain(group),
        plain(name),
        op.kind,
        f"×{op.repeat}" if op.repeat > 1 else "",
        units.time(op.time_s),
        _band(op),
        units.percent(op.share),
        units.flops(op.flops) if op.flops else _NONE,
        units.bytes(op.read_bytes + op.write_bytes) if op.kind != OVERHEAD else _NONE,
        _roles(vars(op)),
        units.digits(op.intensity) if op.flops else _NONE,
        op.bound,
        _ideal(op.ideal_time_s, op.time_s) if op.kind != OVERHEAD else _NONE,
        "×".join(str(n) for n in op.shape) or ("scalar" if op.kind != OVERHEAD else ""),
    )


def _roles(figures: Mapping[str, Any]) -> str:
    """What percent of the bytes moved are of weights, of the KV cache and of activations.

    >>> _roles({f"{role}_bytes": n for role, n in zip(TRAFFIC, (667, 300, 0, 33, 0))})
    '67/0/33'
    """
    moved = {"weight": 0.0, "kv_cache": 0.0, "activation": 0.0}
    for role in TRAFFIC:
        moved[role.rpartition("_")[0]] += float(figures[f"{role}_bytes"])
    whole = sum(moved.values())
    return "/".join(f"{100 * part / whole:.0f}" for part in moved.values()) if whole else _NONE


def _band(op: OpCost) -> str:
    """The error of the op's time, `~` where kernels are borrowed; nothing is known of a roofline's."""
    return f"{'~' if op.basis.borrowed else ''}{percent_off(op.error)}"


def _ideal(least: Number, time: Number) -> str:
    return units.percent(least / time) if time else _NONE


def total_line(report: Report) -> OpLine:
    """The step: every op times its repeats."""
    moved = report.read_bytes + report.write_bytes
    return OpLine(
        "",
        "total",
        "",
        "",
        units.time(report.time_s),
        percent_off(report.error),
        "100%",
        units.flops(report.flops),
        units.bytes(moved),
        _roles(report.bytes_by_role),
        units.digits(report.flops / moved) if moved else _NONE,
        max(report.bound, key=lambda b: report.bound[b]) if report.time_s else _NONE,
        _ideal(report.ideal_time_s, report.time_s),
        "",
    )


def flat(report: Report) -> tuple[list[str], list[list[str]], list[int]]:
    """Headings, rows and the numeric columns of a table whose rows say all, with the total last."""
    lines = [x._replace(name=f"{x.group}.{x.name}" if x.group else x.name) for x in op_lines(report)]
    chosen = [f for f in fields(report) if f != "group"]
    rows = [[getattr(x, f) for f in chosen] for x in (*lines, total_line(report))]
    return [getattr(HEADINGS, f) for f in chosen], rows, [i for i, f in enumerate(chosen) if f in NUMERIC]


def fields(report: Report) -> list[str]:
    """What a table says of an op: of a roofline, not its share of that; errors where some are known."""
    hidden = {"ideal": {"ideal", "error"}, "calibrated": set[str]()}.get(report.cost_model, {"error"})
    return [f for f in OpLine._fields if f not in hidden]


def remarks(report: Report) -> tuple[str, ...]:
    """What the columns of its ops mean."""
    shown = fields(report)
    return tuple(words for field, words in REMARKS.items() if field in shown)


def sums(report: Report) -> list[str]:
    """How the rows add up to the step, on each stage; nothing where there are ops alone."""
    found = []
    for stage in report.stages:
        parts = [f"ops {units.time(stage.ops_s)}"]
        parts += [f"engine_overhead {units.time(stage.overhead_s)}"] if report.engine else []
        parts += [f"bubble {units.time(stage.bubble_s)}"] if len(report.stages) > 1 else []
        where = f"stage {stage.stage}: " if len(report.stages) > 1 else ""
        found += [f"{where}{' + '.join(parts)} = {units.time(report.time_s)}"] if len(parts) > 1 else []
    if report.engine and any(stage.overhead_s < 0 for stage in report.stages):
        found.append("engine_overhead below 0: a graph hides launches that are in the ops' times")
    return found
