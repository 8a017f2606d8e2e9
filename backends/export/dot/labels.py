"""The tile of one op, and the pill of a value that enters a layer or the program."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from llmir.backends.compare.diff import Part
from llmir.backends.export import units, wording
from llmir.ir.core.tensor import Tensor

from .canvas import Tile
from .label import INK, MUTED, PAINT, PLAIN, Paint, bar, font, left, right, width, wrapped
from .outline import Inlet, Outline
from .sections import Box

_KINDS = {"gemm": "GEMM", "moe": "MoE"}
_NAME, _SMALL, _DETAIL = 12, 9, "#334155"
_GAP, _NARROWEST, _WIDEST = 14.0, 240.0, 272.0
INSET = 13


def op_tile(outline: Outline, box: Box, inner: float, *, full: bool = False) -> Tile:
    """A tile with text `inner` points wide; `full` says its weights and caches too."""
    time, percent = units.time(float(box.cost.time_s)), units.percent(outline.share(box.total_s))
    paint = PAINT[str(box.cost.bound)]
    second = max(width(time, _NAME, bold=True), width(percent, _SMALL))
    name, *more = wrapped(box.name, _NAME, inner - _GAP - second, inner, bold=True)
    share = box.total_s / (outline.longest_s or 1)
    lines = [
        (18, two(font(name, _NAME, INK, bold=True), font(time, _NAME, paint.ink, bold=True), inner, second)),
        *((15, one(font(line, _NAME, INK, bold=True), inner)) for line in more),
        (13, two(font(kind(box), _SMALL, MUTED), font(percent, _SMALL, MUTED), inner, second)),
        *([] if full else [(10, f'<TD COLSPAN="2">{bar(share, inner, paint.line)}</TD>')]),
        *((12, one(font(line, _SMALL, _DETAIL), inner)) for line in details(box)),
        *(
            (12, one(font(line, _SMALL, _DETAIL), inner))
            for line in (_held(outline, box, inner) if full else ())
        ),
    ]
    return tile_of(box.id, lines, inner, paint, tip(outline, box))


def tile_of(id: str, lines: Sequence[tuple[float, str]], inner: float, paint: Paint, said: str = "") -> Tile:
    """A tile of lines, each so high, and cells of two columns over `inner` points."""
    inset = f'<TD WIDTH="{INSET}"></TD>'
    rows = [
        f"{inset}{cells.replace('<TD', f'<TD HEIGHT={chr(34)}{high:g}{chr(34)}', 1)}{inset}"
        for high, cells in lines
    ]
    space = '<TD HEIGHT="5"></TD>'
    high = sum(n for n, _ in lines) + 10
    return Tile(id, (space, *rows, space), inner + 2 * INSET, high, paint, said)


def two(first: str, last: str, inner: float, second: float) -> str:
    """Cells of a line: what begins at its left edge, and what ends at its right in `second` points."""
    return left(first, f'WIDTH="{inner - second:.0f}"') + right(last, f'WIDTH="{second:.0f}"')


def one(content: str, inner: float) -> str:
    """The cell of a line of its own."""
    return left(content, f'COLSPAN="2" WIDTH="{inner:.0f}"')


def inlet_tile(outline: Outline, inlet: Inlet) -> Tile:
    """A pill that says the name, shape, type and bytes of a value."""
    name, *more = wrapped(inlet.name, 10, _WIDEST - 10, _WIDEST - 10, bold=True)
    shape = shape_words(outline, inlet.type)
    wide = ceil(
        max(
            width(name, 10, bold=True), *(width(m, 10, bold=True) for m in more or [""]), width(shape, _SMALL)
        )
    )
    lines = [(13, one(font(line, 10, bold=True), wide)) for line in (name, *more)]
    lines.append((12, one(font(shape, _SMALL, MUTED), wide)))
    return tile_of(inlet.id, lines, wide, PLAIN, f"{inlet.name}: {shape}")


def shape_words(outline: Outline, type: Tensor) -> str:
    """What a rank has of a value: `8 × 1 × 4096 bf16, 65.5 kB`."""
    if type not in outline.shapes:
        at, mine = outline.report.at, type.local(outline.report.program.mesh)
        sizes = " × ".join(f"{round(float(at(n)))}" for n in mine.shape)
        outline.shapes[type] = f"{sizes} {mine.dtype}, {units.bytes(float(at(mine.bytes)))}".strip()
    return outline.shapes[type]


def inner_width(outline: Outline, *, full: bool = False) -> float:
    """Points that the text of the widest box takes, within reason; with words on edges, all that there is."""
    needed = [_WIDEST if full else _NARROWEST]
    for box in outline.boxes:
        time, percent = units.time(float(box.cost.time_s)), units.percent(outline.share(box.total_s))
        needed.append(width(box.name, _NAME, bold=True) + _GAP + width(time, _NAME, bold=True))
        needed.append(width(kind(box), _SMALL) + _GAP + width(percent, _SMALL))
        needed += [width(line, _SMALL) for line in details(box)]
    return min(ceil(max(needed)) + 1.0, _WIDEST)


def kind(box: Box) -> str:
    """What an op is, and what bounds it."""
    of = box.group if box.op is None else _KINDS.get(box.cost.kind, box.cost.kind)
    return f"{of} · {box.cost.bound}"


def details(box: Box) -> list[str]:
    """FLOPs · bytes · intensity, without what is zero; then the op's note."""
    cost = box.cost
    if box.op is None:
        return box.note.split(" · ") if box.note else []
    words = [units.flops(float(cost.flops))] if cost.flops else []
    words += [units.bytes(box.bytes)] if box.bytes else []
    words += [f"{units.bytes(float(cost.comm_bytes))} sent"] if cost.comm_bytes else []
    words += [units.intensity(float(cost.intensity))] if cost.flops and box.bytes else []
    nothing = "counted where it is sent" if cost.kind == "collective" else "nothing is moved"
    return [" · ".join(words) or nothing, *([box.note] if box.note else [])]


def _held(outline: Outline, box: Box, inner: float) -> list[str]:
    """A line for each weight and cache, two where it is long."""
    found = []
    for held in box.held:
        named, shape = f"{held.role} {held.name.removesuffix('.weight')}", shape_words(outline, held.type)
        if width(f"{named}: {shape}", _SMALL) <= inner:
            found.append(f"{named}: {shape}")
        else:
            found += [*wrapped(f"{named}:", _SMALL, inner, inner), *wrapped(shape, _SMALL, inner, inner)]
    return found


def tip(outline: Outline, box: Box) -> str:
    """What a pointer over an op says below its path: its equation, and its figures with their basis."""
    cost = box.cost
    often = f" × {box.times} = {units.time(box.total_s)}" if box.times > 1 else ""
    share = f"{units.percent(outline.share(box.total_s))} of the step"
    lines = [f"{box.op.opcode}: {box.equation}"] if box.op else []
    lines.append(f"{units.time(float(cost.time_s))}{wording.within(cost.error)}{often}, {share}")
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


def tip_of(part: Part) -> str:
    """What a pointer over an op of a difference says; figures are of all its runs."""
    lines = [
        f"{part.name} ({part.opcode}) × {part.repeat}",
        f"{units.time(float(part.time_s))}, bound: {part.bound}",
    ]
    lines.append(f"{units.flops(float(part.flops))}")
    lines.append(
        f"reads {units.bytes(float(part.read_bytes))} · writes {units.bytes(float(part.write_bytes))}"
    )
    return "\n".join([*lines, f"basis: {part.basis}"])
