"""Charts of shares: parameters, FLOPs, bytes and time by block of the model or by kind of op.

First come the shares as data (`ShareColumn`, `TimeColumn`), and then the chart `distributions` with prefill
above decode (`llmir.plot_distributions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from llmir.backends.export import units, wording
from llmir.backends.export.dot.labels import INK, MUTED, PAINT
from llmir.backends.request.workload import Workload
from llmir.backends.step.evaluate import BUBBLE, OVERHEAD, OpCost
from llmir.backends.step.report import Report
from llmir.backends.step.timing import OVERHEAD_ROWS
from llmir.base.arguments import choice
from llmir.ir.core.program import Instance, Program
from llmir.ir.sizes.binding import Binding

from .frame import LETTERS, SMALL, TEXT, TINY, axes, head, notes, setting, swatch
from .roofline import settings, steps

# Shares as data

BY = ("block", "kind")
Shares = Mapping[str, float]  # shares by row; their sum is 1


class ShareColumn(NamedTuple):
    """The shares of one amount by phase, with one row per block or kind, and the total."""

    total: Mapping[str, float]
    shares: Mapping[str, Shares]


class TimeColumn(NamedTuple):
    """Seconds by row and by bound, each as a share of `whole_s`."""

    whole_s: float
    shares: Mapping[str, Shares]  # shares by row, and then by bound

    @property
    def rows(self) -> Shares:
        """The sum over all bounds, by row."""
        return {row: sum(of.values()) for row, of in self.shares.items()}


def row_of(cost: OpCost, by: str) -> str:
    """The row of the chart to which a row of a report belongs; overhead has separate rows."""
    if cost.kind == OVERHEAD:
        return cost.name.rpartition(".")[2]
    return cost.block if by == "block" else cost.kind


def parameters(program: Program, by: str) -> Mapping[str, int]:
    """Parameters by block, or by the kind of the first op that reads them."""
    if by == "block":
        return program.parameters_by_kind
    found: Counter[str] = Counter()
    for at in program.weights():
        if count := Binding()(at.node.op.parameters):
            found[_kind(at)] += count * at.repeat
    return found


def _kind(at: Instance) -> str:
    """The kind of the first op that reads a weight; ops that take no time are skipped."""
    seen = {at.node.name}
    for node in at.graph.nodes:
        if any(operand.node in seen for operand in node.operands):
            if node.op.runs:
                return node.op.kind
            seen.add(node.name)
    return "unread"


def work(step: Report, by: str, amount: Callable[[OpCost], float]) -> dict[str, float]:
    """The sum of an amount over all ops, by row."""
    found: dict[str, float] = {}
    for op in step.work:
        if value := op.repeat * amount(op):
            row = row_of(op, by)
            found[row] = found.get(row, 0.0) + value
    return found


def column(of: Mapping[str, Mapping[str, float]]) -> ShareColumn:
    """Shares of amounts by phase and row."""
    total = {phase: float(sum(rows.values())) for phase, rows in of.items()}
    known = {phase: rows for phase, rows in of.items() if total[phase]}
    shares = {
        phase: {row: float(n) / total[phase] for row, n in rows.items()} for phase, rows in known.items()
    }
    return ShareColumn(total, shares)


def times(step: Report, by: str) -> TimeColumn:
    """The distribution of a step's time."""
    found: dict[str, dict[str, float]] = {}
    for op in step.ops:
        if seconds := float(op.total_s):
            bounds = found.setdefault(row_of(op, by), {})
            bounds[str(op.bound)] = bounds.get(str(op.bound), 0.0) + seconds
    whole = sum(sum(bounds.values()) for bounds in found.values())
    shares = {row: {b: s / whole for b, s in bounds.items()} for row, bounds in found.items()}
    return TimeColumn(whole, shares)


# The chart

PITCH = 1.42  # distance between columns; a full bar has the width 1
# height of a bar, and distance between the bars of one row, relative to the height of a row
THICK, APART = 0.26, 0.36
TONES = (("#3D4659", ""), ("#D5DAE3", "...."), ("#8B93A5", "////"), ("#FFFFFF", "xxxx"))
ROOM = 0.085  # smallest width of a bar that shows a letter
LAST = (*OVERHEAD_ROWS.values(), BUBBLE)


class ShareTable(NamedTuple):
    """The content of the chart: columns of amounts, seconds by phase, and the rows that have a value in any
    column.
    """

    columns: Mapping[str, ShareColumn]
    seconds: Mapping[str, TimeColumn]
    rows: list[str]


def table(program: Program, of: Mapping[str, Report], by: str) -> ShareTable:
    """The shares of each column, by block or kind."""
    columns = {
        "parameters": column({"": parameters(program, by)}),
        "FLOPs": column({p: work(s, by, lambda op: float(op.flops)) for p, s in of.items()}),
        "bytes moved": column(
            {p: work(s, by, lambda op: float(op.read_bytes + op.write_bytes)) for p, s in of.items()}
        ),
    }
    seconds = {phase: times(step, by) for phase, step in of.items()}
    return ShareTable(columns, seconds, _rows(columns, seconds))


def height(program: Program, of: Mapping[str, Report], by: str) -> float:
    """The height of the chart on a page, in inches."""
    return 2.2 + 0.4 * len(table(program, of, by).rows) * max(1.0, len(of) / 2)


def distributions(data: Workload | Report, ax: Any = None, by: str = "block") -> Any:
    """`llmir.plot_distributions`."""
    name = "plot_distributions"
    choice("by", by, BY)
    of = steps(name, data)
    program = data.program
    columns, seconds, rows = table(program, of, by)
    ax = axes(name, ax, height(program, of, by))
    ax.set(xlim=(-0.02, PITCH * 4 - 0.06), ylim=(len(rows) - 0.5, -1.35))
    for i in range(1, len(rows), 2):
        ax.axhspan(i - 0.5, i + 0.5, color="#F4F6F9", zorder=0, linewidth=0)
    for number, (title, each) in enumerate(columns.items()):
        _head(ax, number, title, _total(title, each))
        for place, (phase, tone) in enumerate(zip(of, TONES, strict=False)):
            shares = each.shares.get("" if number == 0 else phase, {})
            if number and shares:
                _bars(ax, number, rows, shares, _offset(place, len(of)), tone, f"{title}, {phase}")
        if not number:
            _bars(ax, number, rows, each.shares.get("", {}), 0.0, ("#8B93A5", ""), title)
    _head(ax, 3, "time", " → ".join(units.time(float(step.time_s)) for step in of.values()))
    for place, phase in enumerate(of):
        _stacked(ax, rows, seconds[phase], _offset(place, len(of)), phase)
    ax.set_yticks(range(len(rows)), [row.replace("_", " ") for row in rows], fontsize=TEXT)
    ax.tick_params(axis="y", length=0)
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.axhline(-0.5, color="#D5DAE3", linewidth=1)
    first = next(iter(of.values()))
    where = wording.model_on_devices(data)
    lines = (*settings(of), setting(program, first.plan.model))
    head(ax, f"Where parameters, FLOPs, bytes and time of {where} are", *lines)
    notes(ax, _handles(of, seconds), _words(of), down=6)
    return ax


def _rows(columns: Mapping[str, ShareColumn], seconds: Mapping[str, TimeColumn]) -> list[str]:
    """All rows in descending order of their largest share; overhead and bubbles come last."""
    most: dict[str, float] = {}
    every = [shares for each in columns.values() for shares in each.shares.values()]
    for shares in (*every, *(time.rows for time in seconds.values())):
        for row, share in shares.items():
            most[row] = most.get(row, 0.0) + share
    return sorted(most, key=lambda row: (row in LAST, -most[row]))


def _offset(place: int, count: int) -> float:
    return (place - (count - 1) / 2) * APART


def _head(ax: Any, number: int, title: str, total: str) -> None:
    """The heading of a column, and its total."""
    ax.text(number * PITCH, -1.0, title, fontsize=10, fontweight="bold", color=INK, va="center")
    ax.text(number * PITCH, -0.66, total, fontsize=SMALL, color=MUTED, va="center")


def _total(title: str, each: ShareColumn) -> str:
    said = {"parameters": units.count, "FLOPs": units.flops, "bytes moved": units.bytes}[title]
    return " → ".join(map(said, each.total.values()))


def _bars(
    ax: Any,
    number: int,
    rows: list[str],
    shares: Mapping[str, float],
    offset: float,
    tone: tuple[str, str],
    label: str,
) -> None:
    """Bars of one column and phase, with their shares; `none` without values."""
    left, (fill, hatch) = number * PITCH, tone
    height = THICK if offset or number else THICK * 1.3
    values = [shares.get(row, 0.0) for row in rows]
    places = [i + offset for i in range(len(rows))]
    style = {"facecolor": fill, "edgecolor": "#3D4659", "linewidth": 0.8, "hatch": hatch, "label": label}
    ax.barh(places, values, height, left=left, **style)
    for at, share in zip(places, values, strict=True):
        _share(ax, left + share, at, share)


def _share(ax: Any, x: float, y: float, share: float, letters: str = "") -> None:
    words = units.percent(share) if share else "none"
    colour = INK if share else "#A3ABB8"
    ax.annotate(
        words,
        (x, y),
        (4, 0),
        textcoords="offset points",
        fontsize=SMALL - 0.5,
        va="center_baseline",
        color=colour,
    )
    if letters:
        ax.annotate(
            letters,
            (x, y),
            (34, 0),
            textcoords="offset points",
            fontsize=TINY,
            fontweight="bold",
            va="center_baseline",
            color=MUTED,
        )


def _stacked(ax: Any, rows: list[str], time: TimeColumn, offset: float, phase: str) -> None:
    """The time of a phase: each row is a bar that is split by bound, with the letter of the bound in or after
    each piece.
    """
    left = [3 * PITCH] * len(rows)
    behind = [""] * len(rows)
    for bound, letter in LETTERS.items():
        values = [time.shares.get(row, {}).get(bound, 0.0) for row in rows]
        if not any(values):
            continue
        paint, places = PAINT[bound], [i + offset for i in range(len(rows))]
        style = {"facecolor": paint.fill, "edgecolor": paint.line, "linewidth": 1.0}
        ax.barh(places, values, THICK, left=left, label=f"time, {phase}, {bound}", **style)
        for i, share in enumerate(values):
            if share >= ROOM:
                ax.text(
                    left[i] + share / 2,
                    places[i],
                    letter,
                    fontsize=TINY,
                    fontweight="bold",
                    ha="center",
                    va="center_baseline",
                    color=paint.ink,
                )
            elif share:
                behind[i] += letter
            left[i] += share
    for i, row in enumerate(rows):
        _share(ax, left[i], i + offset, time.rows.get(row, 0.0), behind[i])


def _handles(of: Mapping[str, Report], seconds: Mapping[str, TimeColumn]) -> list[Any]:
    from matplotlib.patches import Patch

    words = ("above", "below") if len(of) == 2 else tuple(f"{n + 1}" for n in range(len(of)))
    labels = [f"{phase} ({word})" if len(of) > 1 else phase for phase, word in zip(of, words, strict=True)]
    found = [
        Patch(facecolor=fill, edgecolor="#3D4659", hatch=hatch, label=label)
        for label, (fill, hatch) in zip(labels, TONES, strict=False)
    ]
    present = {bound for time in seconds.values() for bounds in time.shares.values() for bound in bounds}
    return found + [swatch(f"{LETTERS[bound]}  {bound}", bound) for bound in LETTERS if bound in present]


def _words(of: Mapping[str, Report]) -> str:
    """The amounts to which the shares refer."""
    apart = ", prefill and decode separately" if {"prefill", "decode"} <= of.keys() else ""
    return f"shares of each column's total{apart}; time by what bounds it"
