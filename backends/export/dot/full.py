"""Level `full`: every op of every layer, one layer a row.

The places are computed here, for Graphviz's engine `nop2`, so that thousands of ops take no search.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.export import units

from .grid import GAP, HIGH, Point, Row, rows, spline, ways
from .label import MUTED, PAINT, PLAIN, Paint, fit, font, label, left, right, table, width
from .outline import Outline
from .page import LINE, head, new_graph, panel_head, panel_lines
from .sections import Box

KEY = "One layer a row. Each box: time of one run, and what bounds it. Dashed: residuals."
_TITLE, _MARGIN, _HEAD = 104.0, 24.0, 62.0
_SIZE, _SMALL, _LEFT, _RIGHT = 9, 8, 7, 10
_FRAME = Paint("#ffffff", "#cbd5e1", "")
_BARE = Paint("#ffffff", "#ffffff", "")


def draw(job: Report | Workload, panels: Sequence[Outline]) -> Any:
    """The picture as a `graphviz.Digraph`."""
    wide = max(_box_width(b) for o in panels for b in o.boxes)
    columns = max(len(s.boxes) for o in panels for s in o.sections)
    across = max(2 * _MARGIN + _TITLE + columns * (wide + GAP), 320.0)
    graph = new_graph("", {"layout": "nop2", "outputorder": "nodesfirst"})
    over = head(job, panels, max(across, 600), KEY)
    _place(graph, "head", (0, 0), (max(across, 600), -130), _spread(over, max(across, 600)), _BARE)
    for number, outline in enumerate(panels):
        _panel(graph, outline, f"f{number}", (number * (across + _MARGIN), -140), across, wide)
    return graph


def _panel(graph: Any, outline: Outline, ids: str, corner: Point, across: float, wide: float) -> None:
    x, y = corner
    first = y - _HEAD - LINE * len(panel_lines(outline))
    places = rows(outline, x + _MARGIN, first, _TITLE, wide)
    _place(graph, ids, corner, (x + across, places[-1].gutter - _MARGIN), "", _FRAME)
    over = _spread(panel_head(outline), across - 2 * _MARGIN)
    under = (x + across - _MARGIN / 2, first + 12)
    _place(graph, f"{ids}head", (x + _MARGIN / 2, y - 6), under, over, _BARE)
    names: dict[str, str] = {}
    for number, row in enumerate(places):
        if row.section.prefix:
            name = f"{ids}row{number}"
            names |= {i.id: name for i in outline.inlets if i.section == row.section.id}
            _title(graph, name, outline, row, x + _MARGIN)
        for box in row.section.boxes:
            _box(graph, box, row.middles[box.id], row.top, wide)
    for link, corners in ways(outline, places, x + _MARGIN / 2, wide):
        style = "dashed" if outline.role(link) == "residual" else "solid"
        tail, ahead = (names.get(n, n) for n in (link.tail, link.head))
        graph.edge(tail, ahead, pos=spline(corners), style=style)


def _spread(content: str, across: float) -> str:
    """Content over a width, so that it begins at the left of its box."""
    return table([f'<TD WIDTH="{across:.0f}">{content}</TD>'])


def _place(graph: Any, name: str, upper_left: Point, lower_right: Point, content: str, paint: Paint) -> None:
    """A box at its place."""
    (x0, y0), (x1, y1) = upper_left, lower_right
    graph.node(
        name,
        label(content) if content else "",
        pos=f"{(x0 + x1) / 2:.1f},{(y0 + y1) / 2:.1f}",
        width=f"{(x1 - x0) / 72:.4f}",
        height=f"{(y0 - y1) / 72:.4f}",
        fixedsize="true",
        color=paint.line,
        fillcolor=paint.fill,
    )


def _title(graph: Any, name: str, outline: Outline, row: Row, x: float) -> None:
    """The box at the head of a row: which layer, its time and share."""
    section, wide = row.section, _TITLE - 2 * GAP
    total = f"{units.time(section.total_s)} · {units.percent(outline.share(section.total_s))}"
    title = fit(section.title, _SIZE, wide, bold=True)
    lines = [left(font(title, _SIZE, bold=True), f'WIDTH="{wide - 8:.0f}"'), left(font(total, _SMALL, MUTED))]
    _place(graph, name, (x, row.top), (x + _TITLE - GAP, row.top - HIGH), table(lines), PLAIN)


def _box(graph: Any, box: Box, middle: float, top: float, wide: float) -> None:
    paint = PAINT[str(box.cost.bound)]
    inner = wide - _LEFT - _RIGHT
    name = fit(box.name, _SIZE, inner, bold=True)
    bound, time = str(box.cost.bound), units.time(float(box.cost.time_s))
    first = inner - width(time, _SMALL)
    left_inset, right_inset = (f'<TD WIDTH="{n}"></TD>' for n in (_LEFT, _RIGHT))
    lines = [
        left_inset + left(font(name, _SIZE, bold=True), f'COLSPAN="2" WIDTH="{inner:.0f}"') + right_inset,
        left_inset
        + left(font(bound, _SMALL, MUTED), f'WIDTH="{first:.0f}"')
        + right(font(time, _SMALL, paint.ink), f'WIDTH="{inner - first:.0f}"')
        + right_inset,
    ]
    _place(graph, box.id, (middle - wide / 2, top), (middle + wide / 2, top - HIGH), table(lines), paint)


def _box_width(box: Box) -> float:
    """Points that a box needs."""
    below = width(f"{box.cost.bound}  {units.time(float(box.cost.time_s))}", _SMALL)
    return min(ceil(max(width(box.name, _SIZE, bold=True), below)) + 1.0 + _LEFT + _RIGHT, 150.0)
