"""Tiles in frames, placed here: Graphviz's engine `nop2` only draws. Points, y upwards; the top is y = 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from llmir.base.dataclass import dataclass

from .label import Paint, label, quoted, table

Point = tuple[float, float]
_ROUND = 5.0  # the radius of a wire's corners


@dataclass(frozen=True, eq=False)
class Tile:
    """A box of a size: rows of cells, its colours, and what a pointer over it says."""

    id: str
    rows: tuple[str, ...]
    wide: float
    high: float
    paint: Paint
    tip: str = ""

    @property
    def content(self) -> str:
        """Its rows as a label."""
        return label(table(self.rows)) if self.rows else ""


@dataclass(frozen=True, eq=False)
class Frame:
    """A cluster: a head above what is in it, `inset` points wider on each side than what flows in it."""

    id: str
    style: Mapping[str, str]
    inset: float
    items: tuple[Tile | Frame, ...]
    head: Tile | None = None
    tip: str = ""

    @property
    def tiles(self) -> Iterator[Tile]:
        """All tiles in it but heads, downwards."""
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
        """The x of its middle."""
        return (self.left + self.right) / 2


@dataclass(eq=False)
class Canvas:
    """A `graphviz.Digraph` in the making, and where its tiles are."""

    graph: Any
    spots: dict[str, Area] = field(default_factory=dict)

    def tile(self, tile: Tile, middle: float, top: float, into: Any = None) -> Area:
        """Draw a tile, its upper edge at `top`."""
        at = Area(middle - tile.wide / 2, top, middle + tile.wide / 2, top - tile.high)
        self.spots[tile.id] = at
        (self.graph if into is None else into).node(
            tile.id,
            tile.content,
            pos=f"{at.middle:.1f},{(at.top + at.bottom) / 2:.1f}",
            width=f"{tile.wide / 72:.4f}",
            height=f"{tile.high / 72:.4f}",
            color=tile.paint.line,
            fillcolor=tile.paint.fill,
            style=tile.paint.style,
            tooltip=_said(tile.tip),
        )
        return at

    def frame(self, into: Any, at: Area, style: Mapping[str, str], tip: str = "") -> None:
        """Say that `into`, a subgraph, is a frame there."""
        bb = f"{at.left:.1f},{at.bottom:.1f},{at.right:.1f},{at.top:.1f}"
        into.attr(bb=bb, label="", tooltip=_said(tip), **style)

    def wire(self, tail: str, head: str, corners: Sequence[Point], tip: str = "", **style: str) -> None:
        """Draw an edge along corners; its arrow is at the last."""
        bare = style.get("arrowhead") == "none"
        self.graph.edge(tail, head, pos=spline(corners, bare=bare), tooltip=_said(tip), **style)

    def words(self, id: str, content: str, wide: float, high: float, middle: float, top: float) -> None:
        """Text alone."""
        self.tile(Tile(id, (content,), wide, high, _BARE), middle, top)


def _said(tip: str) -> str:
    """A tooltip: always text, never markup; a blank one hides that of the frame around."""
    import graphviz

    text: str = graphviz.nohtml(quoted(tip) or " ")
    return text


_BARE = Paint("transparent", "transparent", "", "filled")


def stack(
    canvas: Canvas, frame: Frame, middle: float, half: tuple[float, float], top: float, gap: float
) -> Area:
    """Draw a frame and all in it, downwards; `half` is how far content reaches to either side."""
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
    """Graphviz's `pos` of an edge along straight pieces, its corners round, with an arrowhead `tip` long."""
    *_, (x0, y0), (x1, y1) = corners
    stop = (x1, y1) if bare else _toward((x1, y1), (x0, y0), tip)
    path = [*corners[:-1], stop]
    points = [path[0]]
    for i, (a, b) in enumerate(pairwise(path)):
        last = i == len(path) - 2
        near = a if not i else _toward(a, b, _ROUND)
        far = b if last else _toward(b, a, _ROUND)
        if i:
            points += [a, a, near]  # the corner: from the end of the piece before, bent towards it
        points += [_between(near, far, 1 / 3), _between(near, far, 2 / 3), far]
    end = "" if bare else f"e,{x1:.1f},{y1:.1f} "
    return end + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _toward(a: Point, b: Point, by: float) -> Point:
    """A point so far from `a` on the way to `b`, or half the way if that is short."""
    long = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1e-9)
    return _between(a, b, min(by / long, 0.5))


def _between(a: Point, b: Point, part: float) -> Point:
    return a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])
