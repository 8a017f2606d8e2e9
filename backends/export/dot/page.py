"""What surrounds the ops of any picture: title, totals, legend, heads of frames, and panels side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from llmir.backends.export import units, wording
from llmir.backends.request.workload import Workload
from llmir.backends.step import precision
from llmir.backends.step.report import Report
from llmir.ir.core.program import APART

from .canvas import Canvas, Tile
from .label import FONT, INK, MUTED, PAINT, Paint, fit, font, left, table, width, wrapped
from .labels import one, tile_of, two
from .outline import Outline, pattern

GRAPH = {
    "fontname": FONT,
    "bgcolor": "white",
    "layout": "nop2",
    "outputorder": "edgesfirst",
    "pad": "0.2",
    "splines": "true",
}
NODE = {"shape": "box", "fixedsize": "true", "margin": "0", "fontname": FONT, "penwidth": "1.1"}
EDGE = {"color": "#94a3b8", "arrowsize": "0.6", "penwidth": "1.1", "fontname": FONT}
PANEL = {"style": "rounded", "color": "#cbd5e1", "bgcolor": "#ffffff", "penwidth": "1.3"}
STAGE = {"style": "rounded,filled", "color": "#7a869a", "fillcolor": "#ffffff", "penwidth": "1.6"}
PERIOD = {"style": "rounded,dashed", "color": "#64748b", "penwidth": "1.3"}
SECTION = {"style": "rounded,filled", "color": "#94a3b8", "fillcolor": "#f8fafc", "penwidth": "1.1"}
GROUP = {"style": "rounded,filled", "color": "#e2e8f0", "fillcolor": "#f1f5f9", "penwidth": "1"}

LEGEND = {"overhead": "overhead: launches, the engine's CPU", "bubble": "bubble: waits for another stage"}
LINE, BETWEEN = 14, 12.0  # points: of a line in the head of a panel; between panels
NARROW, TITLES = 430.0, (17, 19)  # points of text above a picture, at least; of its title there and elsewhere
_ABREAST = 2
_WARNING = "#b91c1c"


def new_canvas(title: str) -> Canvas:
    """An empty picture; a pointer over nothing else says its title."""
    import graphviz

    graph = graphviz.Digraph("llmir", graph_attr=GRAPH, node_attr=NODE, edge_attr=EDGE)
    graph.attr(tooltip=graphviz.nohtml(title.replace("\\", "\\\\")))
    return Canvas(graph)


def side_by_side(
    canvas: Canvas, count: int, draw: Callable[[int, float, float], tuple[float, float]]
) -> tuple[float, float]:
    """Draw panels, two a row: `draw` takes a number, left and top and gives right and bottom; the extent."""
    widest, top = 0.0, 0.0
    for first in range(0, count, _ABREAST):
        x, bottom = 0.0, top
        for number in range(first, min(first + _ABREAST, count)):
            right, low = draw(number, x, top)
            x, bottom, widest = right + BETWEEN, min(bottom, low), max(widest, right)
        top = bottom - BETWEEN
    return widest, top


def head(canvas: Canvas, job: Report | Workload, outlines: Iterable[Outline], limit: float, key: str) -> None:
    """The title block above what is drawn, wrapped to `limit` points: model, device, totals, legend."""
    times, memory, fits = _facts(job)
    present = {str(b.cost.bound) for o in outlines for b in o.boxes}
    lines = [(12.0, times, INK), (12.0, memory, INK if fits else _WARNING)]
    block(canvas, f"{job.program.name} on {where(job)}", lines, present, key, limit)


def block(
    canvas: Canvas,
    title: str,
    facts: Sequence[tuple[float, str, str]],
    bounds: Iterable[str],
    key: str,
    limit: float,
) -> None:
    """A title, lines of facts (size, words, colour), a legend of bounds and a key, above y = 0."""
    limit = max(limit, NARROW)
    large = TITLES[limit > NARROW]
    words = [fit(word, large, limit, bold=True) for word in title.split()]
    named = lines_of(words, large, limit, bold=True)
    lines = [(large + 8.0, one(font(line, large, bold=True), limit)) for line in named]
    for size, said, color in facts:
        apart = " · " if " · " in said else " "
        for line in lines_of(said.split(apart), size, limit, apart):
            lines.append((size + 5, one(font(line, size, color), limit)))
    lines += [(20.0, f'<TD COLSPAN="2" ALIGN="LEFT">{row}</TD>') for row in _legend(set(bounds), limit)]
    lines += [(12.0, one(font(line, 9, MUTED), limit)) for line in lines_of(key.split(), 9, limit)]
    tile = tile_of("head", lines, limit, BARE, title)
    canvas.tile(tile, tile.wide / 2 - 8, tile.high + 4)


BARE = Paint("transparent", "transparent", "", "filled")


def band(
    id: str,
    title: str,
    figure: str,
    below: Sequence[str],
    inner: float,
    size: float,
    fill: str,
    said: str = "",
) -> Tile:
    """The head of a frame: title left, figure right, lines below; wires pass behind it."""
    second = width(figure, size - 2, bold=True) if figure else -8.0
    name, *more = wrapped(title, size, inner - second - 8, inner, bold=True)
    first = one(font(name, size, bold=True), inner)
    if figure:
        first = two(font(name, size, bold=True), font(figure, size - 2, INK, bold=True), inner, second)
    lines = [(size + 4, first), *((size + 4, one(font(line, size, bold=True), inner)) for line in more)]
    for words in below:
        lines += [
            (LINE - 2, one(font(line, 9, MUTED), inner)) for line in lines_of(words.split(" "), 9, inner)
        ]
    tile = tile_of(id, lines, inner, Paint(fill, fill, INK, "filled"), said or title)
    return Tile(id, tile.rows[1:-1], tile.wide, tile.high - 10, tile.paint, tile.tip)


def panel_head(outline: Outline, id: str, inner: float, note: str = "") -> Tile:
    """The head of one step's panel: what the step is, and its total."""
    report = outline.report
    name, what = step_words(report)
    time = units.time(float(report.time_s))
    said = [what, *filter(None, [note, pattern(report.program)]), *panel_lines(outline)]
    return band(id, f"{name} · {time}", "", said, inner, 14, "#ffffff")


def panel_lines(outline: Outline) -> list[str]:
    """How many stages and micro-batches there are, if several, and what shares are of if not of the step."""
    lines = [f"{name} of {value}" for name, value in wording.pipeline_lines(outline.report)[:1]]
    if len(outline.report.stages) > 1:
        lines.append(f"shares of all stages together, {units.time(outline.whole_s)}")
    if any(b.total_s < 0 for b in outline.boxes):
        whole = f"shares of {units.time(outline.whole_s)}, before launches are hidden"
        lines[1:] = [whole]
    return lines


def step_words(report: Report) -> tuple[str, str]:
    """The name of a step's phase, and its sizes."""
    if report.beside:
        return "STEP", wording.step_title(report)
    if report.phase in APART:
        return report.phase.upper(), wording.step_title(report)
    program = report.program
    batch, new, context = int(report.batch), int(report.new), int(report.context)
    if not {"architecture", "layers"} & program.facts.keys():
        return program.name, f"one step, batch {batch} × {new} token{'s' if new > 1 else ''}" + (
            f" after {context} cached" if context else ""
        )
    name = "PREFILL" if not context else "DECODE" if new == 1 else "STEP"
    cached = f", context {context}" if context else ""
    return name, f"batch {batch} × {new} token{'s' if new > 1 else ''}{cached}"


def where(job: Report | Workload) -> str:
    """The devices, the split and the types of a picture's title."""
    words = [word.upper() for word in job.program.parallelism.words("=")]
    words += precision.words(job.program)
    return wording.devices(job.program, job.device) + (f" ({', '.join(words)})" if words else "")


def _facts(job: Report | Workload) -> tuple[str, str, bool]:
    """A line of times, a line of memory, and whether it fits."""
    if isinstance(job, Workload):
        peak, capacity, fits = float(job.peak_bytes(job.batch)), job.capacity_bytes, job.fits
        times = [" ".join(row) for row in wording.rates(job)]
    else:
        peak, capacity = float(job.peak_memory_bytes), float(job.device.capacity_bytes)
        fits, times = peak <= capacity, [f"step {units.time(float(job.time_s))}"]
    step = job.prefill if isinstance(job, Workload) else job
    if step.cost_model != "ideal":
        times.append(wording.short_basis(step))
    memory = f"peak memory {units.bytes(peak)} of {units.bytes(capacity)}{'' if fits else ': does not fit'}"
    return " · ".join(times), memory, fits


def lines_of(
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


def _legend(present: set[str], limit: float) -> Iterator[str]:
    """Lines of swatches, one for each bound that occurs, with its letter."""
    cells: list[str] = []
    across = 0.0
    for bound in (b for b in PAINT if b in present):
        paint, words = PAINT[bound], LEGEND.get(bound, f"{bound}-bound")
        wide = round(width(words, 10)) + 10
        if cells and across + 24 + wide > limit:
            yield _swatches(cells, across)
            cells, across = [], 0.0
        swatch = (
            f'<TABLE BORDER="1" CELLBORDER="0" CELLSPACING="0" COLOR="{paint.line}" BGCOLOR="{paint.fill}" '
            'FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="12"><TR><TD></TD></TR></TABLE>'
        )
        cells.append(f'<TD FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="16">{swatch}</TD><TD WIDTH="6"></TD>')
        cells.append(left(font(words, 10), f'WIDTH="{wide}"'))
        across += 24 + wide
    if cells:
        yield _swatches(cells, across)


def _swatches(cells: Iterable[str], across: float) -> str:
    return table(["".join(cells)], f'FIXEDSIZE="TRUE" ALIGN="LEFT" WIDTH="{across:.0f}" HEIGHT="18"')
