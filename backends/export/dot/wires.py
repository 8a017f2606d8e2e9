"""Wires drawn: their lanes, their marks, and the words on them."""

from __future__ import annotations

from collections.abc import Sequence

from .canvas import Canvas, Frame
from .label import MUTED, PAINT, fit, font, left, width
from .lanes import Lanes, Wire

_WORDS = 8.0


def lanes_of(frame: Frame, wires: Sequence[Wire]) -> Lanes:
    """The lanes of a frame's tiles, in the order in which they are placed."""
    return Lanes.of([tile.id for tile in frame.tiles], wires)


def draw_wires(canvas: Canvas, lanes: Lanes, wires: Sequence[Wire], edges: tuple[float, float]) -> None:
    """Draw all wires of a column whose left and right side are `edges`."""
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
        cell = left(font(words, _WORDS, MUTED), f'WIDTH="{wide:.0f}" HEIGHT="11"')
        canvas.words(f"{wire.tail}_{side}_{number}", cell, wide, 11, middle, top)
