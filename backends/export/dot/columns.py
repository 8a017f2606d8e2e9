"""Pictures of steps as columns of tiles: the levels `layer`, `full` and `overview`.

Order of the file: lanes next to a column, for lines that skip tiles (`Lanes`); the parts that every picture
has, such as title, totals, legend and panels (`new_canvas`, `head`); the drawing of lines (`draw_wires`); the
levels `layer` and `full` with one tile per op (`OpColumn`); and `overview`, in which layers are drawn once,
with one tile for each part of a layer (`OverviewColumn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any

from llmir.backends.export import units, wording
from llmir.backends.request.workload import Workload
from llmir.backends.step.facts import precision_text
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.ir.core.program import APART

from .labels import (
    FONT,
    INK,
    INSET,
    MUTED,
    PAINT,
    PLAIN,
    Area,
    BoundColors,
    Canvas,
    Frame,
    Point,
    Tile,
    across,
    bar,
    fit,
    font,
    inlet_tile,
    inner_width,
    left,
    memory_tile,
    one,
    op_tile,
    right,
    shape_words,
    stack,
    stage_name,
    step_tile,
    table,
    tile_of,
    tip,
    two,
    width,
    wrapped,
)
from .outline import Box, DataEdge, Inlet, LayerSection, StageOutline, StepOutline, pattern

# Lanes of wires

PITCH, MARGIN = 8.0, 7.0  # distance between lanes, and between the column and the first lane
_PORT = 9.0  # distance from the edge of a tile at which connections enter and leave it


@dataclass(frozen=True)
class Wire:
    """A connection between tiles; `dashed` marks residual values that skip tiles."""

    tail: str
    head: str
    tip: str = ""
    words: str = ""
    dashed: bool = False
    strong: bool = False

    @property
    def right(self) -> bool:
        """Whether a connection that is not straight is drawn on the right."""
        return self.dashed or self.strong


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lane of each bundle of lines, by the tile where it starts and its side: lines that start at one
    tile on one side share a lane.
    """

    rank: Mapping[str, int]
    bundles: Mapping[tuple[str, bool], int]
    doors: Mapping[Wire, int] = field(default_factory=dict)

    @classmethod
    def of(cls, order: Sequence[str], wires: Iterable[Wire]) -> Lanes:
        """Lanes for tiles in this order, from top to bottom; lanes of short connections are closer to the
        column.
        """
        rank = {name: i for i, name in enumerate(order)}
        ways: dict[tuple[str, bool], tuple[int, int]] = {}
        doors: dict[Wire, int] = {}
        taken: dict[tuple[str, bool], int] = {}
        for wire in wires:
            if rank[wire.head] - rank[wire.tail] == 1:
                continue
            key = wire.tail, wire.right
            at = rank[wire.tail], rank[wire.head]
            first, last = ways.get(key, at)
            ways[key] = min(first, *at), max(last, *at)
            doors[wire] = taken.get((wire.head, wire.right), 0)
            taken[wire.head, wire.right] = doors[wire] + 1
        found: dict[tuple[str, bool], int] = {}
        # the ranks that each lane occupies, one bit per rank
        taken_ranks: dict[bool, list[int]] = {False: [], True: []}
        for key, (first, last) in sorted(ways.items(), key=lambda w: (w[1][1] - w[1][0], w[1])):
            lanes, bits = taken_ranks[key[1]], ((1 << (last - first + 1)) - 1) << first
            lane = next((i for i, mask in enumerate(lanes) if not mask & bits), len(lanes))
            lanes[lane:] = [(lanes[lane] if lane < len(lanes) else 0) | bits, *lanes[lane + 1 :]]
            found[key] = lane
        return cls(rank, found, doors)

    def wide(self, right: bool) -> float:
        """The width in points that the lanes of one side take."""
        lanes = [lane for (_, side), lane in self.bundles.items() if side == right]
        return MARGIN + PITCH * (max(lanes) + 1) if lanes else 0.0

    def corners(self, wire: Wire, spots: Mapping[str, Area], edges: tuple[float, float]) -> list[Point]:
        """The path of a connection; `edges` are the left and right side of the column."""
        tail, head = spots[wire.tail], spots[wire.head]
        if wire not in self.doors:
            return [(tail.middle, tail.bottom), (head.middle, head.top)]
        lane = MARGIN + PITCH * self.bundles[wire.tail, wire.right]
        up = self.rank[wire.head] < self.rank[wire.tail]
        door = min(_PORT + 6 * self.doors[wire], max(_PORT, head.top - head.bottom - _PORT))
        start, end = tail.bottom + _PORT, head.top - door
        if up:
            start, end = tail.top - _PORT, head.bottom + door
        if wire.right:
            x, out, into = edges[1] + lane, tail.right, head.right
        else:
            x, out, into = edges[0] - lane, tail.left, head.left
        return [(out, start), (x, start), (x, end), (into, end)]


# Title, totals, legend and panels

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
LINE, BETWEEN = 14, 12.0  # points: height of a line in the heading of a panel, and gap between panels
NARROW, TITLES = (
    430.0,
    (17, 19),
)  # points: minimum width of the text above a picture, font size of its title, and font size of other text
_ABREAST = 2
_WARNING = "#b91c1c"


def new_canvas(title: str) -> Canvas:
    """An empty picture; the tooltip of its background is the title."""
    import graphviz

    graph = graphviz.Digraph("llmir", graph_attr=GRAPH, node_attr=NODE, edge_attr=EDGE)
    graph.attr(tooltip=graphviz.nohtml(title.replace("\\", "\\\\")))
    return Canvas(graph)


def side_by_side(
    canvas: Canvas, count: int, draw: Callable[[int, float, float], tuple[float, float]]
) -> tuple[float, float]:
    """Draw panels, two per row, and return their extent. `draw` draws the panel with a given number at a left
    and top position, and returns its right and bottom.
    """
    widest, top = 0.0, 0.0
    for first in range(0, count, _ABREAST):
        x, bottom = 0.0, top
        for number in range(first, min(first + _ABREAST, count)):
            right, low = draw(number, x, top)
            x, bottom, widest = right + BETWEEN, min(bottom, low), max(widest, right)
        top = bottom - BETWEEN
    return widest, top


def head(
    canvas: Canvas, job: Report | Workload, outlines: Iterable[StepOutline], limit: float, key: str
) -> None:
    """The title block above the picture, wrapped to `limit` points: model, device, totals, legend."""
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
    """A title, lines of facts (size, words, color), a legend of bounds and an explanation of signs, all above
    y = 0.
    """
    limit = max(limit, NARROW)
    large = TITLES[limit > NARROW]
    words = [fit(word, large, limit, bold=True) for word in title.split()]
    named = lines_of(words, large, limit, bold=True)
    lines = [one(large + 8.0, font(line, large, bold=True), limit) for line in named]
    for size, said, color in facts:
        apart = " · " if " · " in said else " "
        for line in lines_of(said.split(apart), size, limit, apart):
            lines.append(one(size + 5, font(line, size, color), limit))
    lines += [across(20.0, row, 'ALIGN="LEFT"') for row in _legend(set(bounds), limit)]
    lines += [one(12.0, font(line, 9, MUTED), limit) for line in lines_of(key.split(), 9, limit)]
    tile = tile_of("head", lines, limit, BARE, title)
    canvas.tile(tile, tile.wide / 2 - 8, tile.high + 4)


BARE = BoundColors("transparent", "transparent", "", "filled")


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
    """The heading of a frame: title on the left, time on the right, more lines below; connections pass behind
    it.
    """
    second = width(figure, size - 2, bold=True) if figure else -8.0
    name, *more = wrapped(title, size, inner - second - 8, inner, bold=True)
    high, words = size + 4, font(name, size, bold=True)
    first = one(high, words, inner)
    if figure:
        first = two(high, words, font(figure, size - 2, INK, bold=True), inner, second)
    lines = [first, *(one(high, font(line, size, bold=True), inner) for line in more)]
    for text in below:
        lines += [one(LINE - 2, font(line, 9, MUTED), inner) for line in lines_of(text.split(" "), 9, inner)]
    tile = tile_of(id, lines, inner, BoundColors(fill, fill, INK, "filled"), said or title)
    return replace(tile, rows=tile.rows[1:-1], high=tile.high - 10)


def panel_head(outline: StepOutline, id: str, inner: float, note: str = "") -> Tile:
    """The heading of a step's panel: a description of the step, and its total."""
    report = outline.report
    name, what = step_words(report)
    time = units.time(float(report.time_s))
    said = [what, *filter(None, [note, pattern(report.program)]), *panel_lines(outline)]
    return band(id, f"{name} · {time}", "", said, inner, 14, "#ffffff")


def panel_lines(outline: StepOutline) -> list[str]:
    """The numbers of stages and micro-batches, if there are several; and what shares refer to, if it is not
    the step.
    """
    lines = [f"{name} of {value}" for name, value in wording.pipeline_lines(outline.report)[:1]]
    if (count := len(outline.report.stages)) > 1:
        lines.append(f"shares: 100% is {count} stages × {units.time(float(outline.report.time_s))}")
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
    """The devices, the split and the dtypes, for the title of a picture."""
    words = [word.upper() for word in job.program.parallelism.words("=")]
    words += precision_text(job.program)
    return wording.devices(job.program, job.device) + (f" ({', '.join(words)})" if words else "")


def _facts(job: Report | Workload) -> tuple[str, str, bool]:
    """A line about times, a line about memory, and whether the workload fits."""
    if isinstance(job, Workload):
        peak, capacity, fits = float(job.peak_bytes(job.batch)), job.capacity_bytes, job.fits
        times = [" ".join(row) for row in wording.rates(job)]
    else:
        peak, capacity = float(job.peak_memory_bytes), float(job.device.capacity_bytes)
        fits, times = peak <= capacity, [f"step {units.time(float(job.time_s))}"]
    step = job.prefill if isinstance(job, Workload) else job
    if step.cost_model != "ideal":
        times.append(wording.basis_text(step))
    memory = f"peak memory {units.bytes(peak)} of {units.bytes(capacity)}{'' if fits else ': does not fit'}"
    return " · ".join(times), memory, fits


def lines_of(
    words: list[str], size: float, limit: float, between: str = " ", *, bold: bool = False
) -> list[str]:
    """Break words into lines of at most `limit` points."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}{between}{word}" if lines else word
        if lines and width(longer, size, bold=bold) <= limit:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _legend(present: set[str], limit: float) -> Iterator[str]:
    """Lines of color samples, one for each bound that occurs, with its letter."""
    cells: list[str] = []
    total = 0.0
    for bound in (b for b in PAINT if b in present):
        paint, words = PAINT[bound], LEGEND.get(bound, f"{bound}-bound")
        wide = round(width(words, 10)) + 10
        if cells and total + 24 + wide > limit:
            yield _swatches(cells, total)
            cells, total = [], 0.0
        swatch = (
            f'<TABLE BORDER="1" CELLBORDER="0" CELLSPACING="0" COLOR="{paint.line}" BGCOLOR="{paint.fill}" '
            'FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="12"><TR><TD></TD></TR></TABLE>'
        )
        cells.append(f'<TD FIXEDSIZE="TRUE" WIDTH="18" HEIGHT="16">{swatch}</TD><TD WIDTH="6"></TD>')
        cells.append(left(font(words, 10), wide, 16))
        total += 24 + wide
    if cells:
        yield _swatches(cells, total)


def _swatches(cells: Iterable[str], total: float) -> str:
    return table(["".join(cells)], f'FIXEDSIZE="TRUE" ALIGN="LEFT" WIDTH="{total:.0f}" HEIGHT="18"')


# Drawing of wires

_WORDS = 8.0


def lanes_of(frame: Frame, wires: Sequence[Wire]) -> Lanes:
    """The lanes of a frame's tiles, in the order in which they are placed."""
    return Lanes.of([tile.id for tile in frame.tiles], wires)


def draw_wires(canvas: Canvas, lanes: Lanes, wires: Sequence[Wire], edges: tuple[float, float]) -> None:
    """Draw all connections of a column; `edges` are its left and right side."""
    said: set[tuple[str, str]] = set()
    half = (edges[1] - edges[0]) / 2
    for number, wire in enumerate(sorted(wires, key=lambda wire: wire in lanes.doors)):
        style = {"style": "dashed"} if wire.dashed else {}
        if wire.strong:
            style |= {"color": PAINT["network"].line, "penwidth": "1.8"}
        canvas.wire(wire.tail, wire.head, lanes.corners(wire, canvas.spots, edges), wire.tip, **style)
        straight = wire not in lanes.doors
        side = "left" if not straight and not wire.right else "right"
        if not wire.words or (wire.tail, side) in said:
            continue
        said.add((wire.tail, side))
        spot = canvas.spots[wire.tail]
        words = fit(wire.words, _WORDS, half + 4)
        wide = width(words, _WORDS) + 2
        top = spot.bottom - 2
        middle = (edges[0] + edges[1]) / 2
        middle += -(wide / 2 + 5) if side == "left" else wide / 2 + 5
        cell = left(font(words, _WORDS, MUTED), wide, 11)
        canvas.words(f"{wire.tail}_{side}_{number}", cell, wide, 11, middle, top)


# Levels layer and full

COLUMN_KEY = (
    "Box: time of one run, share of the whole step (bar: against the largest), then FLOPs · bytes · FLOPs "
    "per byte. Dashed: a residual. Point at a box for its equation and numbers."
)
FULL = (
    "Every layer. Box: time of one run, share of the step, FLOPs · bytes · FLOPs per byte, weights, caches. "
    "On edges: what a rank passes on. Dashed: a residual."
)
_GAP = {False: 15.0, True: 19.0}  # gaps between tiles; at the level `full`, connections have text


def draw_column(job: Report | Workload, panels: Sequence[StepOutline], *, full: bool = False) -> Canvas:
    """The picture."""
    inner = max(inner_width(o, full=full) for o in panels)
    return draw_columns(
        job, panels, partial(OpColumn, full=full), inner, FULL if full else COLUMN_KEY, _GAP[full]
    )


def draw_columns(
    job: Report | Workload,
    panels: Sequence[StepOutline],
    column: Callable[[StepOutline, str, float, float], OpColumn],
    inner: float,
    key: str,
    gap: float,
) -> Canvas:
    """A picture of some steps; each step is a column of tiles with text that is `inner` points wide."""
    canvas = new_canvas(f"{job.program.name} on {where(job)}")
    capacity = float(job.capacity_bytes if isinstance(job, Workload) else job.device.capacity_bytes)

    def panel(number: int, x: float, y: float) -> tuple[float, float]:
        made = column(panels[number], f"p{number}_", inner, capacity)
        if (
            isinstance(job, Workload)
            and panels[number].report is job.prefill
            and wording.prefill_steps(job) > 1
        ):
            made.note = f"the largest of {wording.prefill_steps(job):,} steps that read prompts"
        frame = made.frame(f"panel{number}")
        wires = [*made.wires()]
        lanes = lanes_of(frame, wires)
        half = inner / 2 + INSET
        reach = half + lanes.wide(False), half + lanes.wide(True)
        middle = x + reach[0] + frame.inset
        at = stack(canvas, frame, middle, reach, y, gap)
        draw_wires(canvas, lanes, wires, (middle - half, middle + half))
        return at.right, at.bottom

    across, _ = side_by_side(canvas, len(panels), panel)
    head(canvas, job, panels, across, key)
    return canvas


@dataclass(eq=False)
class OpColumn:
    """The tiles of a step, and the connections between them. `homes` maps each box and inlet to its tile."""

    outline: StepOutline
    ids: str
    inner: float
    capacity: float
    full: bool = False
    note: str = ""  # text below the panel's title
    homes: dict[str, str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # positions of tiles, from top to bottom
    stages: dict[str, int] = field(default_factory=dict)  # stage of each tile
    first: dict[tuple[object, ...], StageOutline] = field(
        default_factory=dict
    )  # the stage that draws a layer in full
    crossings: dict[tuple[int, int], str] = field(default_factory=dict)
    made: dict[int, Tile] = field(default_factory=dict)  # tiles of ops, by identity of their cost
    parts: dict[str, str] = field(default_factory=dict)  # names of tiles that stand for several ops
    # connection from the last part of a layer to its first part
    back: list[tuple[str, str]] = field(default_factory=list)

    def frame(self, id: str) -> Frame:
        """The whole panel."""
        outline, many = self.outline, len(self.outline.report.stages) > 1
        items: list[Tile | Frame] = []
        for number, stage in enumerate(outline.stages):
            inside = list(self._stage(stage))
            for tile in (t for i in inside for t in ([i] if isinstance(i, Tile) else i.tiles)):
                self.stages[tile.id] = number
            if many:
                items += [self._crossing(number)] if number else []
                items.append(
                    Frame(f"stage_{inside_id(inside)}", STAGE, 24, tuple(inside), self._stage_head(stage))
                )
            else:
                items += inside
        items.append(step_tile(outline, f"{self.ids}sum", self.inner))
        if not many:
            items.append(memory_tile(outline, f"{self.ids}memory", self.inner, self.capacity))
        top = panel_head(outline, f"{self.ids}head", self.inner, self.note)
        found = Frame(id, PANEL, 32 if many else 24, tuple(items), top)
        self.order = {tile.id: i for i, tile in enumerate(found.tiles)}
        return found

    def _stage(self, stage: StageOutline) -> Iterator[Tile | Frame]:
        for period, run in groupby(stage.sections, lambda section: section.period):
            sections = list(run)
            items = [item for section in sections for item in self._section(section, stage)]
            if period:
                name, times = period
                title = f"{name} × {times}, each"
                parts = [f"{s.nest[-1]} × {s.prefix.rpartition('.')[2]}{s.sees}" for s in sections]
                top = band(f"{inside_id(items)}_period", title, "", parts, self.inner, 12, "#ffffff")
                yield Frame(f"period_{inside_id(items)}", PERIOD, 18, tuple(items), top)
            else:
                yield from items
        for box in stage.overheads:
            if box.total_s:
                yield self._op(box)
        if len(self.outline.report.stages) > 1:
            id = f"{self.ids}memory_{stage.numbers[0]}"
            yield memory_tile(self.outline, id, self.inner, self.capacity, stage.numbers[0])

    def _section(self, section: LayerSection, stage: StageOutline) -> Iterator[Tile | Frame]:
        inlets = self._entering.get(section.id, [])
        if not section.prefix:
            for inlet in inlets:
                yield self._known(inlet_tile(self.outline, inlet))
            for box in section.boxes:
                yield self._op(box)
            return
        seen = self.first.setdefault(section.likeness, stage)
        if seen is not stage and not self.full:
            yield self._again(section, seen, [i.id for i in inlets])
            return
        items: list[Tile | Frame] = [self._known(inlet_tile(self.outline, i)) for i in inlets]
        for name, boxes in section.groups.items():
            tiles = tuple(self._op(box) for box in boxes)
            if self.full:
                items += tiles
            else:
                items.append(Frame(f"group_{boxes[0].id}", GROUP, 6, tiles, self._group_head(name, boxes)))
        yield Frame(section.id, SECTION, 12, tuple(items), self._section_head(section))

    @cached_property
    def _entering(self) -> dict[str, list[Inlet]]:
        """The inputs of each section; the input that is computed last comes first, because it is directly
        above.
        """
        at = {b.id: i for i, b in enumerate(self.outline.boxes)}
        tails = {x.head: at.get(x.tail, -1) for x in self.outline.links}
        found: dict[str, list[Inlet]] = {}
        for inlet in sorted(self.outline.inlets, key=lambda i: -tails.get(i.id, -1)):
            found.setdefault(inlet.section, []).append(inlet)
        return found

    def _op(self, box: Box) -> Tile:
        """The tile of an op; equal layers share the tiles of their ops."""
        tile = self.made.get(id(box.cost))
        if tile is None:
            tile = self.made[id(box.cost)] = op_tile(self.outline, box, self.inner, full=self.full)
        return self._known(replace(tile, id=box.id, tip=f"{box.path}\n{tile.tip}"))

    def _known(self, tile: Tile) -> Tile:
        self.homes[tile.id] = tile.id
        return tile

    def _again(self, section: LayerSection, stage: StageOutline, inlets: Iterable[str]) -> Tile:
        """One tile for a section that equals a section of an earlier stage."""
        id = f"{section.id}_again"
        self.homes |= dict.fromkeys([*(b.id for b in section.boxes), *inlets], id)
        paint = PAINT[str(max(section.boxes, key=lambda b: b.total_s).cost.bound)]
        each = units.time(section.total_s / section.times)
        time, share = units.time(section.total_s), units.percent(self.outline.share(section.total_s))
        second = max(width(time, 12, bold=True), width(share, 9))
        title = f"{section.title} {section.count}"
        first = font(title, 12, bold=True), font(time, 12, paint.ink, bold=True)
        below = font(f"as in {stage_name(stage)}, {each} each", 9, MUTED), font(share, 9, MUTED)
        lines = [two(18.0, *first, self.inner, second), two(13.0, *below, self.inner, second)]
        return tile_of(id, lines, self.inner, paint, f"{title}: as in {stage_name(stage)}")

    def _section_head(self, section: LayerSection) -> Tile:
        share = units.percent(self.outline.share(section.total_s))
        each, whole = units.time(section.total_s / section.times), units.time(section.total_s)
        count = section.count.replace(" ", "\N{NO-BREAK SPACE}")
        name = f"{section.title} {count}" if section.times > section.micro_batches else section.title
        figure = f"{whole} · {share}"
        below = [f"{each} each{section.sees}"] if section.times > 1 else []
        return band(f"{section.id}_head", name, figure, below, self.inner, 12, SECTION["fillcolor"])

    def _group_head(self, name: str, boxes: Sequence[Box]) -> Tile:
        each = units.time(sum(float(b.cost.time_s) for b in boxes))
        figure = f"{each} · {units.percent(self.outline.share(sum(b.total_s for b in boxes)))}"
        return band(f"{boxes[0].id}_group", name or "other", figure, [], self.inner, 11, GROUP["fillcolor"])

    def _stage_head(self, stage: StageOutline) -> Tile:
        report, first = self.outline.report, stage.numbers[0]
        ranks = report.program.devices // len(report.stages)
        start, end = first * ranks, (stage.numbers[-1] + 1) * ranks - 1
        where = f"device{'s' if end > start else ''} {start}" + (f"–{end}" if end > start else "")
        each = units.time(float(report.stages[first].time_s))
        parts = [p for p in (where, stage.layers, f"{each} a micro-batch") if p]
        if len(stage.numbers) > 1:
            parts.append(f"{len(stage.numbers)} stages alike, drawn once")
        return band(
            f"{self.ids}stage_{first}",
            stage_name(stage),
            each,
            [" · ".join(parts)],
            self.inner,
            14,
            "#ffffff",
        )

    def _crossing(self, number: int) -> Tile:
        """The transfer from the previous stage to this one: its bytes and its time."""
        outline, id = self.outline, f"{self.ids}cross_{number}"
        before, here = outline.stages[number - 1], outline.stages[number]
        tails, heads = ({b.id: b for b in s.boxes} for s in (before, here))
        links = [x for x in outline.links if x.tail in tails and x.head in heads]
        self.crossings[number - 1, number] = id
        lines, said = [], []
        for link in links:
            box = tails[link.tail]
            sent = float(box.cost.comm_bytes)
            words = [f"{units.bytes(sent)} sent", units.time(float(box.cost.time_s))] if sent else []
            shapes = [shape_words(outline, type) for _, type in link.values]
            lines += [one(14.0, font(shape, 10, PAINT["network"].ink, bold=True), 220) for shape in shapes]
            lines += [one(12.0, font(" · ".join([*words, "each micro-batch"]), 9, MUTED), 220)]
            said += [*shapes, *words]
        return tile_of(
            id,
            lines or [one(12.0, font("nothing", 9), 220)],
            220,
            PLAIN.tinted(PAINT["network"]),
            "\n".join(said),
        )

    def wires(self) -> Iterator[Wire]:
        """Dataflow between tiles; each pair of tiles has one connection."""
        found: dict[tuple[str, str], list[DataEdge]] = {}
        for link in self.outline.links:
            tail, ahead = self.homes[link.tail], self.homes[link.head]
            if tail != ahead:
                found.setdefault((tail, ahead), []).append(link)
        inlets = {i.id for i in self.outline.inlets}
        for (tail, ahead), links in found.items():
            said = partial(self._said, links)
            sides = self.stages[tail], self.stages[ahead]
            if pill := self.crossings.get(sides):
                yield Wire(tail, pill, said(), strong=True)
                yield Wire(pill, ahead, said(), strong=True)
                continue
            residual = any(self.outline.role(x) == "residual" for x in links) or ahead in inlets
            residual = residual and self.order[ahead] - self.order[tail] > 1
            yield Wire(tail, ahead, said(), self._words(links) if self.full else "", dashed=residual)

    def _said(self, links: Sequence[DataEdge]) -> str:
        values = dict.fromkeys(v for link in links for v in link.values)
        return "\n".join(f"{name}: {shape_words(self.outline, type)}" for name, type in values)

    def _words(self, links: Sequence[DataEdge]) -> str:
        types = [type for link in links for _, type in link.values]
        more = f" (+{len(types) - 1})" if len(types) > 1 else ""
        return shape_words(self.outline, types[0]).replace(" × ", "×") + more if types else ""


def inside_id(items: Sequence[Tile | Frame]) -> str:
    """The id of the first item."""
    return items[0].id


# Level overview

OVERVIEW_KEY = (
    "Layers: time of all their runs, and share of the step. Bars are against the longest op. Dashed: to the "
    "next layer. Point at a box for its ops."
)
_TOP, _NAME, _BAR, _TIME = 3, 126, 68, 56
_WIDE = float(_NAME + _BAR + _TIME)


def draw_overview(job: Report | Workload, panels: Sequence[Any]) -> Canvas:
    """The picture."""
    return draw_columns(job, panels, OverviewColumn, _WIDE, OVERVIEW_KEY, gap=16.0)


class OverviewColumn(OpColumn):
    """A step with one tile for each part of a layer, and for each series of ops outside the layers."""

    def _section(self, section: LayerSection, stage: StageOutline) -> Iterator[Tile | Frame]:
        if not section.prefix:
            for name, run in groupby(section.boxes, lambda b: b.group):
                boxes = tuple(run)
                yield self._part(name or self.outline.report.program.name, boxes, whole=len(boxes) > 1)
            return
        tiles = tuple(self._part(name, boxes, whole=True) for name, boxes in section.groups.items())
        yield Frame(section.id, SECTION, 12, tiles, self._section_head(section))
        if section.times > section.micro_batches * section.stages and len(tiles) > 1:
            self.back.append((tiles[-1].id, tiles[0].id))

    def wires(self) -> Iterator[Wire]:
        """Connections from each part to the next part, to the next stage, and from the last part of a layer
        to its first part.
        """
        chain = [name for name in self.order if name in self.parts]
        for tail, ahead in pairwise(chain):
            if pill := self.crossings.get((self.stages[tail], self.stages[ahead])):
                yield Wire(tail, pill, strong=True)
                yield Wire(pill, ahead, strong=True)
            else:
                yield Wire(tail, ahead, f"{self.parts[tail]} → {self.parts[ahead]}")
        for tail, ahead in self.back:
            yield Wire(tail, ahead, "to the next layer", dashed=True)

    def _part(self, name: str, boxes: Sequence[Box], *, whole: bool) -> Tile:
        """A tile for several ops; it names the longest op and states the time of the others."""
        longest = sorted(boxes, key=lambda b: -b.total_s)
        first = longest[0]
        title = name or "other" if whole else first.name
        seconds = sum(b.total_s for b in boxes)
        time, share = units.time(seconds), units.percent(self.outline.share(seconds))
        paint = PAINT[str(first.cost.bound)]
        second = max(width(time, 12, bold=True), width(share, 9))
        named, *more = wrapped(title, 12, _WIDE - second - 8, _WIDE, bold=True)
        heading = font(named, 12, INK, bold=True), font(time, 12, paint.ink, bold=True)
        lines = [two(18.0, *heading, _WIDE, second)]
        lines += [one(15.0, font(words, 12, INK, bold=True), _WIDE) for words in more]
        kind = f"mostly {first.cost.bound}" if len(boxes) > 1 else str(first.cost.bound)
        lines.append(two(13.0, font(kind, 9, MUTED), font(share, 9, MUTED), _WIDE, second))
        if whole:
            lines += [across(15.0, self._bar(box, 15.0)) for box in longest[:_TOP]]
        if rest := longest[_TOP:]:
            after = f"{len(rest)} more op{'s' if len(rest) > 1 else ''}"
            said = f"+ {after}, {units.time(sum(b.total_s for b in rest))}"
            lines.append(one(13.0, font(said, 9, MUTED), _WIDE))
        for note in list(dict.fromkeys(b.note for b in boxes if b.note))[:1]:
            lines.append(one(12.0, font(fit(note, 9, _WIDE), 9, MUTED), _WIDE))
        said = "\n\n".join(f"{box.path}\n{tip(self.outline, box)}" for box in boxes)
        self.parts[first.id] = title
        return self._known(tile_of(first.id, lines, _WIDE, paint, said))

    def _bar(self, box: Box, high: float) -> str:
        name = left(font(fit(box.name, 10, _NAME - 6), 10), _NAME, high)
        drawn = bar(box.total_s / (self.outline.longest_s or 1), _BAR, PAINT[str(box.cost.bound)].line, 7)
        time = right(font(units.time(box.total_s), 10), _TIME, high)
        return table([f"{name}<TD>{drawn}</TD>{time}"])
