"""Places on a grid, one section of an outline a row, and the ways between them. Points, y upwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from llmir.dataclass import dataclass

from .outline import Link, Outline
from .sections import Section

HIGH, GAP, LANE, GUTTER = 30.0, 14.0, 5.0, 18.0

Point = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Row:
    """A section's row: the upper edge of its boxes, the middle of each node, the lane of each arc below."""

    section: Section
    top: float
    middles: dict[str, float]
    lanes: dict[Link, int]

    @property
    def bottom(self) -> float:
        """The lower edge of its boxes."""
        return self.top - HIGH

    @property
    def gutter(self) -> float:
        """Where lines to the next row run, below all arcs."""
        return self.bottom - LANE * (2 + max(self.lanes.values(), default=-1)) - GUTTER / 3


def rows(outline: Outline, left: float, top: float, title: float, wide: float) -> list[Row]:
    """The rows from `top` down: a title `title` wide, then boxes `wide`. Inlets leave from the title."""
    found: list[Row] = []
    for section in outline.sections:
        middles = {i.id: left + title - 2 * GAP for i in outline.inlets if i.section == section.id}
        middles |= {b.id: left + title + wide / 2 + n * (wide + GAP) for n, b in enumerate(section.boxes)}
        row = Row(section, top, middles, {})
        found.append(row)
    home = {name: row for row in found for name in row.middles}
    for link in outline.links:
        row = home[link.tail]
        if row is home[link.head] and _column(row, link.head) - _column(row, link.tail) > 1:
            row.lanes[link] = _free_lane(row, link)
    placed: list[Row] = []
    for row in found:
        placed.append(Row(row.section, top, row.middles, row.lanes))
        top = placed[-1].gutter - GUTTER * 2 / 3
    return placed


def _column(row: Row, name: str) -> int:
    """Its column; inlets are all in column −1."""
    ids = [b.id for b in row.section.boxes]
    return ids.index(name) if name in ids else -1


def _free_lane(row: Row, link: Link) -> int:
    """The highest lane in which an arc crosses no earlier one."""
    first, last = row.middles[link.tail], row.middles[link.head]
    taken = {
        lane
        for other, lane in row.lanes.items()
        if first <= row.middles[other.head] and row.middles[other.tail] <= last
    }
    return next(i for i in range(len(taken) + 1) if i not in taken)


def ways(outline: Outline, places: list[Row], edge: float, wide: float) -> Iterator[tuple[Link, list[Point]]]:
    """The corners of each link's way; between rows that are not neighbours it goes along x = `edge`."""
    number = {name: i for i, row in enumerate(places) for name in row.middles}
    inlets = {i.id for i in outline.inlets}
    for link in outline.links:
        first, last = number[link.tail], number[link.head]
        row, below = places[first], places[last]
        x, end = row.middles[link.tail], below.middles[link.head]
        if first == last and link in row.lanes:
            depth = row.bottom - LANE * (1 + row.lanes[link])
            out, into = x if link.tail in inlets else x + wide / 6, end - wide / 6
            start = row.bottom
            yield link, [(out, start), (out, depth), (into, depth), (into, start)]
        elif first == last:
            level = row.top - HIGH / 2
            near = x + (GAP if link.tail in inlets else wide / 2)
            yield link, [(near, level), (end - wide / 2, level)]
        else:
            back = [] if last == first + 1 else [(edge, row.gutter), (edge, places[last - 1].gutter)]
            over = places[last - 1].gutter
            yield link, [(x, row.bottom), (x, row.gutter), *back, (end, over), (end, below.top)]


def spline(corners: list[Point], tip: float = 5.0) -> str:
    """Graphviz's `pos` of an edge along straight pieces, with an arrowhead `tip` long."""
    *_, (x0, y0), (x1, y1) = corners
    length = max(abs(x1 - x0), abs(y1 - y0), 1e-9)
    stop = (x1 - tip * (x1 - x0) / length, y1 - tip * (y1 - y0) / length)
    path = [*corners[:-1], stop]
    points = [path[0]]
    for (ax, ay), (bx, by) in pairwise(path):
        points += [
            (ax + (bx - ax) / 3, ay + (by - ay) / 3),
            (bx - (bx - ax) / 3, by - (by - ay) / 3),
            (bx, by),
        ]
    return f"e,{x1:.1f},{y1:.1f} " + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
