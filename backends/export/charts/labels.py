"""Labels beside marks, placed so that they overlap neither each other nor marks, where there is room."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import atan2, degrees, hypot, sqrt
from typing import Any, NamedTuple

from llmir.backends.export.dot.label import INK, MUTED

from .frame import said

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels
FAR = (1.0, 1.8, 2.8, 4.2, 6.0, 8.5)  # how far from a mark a label may stand, in steps of its own height
SIDES = ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1))


class Label(NamedTuple):
    """What is said of a mark, and quietly beneath that; `area` is the mark's, in points squared."""

    at: Point
    area: float
    words: str
    more: str = ""


class Labels:
    """What is drawn in some axes, so that what comes lies beside it; their scales stay as they are."""

    def __init__(self, ax: Any) -> None:
        self.ax, self.dpi = ax, ax.figure.dpi
        self.inside: Box = ax.get_window_extent().extents
        self.taken: list[Box] = []
        self.lines: list[Box] = []  # which a label crosses only where there is no other room

    def occupy(self, at: Point, area: float) -> None:
        """A mark is there."""
        x, y = self.ax.transData.transform(at)
        half = sqrt(area) / 2 * self.dpi / 72
        self.taken.append((x - half, y - half, x + half, y + half))

    def ruled(self, lines: Iterable[Any]) -> None:
        """Straight lines are there, from point to point."""
        for line in lines:
            (a, b), (c, d) = self.ax.transData.transform([line[0], line[-1]])
            count = max(2, round(hypot(c - a, d - b) / 6))
            for n in range(count + 1):
                x, y = a + (c - a) * n / count, b + (d - b) * n / count
                self.lines.append((x - 1, y - 1, x + 1, y + 1))

    def beside(self, first: Point, last: Point, words: str) -> None:
        """Words of a level line: over its right end, under it, or before its left one."""
        ways = (
            (last, (-3, 3), {"ha": "right", "va": "bottom"}),
            (last, (-3, -3), {"ha": "right", "va": "top"}),
            (first, (-6, 1), {"ha": "right", "va": "bottom"}),
            (first, (6, -3), {"ha": "left", "va": "top"}),
        )
        self._first(self._text(words, at, offset, color=MUTED, **how) for at, offset, how in ways)

    def along(self, x: float, slope: float, words: str) -> None:
        """Words over a line through the origin, on logarithmic axes."""
        (a, b), (c, d) = self.ax.transData.transform([(x, x * slope), (10 * x, 10 * x * slope)])
        turned: Any = {"rotation": degrees(atan2(d - b, c - a)), "rotation_mode": "anchor", "va": "bottom"}
        places = [x * 10 ** (0.06 + 0.25 * n) for n in range(7)]
        self._first(self._text(words, (p, p * slope), (0, 4), color=MUTED, **turned) for p in places)

    def _first(self, texts: Iterable[Any]) -> None:
        """The first that is over nothing else, else the first of all."""
        tried: list[Any] = []
        for text in texts:
            tried.append(text)
            if self._free(text.get_window_extent().extents):
                break
        else:
            tried.reverse()
        kept = tried.pop()
        self.taken.append(tuple(kept.get_window_extent().extents))
        for text in tried:
            text.remove()

    def foot(self, x: float, words: str) -> None:
        """Words at the foot of an upright line."""
        at = (x, self.ax.get_ylim()[0])
        self._first([self._text(words, at, (4, 4), color=MUTED, ha="left", va="bottom")])

    def place(self, label: Label) -> None:
        """A label where it fits, with a line to its mark if it is far; none where nothing is free."""
        text = self._text(label.words, label.at, (0, 0), color=INK, ha="left", va="top", fontweight="bold")
        more = self._text(label.more, label.at, (0, 0), color=MUTED, ha="left", va="top")
        wide = max(part.get_window_extent().width for part in (text, more)) + 2
        line = text.get_window_extent().height + 2
        high = line + (more.get_window_extent().height if label.more else 0)
        x, y = self.ax.transData.transform(label.at)
        half = sqrt(label.area) / 2 * self.dpi / 72 + 3
        for crosses, far, (right, up) in product((False, True), FAR, SIDES):
            away = half + (far - 1) * line
            left = x + (away if right > 0 else -away - wide if right < 0 else -wide / 2)
            top = y + (high / 2 if not up else away + high if up > 0 else -away)
            box = (left, top - high, left + wide, top)
            if self._free(box) and (crosses or not _meets(box, self.lines)):
                self.taken.append(box)
                self._move(text, label.at, left - x, top - y)
                self._move(more, label.at, left - x, top - line - y)
                if far > 1:
                    self._join(label.at, (left + wide if right < 0 else left, top - high / 2))
                return
        text.remove()
        more.remove()

    def _text(self, words: str, at: Point, offset: Point, **how: Any) -> Any:
        return said(self.ax, at, words, offset, **how)

    def _move(self, text: Any, at: Point, x: float, y: float) -> None:
        text.set_position((x * 72 / self.dpi, y * 72 / self.dpi))

    def _join(self, at: Point, to: Point) -> None:
        """A thin line from a mark to its label."""
        end = self.ax.transData.inverted().transform(to)
        thin = {"color": MUTED, "linewidth": 0.6, "zorder": 2, "scalex": False, "scaley": False}
        self.ax.plot(*zip(at, end, strict=True), **thin)

    def _free(self, box: Box) -> bool:
        left, bottom, right, top = box
        a, b, c, d = self.inside
        if left < a + 2 or right > c - 2 or bottom < b + 2 or top > d - 2:
            return False
        return not _meets(box, self.taken)


def _meets(box: Box, others: Iterable[Box]) -> bool:
    left, bottom, right, top = box
    return any(left < r and q < right and bottom < t and s < top for q, s, r, t in others)
