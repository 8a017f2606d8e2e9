"""What surrounds the ops of any picture: title, totals, legend, and the heads of panels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmir.backends.analysis import precision
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.export import facts, units
from llmir.graph import APART

from .label import FONT, INK, MUTED, PAINT, fit, font, label, left, table, width
from .outline import Outline, pattern

GRAPH = {
    "fontname": FONT,
    "bgcolor": "white",
    "labelloc": "t",
    "labeljust": "l",
    "pad": "0.25",
    "nodesep": "0.28",
    "ranksep": "0.28",
    "splines": "true",
}
NODE = {"shape": "box", "style": "rounded,filled", "margin": "0", "fontname": FONT, "penwidth": "1.1"}
EDGE = {"color": "#94a3b8", "arrowsize": "0.6", "penwidth": "1.1", "fontname": FONT}
PANEL = {"style": "rounded", "color": "#cbd5e1", "bgcolor": "#ffffff", "penwidth": "1.3", "margin": "16"}
PERIOD = {"style": "rounded,dashed", "color": "#64748b", "penwidth": "1.3", "margin": "14"}
SECTION = {
    "style": "rounded,filled",
    "color": "#94a3b8",
    "fillcolor": "#f8fafc",
    "penwidth": "1.1",
    "margin": "14",
}
GROUP = {
    "style": "rounded,filled",
    "color": "#e2e8f0",
    "fillcolor": "#f1f5f9",
    "penwidth": "1",
    "margin": "12",
}

UNLINKED = {"style": "dotted", "arrowhead": "none"}  # to what no data flows to
LEGEND = {"overhead": "overhead: launches, the engine's CPU", "bubble": "bubble: waits for another stage"}
LINE = 16  # points, of a line in the head of a panel
_WARNING = "#b91c1c"


def new_graph(head: str, attributes: Mapping[str, str]) -> Any:
    """An empty `graphviz.Digraph` with `head` above."""
    import graphviz

    graph = graphviz.Digraph("llmir", graph_attr={**GRAPH, **attributes}, node_attr=NODE, edge_attr=EDGE)
    if head:
        graph.attr(label=label(head))
    return graph


def head(job: Report | Workload, outlines: Iterable[Outline], limit: float, key: str) -> str:
    """The title block, wrapped to `limit` points: model and device, totals, and the legend."""
    title = f"{job.program.name} on {_where(job)}"
    times, memory, fits = _facts(job)
    limit = max(limit, 340)
    words = [fit(word, 20, limit, bold=True) for word in title.split()]
    rows = [left(font(line, 20, bold=True), 'HEIGHT="28"') for line in _lines(words, 20, limit, bold=True)]
    rows.append(left(font(times, 12), 'HEIGHT="17"'))
    rows.append(left(font(memory, 12, INK if fits else _WARNING), 'HEIGHT="17"'))
    rows.append(f'<TD HEIGHT="24">{_legend(outlines)}</TD>')
    rows += [left(font(line, 9, MUTED), 'HEIGHT="13"') for line in _lines(key.split(), 9, limit)]
    rows.append('<TD HEIGHT="6"></TD>')
    return table(rows)


def panel_head(outline: Outline) -> str:
    """The head of one step's panel: what the step is, and its total."""
    report = outline.report
    name, what = step_words(report)
    first = font(f"{name} · {units.time(float(report.time_s))}", 14, bold=True)
    lines = _lines(pattern(report.program).split(" · "), 10, 420, " · ")
    said = what, *filter(None, lines), *panel_lines(outline)
    words = [left(font(word, 10, MUTED), f'HEIGHT="{LINE}"') for word in said]
    return table([left(first, 'HEIGHT="20"'), *words])


def panel_lines(outline: Outline) -> list[str]:
    """How the step goes through pipeline stages, if it does, and what shares are of if not of it."""
    lines = [f"{name} {value}" for name, value in facts.pipeline_lines(outline.report)]
    whole = f"shares are of {units.time(outline.whole_s)}, before launches are hidden"
    return [*lines, whole] if any(b.total_s < 0 for b in outline.boxes) else lines


def step_words(report: Report) -> tuple[str, str]:
    """The name of a step's phase, and its sizes."""
    if report.beside:
        return "STEP", facts.step_title(report)
    if report.phase in APART:
        return report.phase.upper(), facts.step_title(report)
    batch, new, context = int(report.batch), int(report.new), int(report.context)
    name = "PREFILL" if not context else "DECODE" if new == 1 else "STEP"
    cached = f", context {context}" if context else ""
    return name, f"batch {batch} × {new} token{'s' if new > 1 else ''}{cached}"


def _where(job: Report | Workload) -> str:
    words = [word.upper() for word in job.program.parallelism.words("=")]
    words += precision.words(job.program)
    return f"{facts.devices(job.program, job.device)} ({', '.join(words)})"


def _facts(job: Report | Workload) -> tuple[str, str, bool]:
    """A line of times, a line of memory, and whether it fits."""
    if isinstance(job, Workload):
        peak, capacity, fits = float(job.peak_bytes(job.batch)), job.capacity_bytes, job.fits
        times = [" ".join(row) for row in facts.rates(job)]
    else:
        peak, capacity = float(job.peak_memory_bytes), float(job.device.capacity_bytes)
        fits, times = peak <= capacity, [f"step {units.time(float(job.time_s))}"]
    step = job.prefill if isinstance(job, Workload) else job
    if step.cost_model != "ideal":
        times.append(facts.short_basis(step))
    memory = f"peak memory {units.bytes(peak)} of {units.bytes(capacity)}{'' if fits else ': does not fit'}"
    return " · ".join(times), memory, fits


def _lines(
    words: list[str], size: float, limit: float, between: str = " ", *, bold: bool = False
) -> list[str]:
    """Words in lines of at most `limit` points."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{between}{word}" if lines else word
        if lines and width(longer, size, bold=bold) <= limit:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _legend(outlines: Iterable[Outline]) -> str:
    """A swatch for each bound that occurs."""
    present = {str(b.cost.bound) for o in outlines for b in o.boxes}
    cells, across = [], 0
    for bound in (b for b in PAINT if b in present):
        paint, words = PAINT[bound], LEGEND.get(bound, f"{bound}-bound")
        wide = round(width(words, 10)) + 10
        swatch = (
            f'<TABLE BORDER="1" CELLBORDER="0" CELLSPACING="0" COLOR="{paint.line}" BGCOLOR="{paint.fill}" '
            'FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="12"><TR><TD></TD></TR></TABLE>'
        )
        cells.append(f'<TD FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="16">{swatch}</TD><TD WIDTH="6"></TD>')
        cells.append(left(font(words, 10), f'WIDTH="{wide}"'))
        across += 24 + wide
    return table(["".join(cells)], f'FIXEDSIZE="TRUE" ALIGN="LEFT" WIDTH="{across}" HEIGHT="18"')
