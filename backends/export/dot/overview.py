"""Level `overview`: left to right, layers folded, each part of a layer one box with its longest ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.export import units

from .label import INK, MUTED, PAINT, bar, fit, font, label, left, right, table, width
from .outline import Outline
from .page import PANEL, SECTION, UNLINKED, head, new_graph, panel_head
from .sections import Box, Section

KEY = "Layers: time of all their runs, and share of the step. Bars are against the longest op."
_TOP, _NAME, _BAR, _TIME = 3, 110, 110, 56
_WIDE = _NAME + _BAR + _TIME
_LEFT, _RIGHT = 14, 21


def draw(job: Report | Workload, panels: Sequence[Outline]) -> Any:
    """The picture as a `graphviz.Digraph`."""
    attributes = {"rankdir": "LR", "ranksep": "0.5", "nodesep": "0.3"}
    graph = new_graph(head(job, panels, 900, KEY), attributes)
    # Left to right, Graphviz stacks from the bottom up.
    for number, outline in reversed(list(enumerate(panels))):
        with graph.subgraph(name=f"cluster_panel{number}") as panel:
            panel.attr(label=label(panel_head(outline)), **PANEL)
            _panel(panel, outline)
    return graph


def _panel(panel: Any, outline: Outline) -> None:
    chain: list[str] = []
    apart: list[str] = []  # what is no op
    for section in outline.sections:
        if not section.prefix:
            runs = groupby(section.boxes, lambda b: b.group)
            added = [_outside(panel, outline, list(run)) for _, run in runs]
            apart += added if section.boxes[0].op is None else []
            chain += added
            continue
        with panel.subgraph(name=f"cluster_{section.id}") as layer:
            layer.attr(label=label(_section_head(outline, section)), **SECTION)
            parts = [
                _part(layer, name, boxes, outline.longest_s or 1) for name, boxes in section.groups.items()
            ]
        chain += parts
        if section.times > 1 and len(parts) > 1:
            words = label(font("next layer", 9, MUTED))
            panel.edge(parts[-1], parts[0], words, style="dashed", constraint="false")
    for tail, ahead in pairwise(chain):
        panel.edge(tail, ahead, weight="1000", **(UNLINKED if ahead in apart else {}))


def _section_head(outline: Outline, section: Section) -> str:
    name = font(f"{fit(section.title, 13, 240, bold=True)} {section.count}", 13, bold=True)
    share = units.percent(outline.share(section.total_s))
    words = f"{units.time(section.total_s)} · {share} · {units.time(section.total_s / section.times)} each"
    return table([left(name, 'HEIGHT="18"'), left(font(words, 11, MUTED), 'HEIGHT="16"')])


def _part(layer: Any, name: str, boxes: Sequence[Box], most: float) -> str:
    """A box for one part of a layer; its name as a node."""
    longest = sorted(boxes, key=lambda b: -b.total_s)
    total = units.time(sum(b.total_s for b in boxes))
    paint = PAINT[str(longest[0].cost.bound)]
    first = _WIDE - width(total, 13, bold=True)
    title = font(fit(name or "other", 13, first, bold=True), 13, INK, bold=True)
    rows = [
        table(
            [
                left(title, f'WIDTH="{first:.0f}" HEIGHT="24"')
                + right(font(total, 13, paint.ink, bold=True), f'WIDTH="{_WIDE - first:.0f}"')
            ]
        )
    ]
    for box in longest[:_TOP]:
        named = left(font(fit(box.name, 10, _NAME - 6), 10), f'WIDTH="{_NAME}" HEIGHT="17"')
        drawn = bar(box.total_s / most, _BAR, PAINT[str(box.cost.bound)].line, 7)
        time = right(font(units.time(box.total_s), 10), f'WIDTH="{_TIME}"')
        rows.append(table([f"{named}<TD>{drawn}</TD>{time}"]))
    if rest := longest[_TOP:]:
        more = (
            f"+ {len(rest)} more op{'s' if len(rest) > 1 else ''}, {units.time(sum(b.total_s for b in rest))}"
        )
        rows.append(table([left(font(more, 9, MUTED), f'WIDTH="{_WIDE}" HEIGHT="16"')]))
    if notes := list(dict.fromkeys(b.note for b in boxes if b.note)):
        rows.append(table([left(font(notes[0], 9, MUTED), f'WIDTH="{_WIDE}" HEIGHT="14"')]))
    return _node(layer, longest[0], [f"<TD>{row}</TD>" for row in rows], margin=_RIGHT)


def _outside(panel: Any, outline: Outline, boxes: Sequence[Box]) -> str:
    """A small box for ops around the layers, or for what is no op; its name as a node."""
    longest = max(boxes, key=lambda b: b.total_s)
    figures = [units.time(longest.total_s), units.percent(outline.share(longest.total_s))]
    figures += [units.bytes(longest.bytes)] if longest.op else []
    lines = [(fit(longest.name, 12, 160, bold=True), 12, INK), (" · ".join(figures), 10, MUTED)]
    lines += [(words, 9, MUTED) for words in longest.note.split(" · ") if words and not longest.op]
    lines += [
        (fit(f"+ {b.name}, {units.time(b.total_s)}", 9, 160), 9, MUTED) for b in boxes if b is not longest
    ]
    wide = max(width(words, size, bold=size == 12) for words, size, _ in lines)
    rows = [
        left(font(words, size, color, bold=size == 12), f'WIDTH="{wide:.0f}" HEIGHT="{size + 5}"')
        for words, size, color in lines
    ]
    return _node(panel, longest, rows, margin=6)


def _node(cluster: Any, box: Box, rows: Sequence[str], *, margin: int) -> str:
    paint = PAINT[str(box.cost.bound)]
    space = '<TD HEIGHT="6"></TD>'
    padded = [f'<TD WIDTH="{_LEFT}"></TD>{row}<TD WIDTH="{margin}"></TD>' for row in rows]
    body = label(table([space, *padded, space]))
    cluster.node(box.id, body, color=paint.line, fillcolor=paint.fill, style=paint.style)
    return box.id
