"""Text, tiles and frames of pictures.

Order of the file: HTML-like labels with cells of fixed sizes, since Graphviz measures text in any font that
it finds (`anchors` gives the alignment of each text); tiles and frames with computed positions in points, y
upward, top at y = 0 (`Canvas`); the tile of an op and of an input; and sums as bars in sequence, to scale.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from llmir.backends.compare.diff import OpTotal
from llmir.backends.export import units, wording
from llmir.base.dataclass import dataclass
from llmir.ir.core.tensor import Tensor

from .outline import Box, Inlet, StageOutline, StepOutline

# HTML-like labels

FONT = "Helvetica,Arial,sans-serif"
INK, MUTED, FAINT = "#0f172a", "#64748b", "#e2e8f0"


@dataclass(frozen=True)
class BoundColors:
    """The colors of a bound (fill, saturated border and bar, text), and the style of its boxes."""

    fill: str
    line: str
    ink: str
    style: str = "rounded,filled"

    def tinted(self, other: BoundColors) -> BoundColors:
        """A copy with another border color."""
        return BoundColors(self.fill, other.line, other.ink, self.style)


PAINT = {
    "memory": BoundColors("#e8f0fb", "#2f6db5", "#1c4a86"),
    "compute": BoundColors("#fdece3", "#d1602c", "#9a3b12"),
    "network": BoundColors("#f1e9fa", "#7a4bb0", "#5a2d8c"),
    "overhead": BoundColors("#f3f4f6", "#9aa3af", "#4b5563"),
    "bubble": BoundColors("#ffffff", "#9aa3af", "#4b5563", "rounded,filled,dashed"),
}
PLAIN = BoundColors("#ffffff", "#94a3b8", INK)

# Widths of the characters of DejaVu Sans, in thousandths of the font size; it is the widest of the usual
# sans-serif fonts.
_WIDTHS = {
    302: "ijlI|'",
    340: " \N{NO-BREAK SPACE}.,:;/\\·",
    432: "()[]!-rtf",
    530: 'sz_?*`"',
    600: "cekvxyaLFPT",
    640: "0123456789bdghnopquµ{}$EJS–",
    700: "ABCKRVXYZ",
    790: "DGHNOQU&",
    840: "+=<>#~^×w−±→",
    980: "mMW%@…",
}
_WIDTH = {char: width for width, chars in _WIDTHS.items() for char in chars}
_BOLD, _SLACK = 1.14, 1.15


@lru_cache(maxsize=1 << 14)
def width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a line in points, with a margin because fonts may be 15% wider than DejaVu Sans."""
    ems = sum(_WIDTH.get(c, 640 if c.isascii() else 1000) for c in text) / 1000
    return ems * size * _SLACK * (_BOLD if bold else 1.0)


def fit(text: str, size: float, limit: float, *, bold: bool = False) -> str:
    """`text`, cut to at most `limit` points."""
    if width(text, size, bold=bold) <= limit:
        return text
    while text and width(f"{text}…", size, bold=bold) > limit:
        text = text[:-1]
    return f"{text}…"


def escape_xml(text: str) -> str:
    """Escape text for an XML document, on one line."""
    line = " ".join(text.split())
    # Graphviz would replace a single `\N` with the name of the node
    return html.escape(_shown(line)).replace("\\", "\\\\")


def font(text: str, size: float, color: str = INK, *, bold: bool = False) -> str:
    """A run of text."""
    text = escape_xml(text) or "&#160;"  # dot does not support empty text
    inner = f"<B>{text}</B>" if bold else text
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{color}">{inner}</FONT>'


def quoted(text: str) -> str:
    """Escape text for an attribute, without backslash commands; line breaks are kept."""
    lines = (_shown(" ".join(line.split())) for line in text.split("\n"))
    return "\\n".join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)


def _shown(line: str) -> str:
    """The text of a line, without characters that cannot be shown."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def wrapped(text: str, size: float, first: float, limit: float, *, bold: bool = False) -> list[str]:
    """A name on a line of `first` points; if it is longer, it is broken after one of its `_`, with a second
    line of `limit` points.
    """
    if width(text, size, bold=bold) <= first:
        return [text]
    cuts = [
        i + 1 for i, c in enumerate(text) if c in "_.- " and width(text[: i + 1], size, bold=bold) <= first
    ]
    if not cuts:
        return [fit(text, size, first, bold=bold)]
    return [text[: cuts[-1]], fit(text[cuts[-1] :], size, limit, bold=bold)]


def left(content: str, wide: float, high: float, *, span: int = 1) -> str:
    """A cell of fixed size with left-aligned text."""
    return _cell(f'{content}<BR ALIGN="LEFT"/>', wide, high, span)


def right(content: str, wide: float, high: float) -> str:
    """A cell of fixed size with right-aligned text; it is the last cell of its row."""
    return _cell(f'{content}<BR ALIGN="RIGHT"/>', wide, high)


def centered(content: str, wide: float, high: float) -> str:
    """A cell of fixed size with centered text; it is the only cell of its tile."""
    return _cell(content, wide, high)


def _cell(content: str, wide: float, high: float, span: int = 1) -> str:
    over = f'COLSPAN="{span}" ' if span > 1 else ""
    size = f'FIXEDSIZE="TRUE" WIDTH="{wide:.0f}" HEIGHT="{high:g}"'
    return f'<TD ALIGN="TEXT" {over}{size}>{content}</TD>'


_ANCHORS = {"LEFT": "start", "RIGHT": "end", "": "middle"}
_RUN = re.compile(r'</FONT>(?:<BR ALIGN="(LEFT|RIGHT)"/>)?')


def anchors(rows: Sequence[str]) -> list[str]:
    """The SVG anchor of each text in some rows, in the order in which Graphviz writes them."""
    return [_ANCHORS[found[1] or ""] for row in rows for found in _RUN.finditer(row)]


def bar(share: float, length: float, color: str, height: float = 5) -> str:
    """The content of a cell: a bar that is filled up to `share` of its length."""
    filled = round(max(0.0, min(1.0, share)) * length)
    parts = [(filled, color), (round(length) - filled, FAINT)]
    cells = "".join(
        f'<TD FIXEDSIZE="TRUE" WIDTH="{n}" HEIGHT="{height:g}" BGCOLOR="{paint}"></TD>'
        for n, paint in parts
        if n
    )
    return table([cells])


def table(rows: Iterable[str], attributes: str = "") -> str:
    """A borderless table of rows of cells."""
    body = "".join(f"<TR>{row}</TR>" for row in rows)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" {attributes}>{body}</TABLE>'


def label(content: str) -> str:
    """Mark content as an HTML-like label for Graphviz."""
    return f"<{content}>"


# Tiles and frames in place

Point = tuple[float, float]
_ROUND = 5.0  # the radius of a wire's corners


@dataclass(frozen=True, eq=False)
class Tile:
    """A box of fixed size: rows of cells, colors, and a tooltip."""

    id: str
    rows: tuple[str, ...]
    wide: float
    high: float
    paint: BoundColors
    tip: str = ""
    inset: float = 0.0  # distance between the right edge and the end of right-aligned text

    @property
    def content(self) -> str:
        """Build the label from its rows."""
        return label(table(self.rows)) if self.rows else ""


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame: a heading above its content; on each side, it is `inset` points wider than the content."""

    id: str
    style: Mapping[str, str]
    inset: float
    items: tuple[Tile | Frame, ...]
    head: Tile | None = None
    tip: str = ""

    @property
    def tiles(self) -> Iterator[Tile]:
        """All tiles of a column except headings, from top to bottom."""
        for item in self.items:
            yield from (item,) if isinstance(item, Tile) else item.tiles


@dataclass(frozen=True)
class Area:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        """The x position of the middle of a column."""
        return (self.left + self.right) / 2


@dataclass(eq=False)
class Canvas:
    """A `graphviz.Digraph` under construction, and the positions of its tiles."""

    graph: Any
    spots: dict[str, Area] = field(default_factory=dict)
    tiles: dict[str, Tile] = field(default_factory=dict)

    def tile(self, tile: Tile, middle: float, top: float, into: Any = None) -> Area:
        """Draw a tile so that its upper edge is at `top`."""
        at = Area(middle - tile.wide / 2, top, middle + tile.wide / 2, top - tile.high)
        self.spots[tile.id] = at
        self.tiles[tile.id] = tile
        (self.graph if into is None else into).node(
            tile.id,
            tile.content,
            pos=f"{at.middle:.1f},{(at.top + at.bottom) / 2:.1f}",
            width=f"{tile.wide / 72:.4f}",
            height=f"{tile.high / 72:.4f}",
            color=tile.paint.line,
            fillcolor=tile.paint.fill,
            style=tile.paint.style,
            tooltip=_tooltip(tile.tip),
        )
        return at

    def frame(self, into: Any, at: Area, style: Mapping[str, str], tip: str = "") -> None:
        """Turn a subgraph into a frame at a position."""
        bb = f"{at.left:.1f},{at.bottom:.1f},{at.right:.1f},{at.top:.1f}"
        into.attr(bb=bb, label="", tooltip=_tooltip(tip), **style)

    def wire(self, tail: str, head: str, corners: Sequence[Point], tip: str = "", **style: str) -> None:
        """Draw an edge through some corners; the arrow is at the last one."""
        bare = style.get("arrowhead") == "none"
        self.graph.edge(tail, head, pos=spline(corners, bare=bare), tooltip=_tooltip(tip), **style)

    def words(self, id: str, content: str, wide: float, high: float, middle: float, top: float) -> None:
        """Text alone."""
        self.tile(Tile(id, (content,), wide, high, _BARE), middle, top)


def _tooltip(tip: str) -> str:
    """A tooltip as plain text; a blank tooltip prevents Graphviz from showing that of the surrounding
    frame.
    """
    import graphviz

    text: str = graphviz.nohtml(quoted(tip) or " ")
    return text


_BARE = BoundColors("transparent", "transparent", "", "filled")


def stack(
    canvas: Canvas, frame: Frame, middle: float, half: tuple[float, float], top: float, gap: float
) -> Area:
    """Draw a frame and its content from top to bottom; `half` is the distance from the center to each side of
    the content.
    """
    with canvas.graph.subgraph(name=f"cluster_{frame.id}") as into:
        return _stack(canvas, into, frame, middle, half, top, gap)


def _stack(
    canvas: Canvas,
    into: Any,
    frame: Frame,
    middle: float,
    half: tuple[float, float],
    top: float,
    gap: float,
) -> Area:
    y = top
    if frame.head:
        y = canvas.tile(frame.head, middle, top - 5, into).bottom
    for i, item in enumerate(frame.items):
        y -= gap if i else gap / 2
        if isinstance(item, Tile):
            y = canvas.tile(item, middle, y, into).bottom
        else:
            with into.subgraph(name=f"cluster_{item.id}") as inner:
                y = _stack(canvas, inner, item, middle, half, y, gap).bottom
    left, right = (n + frame.inset for n in half)
    at = Area(middle - left, top, middle + right, y - 10)
    canvas.frame(into, at, frame.style, frame.tip)
    return at


def spline(corners: Sequence[Point], tip: float = 5.0, *, bare: bool = False) -> str:
    """Graphviz's `pos` of an edge along straight lines with round corners; the arrowhead is `tip` points
    long.
    """
    *_, (x0, y0), (x1, y1) = corners
    stop = (x1, y1) if bare else _toward((x1, y1), (x0, y0), tip)
    path = [*corners[:-1], stop]
    points = [path[0]]
    for i, (a, b) in enumerate(pairwise(path)):
        last = i == len(path) - 2
        near = a if not i else _toward(a, b, _ROUND)
        far = b if last else _toward(b, a, _ROUND)
        if i:
            # the corner, approached from the end of the previous line and bent towards the next
            points += [a, a, near]
        points += [_between(near, far, 1 / 3), _between(near, far, 2 / 3), far]
    end = "" if bare else f"e,{x1:.1f},{y1:.1f} "
    return end + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _toward(a: Point, b: Point, by: float) -> Point:
    """The point at this distance from `a` on the way to `b`; at most halfway."""
    long = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1e-9)
    return _between(a, b, min(by / long, 0.5))


def _between(a: Point, b: Point, part: float) -> Point:
    return a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])


# Tiles of ops and inputs

_KINDS = {"gemm": "GEMM", "moe": "MoE"}
_NAME, _SMALL, _DETAIL = 12, 9, "#334155"
_GAP, _NARROWEST, _WIDEST = 14.0, 240.0, 272.0
INSET = 13


def op_tile(outline: StepOutline, box: Box, inner: float, *, full: bool = False) -> Tile:
    """The tile of an op, with text that is `inner` points wide; with `full`, weights and caches are
    included.
    """
    time, percent = units.time(float(box.cost.time_s)), units.percent(outline.share(box.total_s))
    paint = PAINT[str(box.cost.bound)]
    second = max(width(time, _NAME, bold=True), width(percent, _SMALL))
    name, *more = wrapped(box.name, _NAME, inner - _GAP - second, inner, bold=True)
    share = box.total_s / (outline.longest_s or 1)
    first = font(name, _NAME, INK, bold=True), font(time, _NAME, paint.ink, bold=True)
    below = font(kind(box), _SMALL, MUTED), font(percent, _SMALL, MUTED)
    lines = [
        two(18, *first, inner, second),
        *(one(15, font(line, _NAME, INK, bold=True), inner) for line in more),
        two(13, *below, inner, second),
        *([] if full else [across(10, bar(share, inner, paint.line))]),
        *(one(12, font(line, _SMALL, _DETAIL), inner) for line in details(box)),
        *(
            one(12, font(line, _SMALL, _DETAIL), inner)
            for line in (_storage_lines(outline, box, inner) if full else ())
        ),
    ]
    return tile_of(box.id, lines, inner, paint, tip(outline, box))


Line = tuple[float, str]  # a line of a tile: its height, and its cells in two columns


def tile_of(id: str, lines: Sequence[Line], inner: float, paint: BoundColors, said: str = "") -> Tile:
    """A tile with lines of text that is `inner` points wide."""
    rows = []
    for high, cells in lines:
        inset = f'<TD FIXEDSIZE="TRUE" WIDTH="{INSET}" HEIGHT="{high:g}"></TD>'
        rows.append(f"{inset}{cells}{inset}")
    space = '<TD HEIGHT="5"></TD>'
    high = sum(n for n, _ in lines) + 10
    return Tile(id, (space, *rows, space), inner + 2 * INSET, high, paint, said, INSET)


def two(high: float, first: str, last: str, inner: float, second: float) -> Line:
    """A line with left-aligned text, and with right-aligned text that is `second` points wide."""
    wide = round(second)
    return high, left(first, round(inner) - wide, high) + right(last, wide, high)


def one(high: float, content: str, inner: float) -> Line:
    """A line of one text."""
    return high, left(content, inner, high, span=2)


def across(high: float, content: str, attributes: str = "") -> Line:
    """A line that spans both columns of a table."""
    return high, f'<TD COLSPAN="2" {attributes}>{content}</TD>'


def inlet_tile(outline: StepOutline, inlet: Inlet) -> Tile:
    """A rounded tile for a value: its name, shape, dtype and bytes."""
    name, *more = wrapped(inlet.name, 10, _WIDEST - 10, _WIDEST - 10, bold=True)
    shape = shape_words(outline, inlet.type)
    wide = ceil(
        max(
            width(name, 10, bold=True), *(width(m, 10, bold=True) for m in more or [""]), width(shape, _SMALL)
        )
    )
    lines = [one(13, font(line, 10, bold=True), wide) for line in (name, *more)]
    lines.append(one(12, font(shape, _SMALL, MUTED), wide))
    return tile_of(inlet.id, lines, wide, PLAIN, f"{inlet.name}: {shape}")


def shape_words(outline: StepOutline, type: Tensor) -> str:
    """The part of a value that one rank has, such as `8 × 1 × 4096 bf16, 65.5 kB`."""
    if type not in outline.shapes:
        at, mine = outline.report.at, type.local(outline.report.program.mesh)
        sizes = " × ".join(f"{round(float(at(n)))}" for n in mine.shape)
        outline.shapes[type] = f"{sizes} {mine.dtype}, {units.bytes(float(at(mine.bytes)))}".strip()
    return outline.shapes[type]


def inner_width(outline: StepOutline, *, full: bool = False) -> float:
    """The width in points of the text of the widest box, within limits; if edges have labels, the largest
    allowed width.
    """
    needed = [_WIDEST if full else _NARROWEST]
    for box in outline.boxes:
        time, percent = units.time(float(box.cost.time_s)), units.percent(outline.share(box.total_s))
        needed.append(width(box.name, _NAME, bold=True) + _GAP + width(time, _NAME, bold=True))
        needed.append(width(kind(box), _SMALL) + _GAP + width(percent, _SMALL))
        needed += [width(line, _SMALL) for line in details(box)]
    return min(ceil(max(needed)) + 1.0, _WIDEST)


def kind(box: Box) -> str:
    """The kind of an op, and its bound."""
    of = box.group if box.op is None else _KINDS.get(box.cost.kind, box.cost.kind)
    return f"{of} · {box.cost.bound}"


def details(box: Box) -> list[str]:
    """FLOPs, bytes and intensity, separated by dots; zeros are omitted; then the note of the op."""
    cost = box.cost
    if box.op is None:
        return box.note.split(" · ") if box.note else []
    words = [units.flops(float(cost.flops))] if cost.flops else []
    words += [units.bytes(box.bytes)] if box.bytes else []
    words += [f"{units.bytes(float(cost.comm_bytes))} sent"] if cost.comm_bytes else []
    words += [units.intensity(float(cost.intensity))] if cost.flops and box.bytes else []
    nothing = "counted where it is sent" if cost.kind == "collective" else "nothing is moved"
    return [" · ".join(words) or nothing, *([box.note] if box.note else [])]


def _storage_lines(outline: StepOutline, box: Box, inner: float) -> list[str]:
    """A line for each weight and cache; a long one takes two lines."""
    found = []
    for held in box.held:
        named, shape = f"{held.role} {held.name.removesuffix('.weight')}", shape_words(outline, held.type)
        if width(f"{named}: {shape}", _SMALL) <= inner:
            found.append(f"{named}: {shape}")
        else:
            found += [*wrapped(f"{named}:", _SMALL, inner, inner), *wrapped(shape, _SMALL, inner, inner)]
    return found


def tip(outline: StepOutline, box: Box) -> str:
    """The tooltip of an op, below its path: the equation, and values with their basis."""
    cost = box.cost
    often = f" × {box.times} = {units.time(box.total_s)}" if box.times > 1 else ""
    share = f"{units.percent(outline.share(box.total_s))} of the step"
    lines = [f"{box.op.opcode}: {box.equation}"] if box.op else []
    lines.append(f"{units.time(float(cost.time_s))}{wording.error_band(cost.error)}{often}, {share}")
    if box.op:
        lines.append(f"bound: {cost.bound} · ideal {units.time(float(cost.ideal_time_s))}")
        lines.append(f"{units.flops(float(cost.flops))} · {units.intensity(float(cost.intensity))}")
        lines.append(
            f"reads {units.bytes(float(cost.read_bytes))} · writes {units.bytes(float(cost.write_bytes))}"
        )
        lines += [f"sends {units.bytes(float(cost.comm_bytes))}"] if cost.comm_bytes else []
        lines += [f"{h.role} {h.name}: {shape_words(outline, h.type)}" for h in box.held]
    lines.append(f"basis: {cost.basis}")
    return "\n".join([*lines, *([box.note] if box.note else [])])


def tip_of(part: OpTotal) -> str:
    """The tooltip of an op in a comparison; values are totals over all calls."""
    lines = [
        f"{part.name} ({part.opcode}) × {part.repeat}",
        f"{units.time(float(part.time_s))}, bound: {part.bound}",
    ]
    lines.append(f"{units.flops(float(part.flops))}")
    lines.append(
        f"reads {units.bytes(float(part.read_bytes))} · writes {units.bytes(float(part.write_bytes))}"
    )
    return "\n".join([*lines, f"basis: {part.basis}"])


# Sums as bars

_DARK = BoundColors("#ffffff", "#475569", INK)
_SHARE = 0.3  # share of a line that its bar takes


class SumTerm(NamedTuple):
    """A term of a sum: its text, its value, and its colors."""

    words: str
    value: float
    paint: BoundColors


def sum_tile(
    id: str,
    title: str,
    terms: Sequence[SumTerm],
    whole: float,
    unit: Callable[[float], str],
    inner: float,
    below: Sequence[str] = (),
) -> Tile:
    """A line for each term; bars continue each other, and `whole` sets their scale."""
    second = round(max((width(unit(t.value), 9) for t in terms), default=0.0))
    long = round(_SHARE * inner)
    first = round(inner) - long - second - 14
    lines = [one(16.0, font(fit(title, 11, inner, bold=True), 11, bold=True), inner)]
    start = 0.0
    for term in terms:
        cells = (
            left(font(fit(term.words, 9, first), 9), first, 13)
            + '<TD WIDTH="4"></TD>'
            + f'<TD WIDTH="{long}">{_bar(start, term.value, whole, long, term.paint.line)}</TD>'
            + '<TD WIDTH="10"></TD>'
            + right(font(unit(term.value), 9, term.paint.ink), second, 13)
        )
        lines.append(across(13.0, table([cells])))
        start += term.value
    lines += [one(12.0, font(fit(words, 9, inner), 9, MUTED), inner) for words in below]
    said = "\n".join([title, *(f"{unit(t.value)} {t.words}" for t in terms), *below])
    return tile_of(id, lines, inner, PLAIN, said)


def _bar(start: float, value: float, whole: float, long: int, color: str) -> str:
    """A bar that starts where the previous bar ends; the bar of a negative value goes back."""
    begin, end = sorted((start, start + value))
    x0, x1 = (round(max(0.0, min(1.0, x / whole if whole else 0.0)) * long) for x in (begin, end))
    if value and x1 == x0:
        x0, x1 = (x0 - 1, x1) if x1 == long else (x0, x1 + 1)
    parts = [(x0, FAINT), (x1 - x0, color), (long - x1, FAINT)]
    cells = "".join(
        f'<TD FIXEDSIZE="TRUE" WIDTH="{n}" HEIGHT="6" BGCOLOR="{paint}"></TD>' for n, paint in parts if n
    )
    return table([cells])


def step_terms(outline: StepOutline) -> list[SumTerm]:
    """The terms of the step's time: layers, other ops and overhead, or the stages."""
    report = outline.report
    if len(report.stages) > 1:
        found = [_stage_term(outline, stage) for stage in outline.stages]
        times = [float(s.time_s) for s in report.stages]
        slowest = max(range(len(times)), key=times.__getitem__)
        if more := report.program.micro_batches - 1:
            words = f"{more} × stage {slowest}, slowest"
            found.append(SumTerm(words, more * times[slowest], PAINT["memory"]))
        return found
    found, rest = [], 0.0
    for section in outline.sections:
        if section.prefix:
            most = max(section.boxes, key=lambda b: b.total_s)
            found.append(
                SumTerm(f"{section.title} {section.count}", section.total_s, PAINT[str(most.cost.bound)])
            )
        else:
            rest += section.total_s
    only = outline.sections[0].boxes if len(outline.sections) == 1 and not found else ()
    if only:
        found = [SumTerm(b.name, b.total_s, PAINT[str(b.cost.bound)]) for b in only[:12]]
        rest = sum(b.total_s for b in only[12:])
    if rest:
        found.append(SumTerm("other ops", rest, _DARK))
    overheads = [b for stage in outline.stages for b in stage.overheads]
    return [*found, *(SumTerm(b.name, b.total_s, PAINT["overhead"]) for b in overheads)]


def _stage_term(outline: StepOutline, stage: StageOutline) -> SumTerm:
    each = float(outline.report.stages[stage.numbers[0]].time_s)
    most = max(stage.boxes, key=lambda b: b.total_s if b.op else 0.0)
    count = len(stage.numbers)
    return SumTerm(stage_name(stage), count * each, PAINT[str(most.cost.bound)])


def stage_name(stage: StageOutline) -> str:
    """`stage 0`, or `stages 1–2`."""
    first, last = stage.numbers[0], stage.numbers[-1]
    return f"stage {first}" if first == last else f"stages {first}–{last}"


def step_tile(outline: StepOutline, id: str, inner: float) -> Tile:
    """The time of the step as a sum of terms."""
    report = outline.report
    time = float(report.time_s)
    terms = step_terms(outline)
    title = (
        f"step {units.time(time)}{wording.error_band(report.error)} = {'sum' if len(terms) > 1 else 'all'} of"
    )
    below = ["first micro-batch, then the others"] if len(report.stages) > 1 else []
    below += [f"{name} {value}" for name, value in wording.pipeline_lines(report)[1:]]
    return sum_tile(
        id, title, terms, max(time, *(t.value for t in terms)) if terms else time, units.time, inner, below
    )


def memory_tile(
    outline: StepOutline, id: str, inner: float, capacity: float, stage: int | None = None
) -> Tile:
    """The memory of a rank at its peak, of one stage or of the fullest stage."""
    rows = outline.report.stages
    row = rows[stage] if stage is not None else max(rows, key=lambda r: float(r.peak_memory_bytes))
    peak = float(row.peak_memory_bytes)
    transient = peak - float(row.weight_bytes) - float(row.kv_cache_bytes)
    held = (
        ("weights", float(row.weight_bytes)),
        ("KV cache", float(row.kv_cache_bytes)),
        ("activations", transient),
    )
    terms = [SumTerm(words, value, _DARK) for words, value in held if value]
    over = "" if peak <= capacity else ": does not fit"
    title = f"memory {units.bytes(peak)} of {units.bytes(capacity)}{over}"
    return sum_tile(id, title, terms, max(capacity, peak), units.bytes, inner)
