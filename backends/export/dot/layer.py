"""Level `layer`: every op of one layer of each kind as a box, top to bottom, with its residuals beside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.export import units
from llmir.dataclass import dataclass

from .box import draw_box, draw_inlet, inner_width
from .label import MUTED, fit, font, label, left, table
from .outline import Link, Outline
from .page import GROUP, PANEL, PERIOD, SECTION, UNLINKED, head, new_graph, panel_head
from .sections import Box, Section

KEY = (
    "Box: time of one run, share of the whole step (bar: against the largest), "
    "then FLOPs · bytes · FLOPs per byte."
)


def draw(job: Report | Workload, panels: Sequence[Outline]) -> Any:
    """The picture as a `graphviz.Digraph`."""
    inner = max(inner_width(o) for o in panels)
    graph = new_graph(head(job, panels, len(panels) * (inner + 140), KEY), {"nodesep": "0.3"})
    for number, outline in enumerate(panels):
        with graph.subgraph(name=f"cluster_panel{number}") as panel:
            panel.attr(label=label(panel_head(outline)), **PANEL)
            _panel(panel, outline, inner)
    return graph


def _panel(panel: Any, outline: Outline, inner: float) -> None:
    detours = _detours(outline)
    for period, run in groupby(outline.sections, lambda section: section.period):
        sections = list(run)
        if period:
            with panel.subgraph(name=f"cluster_period_{sections[0].id}") as around:
                around.attr(label=label(_period_head(period, sections)), **PERIOD)
                _sections(around, outline, sections, inner, detours)
        else:
            _sections(panel, outline, sections, inner, detours)
    _bends(panel, {b.id for b in outline.boxes}, detours)
    led = {d.link for d in detours}
    for link in (x for x in outline.links if x not in led):
        panel.edge(link.tail, link.head, **_EDGES[outline.role(link)])
    for detour in detours:
        _detour(panel, detour)
    for above, below in pairwise(outline.boxes):
        if below.op is None:
            panel.edge(above.id, below.id, **UNLINKED)


def _sections(
    cluster: Any, outline: Outline, sections: Iterable[Section], inner: float, detours: Sequence[_Detour]
) -> None:
    for section in sections:
        if section.prefix:
            with cluster.subgraph(name=f"cluster_{section.id}") as layer:
                layer.attr(label=label(_section_head(outline, section, inner)), **SECTION)
                _layer(layer, outline, section, inner, detours)
        else:
            _ops(cluster, outline, section.boxes, inner, detours)


def _period_head(period: tuple[str, int], sections: Sequence[Section]) -> str:
    """How often it runs, and what it has: its layers, how often each in a row, and what they see."""
    name, times = period
    parts = [f"{s.nest[-1]} × {s.prefix.rpartition('.')[2]}{s.sees}" for s in sections]
    lines = [left(font(f"{name} × {times}, each", 12, bold=True), 'HEIGHT="16"')]
    return table([*lines, *(left(font(part, 10, MUTED), 'HEIGHT="14"') for part in parts)])


def _layer(layer: Any, outline: Outline, section: Section, inner: float, detours: Sequence[_Detour]) -> None:
    """The parts of a layer, and the residuals that lead from one to another."""
    inlets = [i for i in outline.inlets if i.section == section.id]
    for inlet in inlets:
        draw_inlet(layer, outline, inlet)
    for name, boxes in section.groups.items():
        with layer.subgraph(name=f"cluster_group_{boxes[0].id}") as group:
            group.attr(label=label(_group_head(outline, name, boxes, inner)), **GROUP)
            _ops(group, outline, boxes, inner, detours)
    _bends(layer, {i.id for i in inlets} | {b.id for b in section.boxes}, detours)


def _ops(
    cluster: Any, outline: Outline, boxes: Sequence[Box], inner: float, detours: Sequence[_Detour]
) -> None:
    for box in boxes:
        draw_box(cluster, outline, box, inner)
    _bends(cluster, {b.id for b in boxes}, detours)


@dataclass(frozen=True)
class _Detour:
    """A residual, led beside the spine through one invisible bend a rank, so that it stays in its cluster."""

    link: Link
    bends: tuple[str, ...]


def _detours(outline: Outline) -> list[_Detour]:
    found = []
    for link in (x for x in outline.links if outline.role(x) == "residual"):
        ranks = outline.spine[link.head] - outline.spine[link.tail]
        bends = tuple(f"{link.tail}_{link.head}_{i}" for i in range(1, ranks))
        found.append(_Detour(link, bends))
    return found


def _bends(cluster: Any, ids: set[str], detours: Iterable[_Detour]) -> None:
    """Those bends that lie in a cluster of these nodes (the first cluster to name a node has it)."""
    for detour in detours:
        if {detour.link.tail, detour.link.head} <= ids:
            for bend in detour.bends:
                cluster.node(bend, "", shape="point", width="0.01", style="invis")


def _detour(panel: Any, detour: _Detour) -> None:
    line = {**_EDGES["residual"], "headclip": "false", "tailclip": "false", "arrowhead": "none"}
    first, last = detour.bends[0], detour.bends[-1]
    panel.edge(f"{detour.link.tail}:out:e", f"{first}:n", **{**line, "tailclip": "true"})
    for above, below in pairwise(detour.bends):
        panel.edge(above, below, **{**line, "weight": "500"})
    panel.edge(f"{last}:s", f"{detour.link.head}:in:e", **{**line, "headclip": "true", "arrowhead": "normal"})


_EDGES = {
    "spine": {"weight": "1000"},
    "side": {"weight": "2"},
    "residual": {"weight": "0", "style": "dashed"},
}


def _section_head(outline: Outline, section: Section, inner: float) -> str:
    share = units.percent(outline.share(section.total_s))
    name = fit(section.title, 12, inner - 20, bold=True)
    times = f"{units.time(section.total_s / section.times)} each, {units.time(section.total_s)} · {share}"
    return table(
        [
            left(font(f"{name} {section.count}", 12, bold=True), 'HEIGHT="16"'),
            left(font(times, 9, MUTED), 'HEIGHT="14"'),
        ]
    )


def _group_head(outline: Outline, name: str, boxes: Iterable[Box], inner: float) -> str:
    each = sum(float(b.cost.time_s) for b in boxes)
    words = f"{units.time(each)} · {units.percent(outline.share(sum(b.total_s for b in boxes)))}"
    title = fit(name or "other", 11, inner - 20, bold=True)
    return table([left(font(title, 11, "#334155", bold=True)), left(font(words, 9, MUTED))])
