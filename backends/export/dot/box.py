"""The box of one op at level `layer`, and the pill of a value that enters a layer."""

from __future__ import annotations

from math import ceil
from typing import Any

from llmir.backends.export import units

from .label import INK, MUTED, PAINT, PLAIN, Paint, bar, fit, font, label, left, right, table, width
from .outline import Inlet, Outline
from .sections import Box

_KINDS = {"gemm": "GEMM", "moe": "MoE"}
_NAME, _SMALL, _DETAIL = 12, 9, "#334155"
_GAP, _NARROWEST, _WIDEST = 14.0, 200.0, 300.0
_LEFT, _RIGHT = 14, 18


def draw_box(cluster: Any, outline: Outline, box: Box, inner: float) -> None:
    """A node named `box.id`, its text `inner` points wide, with ports `in` and `out` at its right edge."""
    paint, name, time, percent = _words(outline, box, inner)
    second = max(width(time, _NAME, bold=True), width(percent, _SMALL))
    wide = f'COLSPAN="2" WIDTH="{inner:.0f}"'
    share = box.total_s / (outline.longest_s or 1)
    rows = [
        left(font(name, _NAME, INK, bold=True), f'WIDTH="{inner - second:.0f}" HEIGHT="20"')
        + right(font(time, _NAME, paint.ink, bold=True), f'WIDTH="{second:.0f}"'),
        left(font(_kind(box), _SMALL, MUTED)) + right(font(percent, _SMALL, MUTED)),
        f'<TD {wide} HEIGHT="13">{bar(share, inner, paint.line)}</TD>',
        *(left(font(line, _SMALL, _DETAIL), wide) for line in _details(box)),
    ]
    # Residuals come in at the right of the first row and leave at the right of the last.
    ports = {0: 'PORT="in"', len(rows) - 1: 'PORT="out"'}
    inset = f'<TD WIDTH="{_LEFT}"></TD>'
    lines = [f'{inset}{row}<TD WIDTH="{_RIGHT}" {ports.get(i, "")}></TD>' for i, row in enumerate(rows)]
    body = table(['<TD HEIGHT="3"></TD>', *lines, '<TD HEIGHT="6"></TD>'])
    cluster.node(box.id, label(body), color=paint.line, fillcolor=paint.fill, style=paint.style)


def draw_inlet(cluster: Any, outline: Outline, inlet: Inlet) -> None:
    """A node named `inlet.id` that says the name and shape of a value."""
    at, mesh = outline.report.at, outline.report.program.mesh
    shape = " × ".join(str(round(float(at(n)))) for n in inlet.type.local(mesh).shape)
    words = fit(f"{inlet.name}  {shape}", 10, _WIDEST)
    inset = '<TD WIDTH="12"></TD>'
    cell = left(font(words, 10), f'WIDTH="{width(words, 10):.0f}" HEIGHT="24"')
    last = '<TD WIDTH="6" PORT="out"></TD>'
    cluster.node(inlet.id, label(table([inset + cell + last])), color=PLAIN.line, fillcolor=PLAIN.fill)


def inner_width(outline: Outline) -> float:
    """Points that the text of the widest box takes, within reason."""
    needed = [_NARROWEST]
    for box in outline.boxes:
        _, _, time, percent = _words(outline, box, _WIDEST)
        needed.append(width(box.name, _NAME, bold=True) + _GAP + width(time, _NAME, bold=True))
        needed.append(width(_kind(box), _SMALL) + _GAP + width(percent, _SMALL))
        needed += [width(line, _SMALL) for line in _details(box)]
    return min(ceil(max(needed)) + 1.0, _WIDEST)


def _words(outline: Outline, box: Box, inner: float) -> tuple[Paint, str, str, str]:
    """Colours, name, time and share; the name cut to what the time leaves of `inner`."""
    time = units.time(float(box.cost.time_s))
    name = fit(box.name, _NAME, inner - _GAP - width(time, _NAME, bold=True), bold=True)
    return PAINT[str(box.cost.bound)], name, time, units.percent(outline.share(box.total_s))


def _kind(box: Box) -> str:
    if box.op is None:
        return f"{box.group} · {box.cost.bound}"
    return f"{_KINDS.get(box.cost.kind, box.cost.kind)} · {box.cost.bound}"


def _details(box: Box) -> list[str]:
    """FLOPs · bytes · intensity, without what is zero; then the op's note."""
    cost = box.cost
    if box.op is None:
        return box.note.split(" · ") if box.note else []
    words = [units.flops(float(cost.flops))] if cost.flops else []
    words += [units.bytes(box.bytes)] if box.bytes else []
    words += [f"{units.bytes(float(cost.comm_bytes))} sent"] if cost.comm_bytes else []
    words += [units.intensity(float(cost.intensity))] if cost.flops and box.bytes else []
    return [" · ".join(words) or "nothing is moved", *([box.note] if box.note else [])]
