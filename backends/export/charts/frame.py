"""The parts that all charts share: axes, titles, units, marks that can be distinguished in gray, and
positions of labels.

Every chart uses `axes`, `head`, `notes` and `unit`. `Labels` places labels next to marks without overlaps, if
there is space. matplotlib is an extra; `check` reports its absence.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import product
from math import atan2, degrees, hypot, sqrt
from typing import Any, NamedTuple

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.cost.registry import model_source
from llmir.backends.export import wording
from llmir.backends.export.dot.labels import INK, MUTED, PAINT
from llmir.backends.step import facts
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

# Axes, titles, units and marks

# Colors of Okabe and Ito, which color-blind readers can distinguish (jfly.uni-koeln.de/color).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}


def check(what: str) -> None:
    """Raise InputError if matplotlib is missing; `what` is the name of the feature that needs it."""
    if find_spec("matplotlib") is None:
        raise InputError(f"{what} needs matplotlib: pip install 'llmir[plot]'")


WIDTH, HEIGHT = 8.6, 5.2  # inches, for 860 pixels at 100 pixels per inch
FAINT, HATCH, LIMIT, CHOSEN = "#E5E5E5", "////", "#B42318", "#12713F"
TEXT, SMALL, TINY = 9, 8, 6.5  # font sizes in points; `TINY` is for letters inside marks
LETTERS = {bound: bound[0].upper() for bound in ("memory", "compute", "network", "overhead", "bubble")}
WIDE = 104  # number of small characters that fit in the width of the axes of a page
ACROSS = 6.8  # width of the axes in inches


class LineStyle(NamedTuple):
    """The style of a line, distinguishable in gray too."""

    color: str
    marker: str
    linestyle: Any


_DASHES: Sequence[Any] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKS = tuple(map(LineStyle, COLOURS, "osD^vPX", _DASHES))


def axes(name: str, ax: Any, height: float = HEIGHT) -> Any:
    """The axes to draw in: those given, or new ones of a page that pyplot shows."""
    if ready(name, ax) is not None:
        return ax
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")
    pad(figure)
    return ax


def ready(name: str, ax: Any) -> Any:
    """Check that the axes, if any are given, are valid, and that matplotlib is installed."""
    check(name)
    from matplotlib.axes import Axes

    if ax is None or isinstance(ax, Axes):
        return ax
    raise InputError(f"{name}: ax is a {type(ax).__name__}; expected Axes of matplotlib, or None")


def pad(figure: Any) -> None:
    """A margin around the elements of constrained layout."""
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)


def head(ax: Any, title: str, *lines: str) -> None:
    """A title with a few small lines below it."""
    wide = _wide(ax)
    small = [part for line in lines if line for part in _lines(wording.plain(line), wide)]
    large = wrap(wording.plain(title), round(0.62 * wide))
    ax.set_title(
        "\n".join(large), loc="left", fontsize=11, fontweight="bold", color=INK, pad=7 + 12.5 * len(small)
    )
    ax.annotate(
        "\n".join(small),
        (0, 1),
        (0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL,
        color=MUTED,
        va="bottom",
        linespacing=1.25,
        annotation_clip=False,
    )


def _wide(ax: Any) -> int:
    """The number of small characters across the axes."""
    inches: float = ax.get_window_extent().width / ax.figure.dpi
    return max(30, round(WIDE * inches / ACROSS))


def lay_out(ax: Any) -> None:
    """Lay out the figure, so that the positions of axes do not change later."""
    figure = getattr(ax.figure, "figure", ax.figure)  # the whole figure, if this is a part of one
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    else:
        figure.draw_without_rendering()


def wrap(text: str, most: int) -> list[str]:
    """Wrap text into lines of at most `most` characters, without a break between a number and its unit."""
    held = re.sub(r"(?<=[\d±]) (?=[\w%])", "\xa0", text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(held, most)]


def _lines(text: str, most: int) -> list[str]:
    """Wrap text into lines of at most `most` characters, with breaks between parts if possible."""
    found: list[str] = []
    for part in text.split(" · "):
        longer = f"{found[-1]} · {part}" if found else part
        if found and len(longer) <= most:
            found[-1] = longer
        else:
            found += wrap(part, most)
    return found


def plain(ax: Any, *, grid: str = "both") -> None:
    """Set a simple frame: no lines at the top and right, and a faint grid in the background."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(visible=True, axis=grid, which="major", color=FAINT, linewidth=0.7)
    ax.tick_params(labelsize=SMALL, color=FAINT)


def notes(ax: Any, handles: Sequence[Any] = (), *lines: str, down: float = 34) -> None:
    """A legend below the axes, and a few lines of notes."""
    from matplotlib.transforms import ScaledTranslation

    wide = _wide(ax)
    said = "\n".join(part for line in lines if line for part in wrap(line, wide))
    if not handles and not said:
        return
    entry = max((7 + len(handle.get_label()) for handle in handles), default=1)
    below = ax.transAxes + ScaledTranslation(0, -down / 72, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=list(handles),
        title=said or None,
        title_fontsize=SMALL,
        fontsize=SMALL,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        ncols=max(1, min(len(handles), wide // entry)),
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=2.6,
        alignment="left",
        columnspacing=1.6,
    )


FINE = (
    1.0,
    1.2,
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    6.0,
    7.0,
    8.0,
    9.0,
)  # marks of an axis that spans less than a factor of ten


def unit(axis: Any, symbol: str = "") -> None:
    """Use SI prefixes for the numbers on an axis; a short logarithmic axis also has marks between its powers
    of ten.
    """
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        marked: Sequence[float] = (1.0, 2.0, 5.0) if high < 500 * low else (1.0,)
        axis.set_major_locator(LogLocator(subs=FINE if high < 10 * low else marked))
    axis.set_major_formatter(EngFormatter(unit=symbol))
    axis.set_minor_locator(NullLocator())


def counts(axis: Any, values: Iterable[float]) -> None:
    """Set the ticks of a logarithmic axis at some of the counts, as many as fit."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    ticks = sorted({float(value) for value in values})
    ticks = ticks[:: -(-len(ticks) // 14)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def swatch(label: str, bound: str) -> Any:
    """A legend patch in the color of a bound, with its letter in the label."""
    from matplotlib.patches import Patch

    paint = PAINT[bound]
    return Patch(facecolor=paint.fill, edgecolor=paint.line, linewidth=1.2, label=label)


def line(label: str, **style: Any) -> Any:
    """A line or mark for the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def annotate(ax: Any, at: tuple[float, float], words: str, offset: tuple[float, float], **how: Any) -> Any:
    """Draw a label next to a point, with a white outline so that it is legible over lines."""
    from matplotlib.patheffects import withStroke

    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "zorder": 5, **how}
    style["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
    return ax.annotate(words, at, offset, textcoords="offset points", **style)


def hatch_region(ax: Any, first: float, last: float, *, axis: str = "x") -> Any:
    """A shaded region that is excluded."""
    span = ax.axvspan if axis == "x" else ax.axhspan
    return span(first, last, facecolor="none", edgecolor="#C4C9D1", hatch=HATCH, linewidth=0, zorder=0)


def setting(program: Program, model: DeviceCostModel, error: object = None) -> str:
    """The split, the dtypes and the source of the kernels: `tp 2 · bf16 · calibrated, vllm kernels ± 9%`."""
    off = wording.error_band(error) if isinstance(error, float) else ""
    of = f"{model_source(model)}{off}" if model.name != "ideal" else "ideal roofline, a lower bound"
    return " · ".join([*program.parallelism.words(), *facts.precision_text(program), of])


# Placed labels

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # a box in pixels: left, bottom, right, top
FAR = (1.0, 1.8, 2.8, 4.2, 6.0, 8.5)  # distances of a label from its mark, in multiples of the label's height
SIDES = ((1, 0), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1))


class Label(NamedTuple):
    """The label of a mark with a smaller second line; `area` is the area of the mark in square points."""

    at: Point
    area: float
    words: str
    more: str = ""


class Labels:
    """The areas of some axes that are occupied, so that new labels avoid them; the scales must not change
    afterwards.
    """

    def __init__(self, ax: Any) -> None:
        self.ax, self.dpi = ax, ax.figure.dpi
        self.inside: Box = ax.get_window_extent().extents
        self.taken: list[Box] = []
        self.lines: list[Box] = []  # labels cross these lines only if there is no other position

    def occupy(self, at: Point, area: float) -> None:
        """Mark the area of a mark as occupied."""
        x, y = self.ax.transData.transform(at)
        half = sqrt(area) / 2 * self.dpi / 72
        self.taken.append((x - half, y - half, x + half, y + half))

    def ruled(self, lines: Iterable[Any]) -> None:
        """Mark straight lines from point to point as occupied."""
        for line in lines:
            (a, b), (c, d) = self.ax.transData.transform([line[0], line[-1]])
            count = max(2, round(hypot(c - a, d - b) / 6))
            for n in range(count + 1):
                x, y = a + (c - a) * n / count, b + (d - b) * n / count
                self.lines.append((x - 1, y - 1, x + 1, y + 1))

    def beside(self, first: Point, last: Point, words: str) -> None:
        """The label of a horizontal line: over its right end, under its right end, or before its left end."""
        ways = (
            (last, (-3, 3), {"ha": "right", "va": "bottom"}),
            (last, (-3, -3), {"ha": "right", "va": "top"}),
            (first, (-6, 1), {"ha": "right", "va": "bottom"}),
            (first, (6, -3), {"ha": "left", "va": "top"}),
        )
        self._first(self._text(words, at, offset, color=MUTED, **how) for at, offset, how in ways)

    def along(self, x: float, slope: float, words: str) -> None:
        """The label of a line through the origin, on logarithmic axes."""
        (a, b), (c, d) = self.ax.transData.transform([(x, x * slope), (10 * x, 10 * x * slope)])
        turned: Any = {"rotation": degrees(atan2(d - b, c - a)), "rotation_mode": "anchor", "va": "bottom"}
        places = [x * 10 ** (0.06 + 0.25 * n) for n in range(7)]
        self._first(self._text(words, (p, p * slope), (0, 4), color=MUTED, **turned) for p in places)

    def _first(self, texts: Iterable[Any]) -> None:
        """The first position without an overlap; if all positions overlap, the first one."""
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
        """Text at the foot of a vertical line."""
        at = (x, self.ax.get_ylim()[0])
        self._first([self._text(words, at, (4, 4), color=MUTED, ha="left", va="bottom")])

    def place(self, label: Label) -> None:
        """Draw a label at a free position, with a line to its mark if it is far away; draw nothing if no
        position is free.
        """
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
        return annotate(self.ax, at, words, offset, **how)

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
