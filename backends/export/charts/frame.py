"""What all plots share: axes, heads, units, and marks that differ in grey as in colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from llmir.backends.cost.op_time import Model
from llmir.backends.cost.registry import whose
from llmir.backends.export import wording
from llmir.backends.export.dot.label import INK, MUTED, PAINT
from llmir.backends.step import precision
from llmir.base.errors import InputError
from llmir.ir.core.program import Program

from .plot import check
from .validation import COLOURS

WIDTH, HEIGHT = 8.6, 5.2  # inches: 860 pixels at 100 an inch
FAINT, HATCH, LIMIT, CHOSEN = "#E5E5E5", "////", "#B42318", "#12713F"
TEXT, SMALL, TINY = 9, 8, 6.5  # points; `TINY` is of letters in marks
LETTERS = {bound: bound[0].upper() for bound in ("memory", "compute", "network", "overhead", "bubble")}
WIDE = 104  # small characters of a line as wide as the axes of a page
ACROSS = 6.8  # inches of those


class Mark(NamedTuple):
    """How a line is told from others, in grey too."""

    color: str
    marker: str
    linestyle: Any


_DASHES: Sequence[Any] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKS = tuple(map(Mark, COLOURS, "osD^vPX", _DASHES))


def axes(name: str, ax: Any, height: float = HEIGHT) -> Any:
    """The axes to draw in: those given, or new ones of a page that pyplot shows."""
    if ready(name, ax) is not None:
        return ax
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(WIDTH, height), layout="constrained")
    padded(figure)
    return ax


def ready(name: str, ax: Any) -> Any:
    """The axes that are given, if any; InputError for what is none, and without matplotlib."""
    check(name)
    from matplotlib.axes import Axes

    if ax is None or isinstance(ax, Axes):
        return ax
    raise InputError(f"{name}: ax is a {type(ax).__name__}; it takes Axes of matplotlib, or None")


def padded(figure: Any) -> None:
    """A margin around what constrained layout places."""
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)


def head(ax: Any, title: str, *lines: str) -> None:
    """A title and what stands below it, a few lines in small letters."""
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
    """How many small characters stand side by side, as wide as the axes."""
    inches: float = ax.get_window_extent().width / ax.figure.dpi
    return max(30, round(WIDE * inches / ACROSS))


def settle(ax: Any) -> None:
    """Lay the figure out, so that axes are where they will be."""
    figure = getattr(ax.figure, "figure", ax.figure)  # the whole one of a part
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    else:
        figure.draw_without_rendering()


def wrap(text: str, most: int) -> list[str]:
    """Lines of so many characters, none of which ends between a number and its unit."""
    held = re.sub(r"(?<=[\d±]) (?=[\w%])", "\xa0", text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(held, most)]


def _lines(text: str, most: int) -> list[str]:
    """Lines of so many characters, cut between parts where that can be."""
    found: list[str] = []
    for part in text.split(" · "):
        longer = f"{found[-1]} · {part}" if found else part
        if found and len(longer) <= most:
            found[-1] = longer
        else:
            found += wrap(part, most)
    return found


def plain(ax: Any, *, grid: str = "both") -> None:
    """A quiet frame: no lines above and to the right, a faint grid behind what is drawn."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(visible=True, axis=grid, which="major", color=FAINT, linewidth=0.7)
    ax.tick_params(labelsize=SMALL, color=FAINT)


def notes(ax: Any, handles: Sequence[Any] = (), *lines: str, down: float = 34) -> None:
    """A legend below the axes, and a few lines of what else is to be said."""
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


FINE = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)  # of an axis of less than ten times


def unit(axis: Any, symbol: str = "") -> None:
    """SI prefixes on an axis, before a unit; a short logarithmic one has marks between its powers of ten."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        marked: Sequence[float] = (1.0, 2.0, 5.0) if high < 500 * low else (1.0,)
        axis.set_major_locator(LogLocator(subs=FINE if high < 10 * low else marked))
    axis.set_major_formatter(EngFormatter(unit=symbol))
    axis.set_minor_locator(NullLocator())


def counts(axis: Any, values: Iterable[float]) -> None:
    """Marks of a logarithmic axis at some counts, as many as have room."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    ticks = sorted({float(value) for value in values})
    ticks = ticks[:: -(-len(ticks) // 14)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def swatch(label: str, bound: str) -> Any:
    """A legend's patch for what a bound colours, with its letter in the words."""
    from matplotlib.patches import Patch

    paint = PAINT[bound]
    return Patch(facecolor=paint.fill, edgecolor=paint.line, linewidth=1.2, label=label)


def line(label: str, **style: Any) -> Any:
    """A legend's line or mark."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def said(ax: Any, at: tuple[float, float], words: str, offset: tuple[float, float], **how: Any) -> Any:
    """Words beside a point, with a white edge, so that lines behind them do not strike them through."""
    from matplotlib.patheffects import withStroke

    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "zorder": 5, **how}
    style["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
    return ax.annotate(words, at, offset, textcoords="offset points", **style)


def hatched(ax: Any, first: float, last: float, *, axis: str = "x") -> Any:
    """A region that is ruled out."""
    span = ax.axvspan if axis == "x" else ax.axhspan
    return span(first, last, facecolor="none", edgecolor="#C4C9D1", hatch=HATCH, linewidth=0, zorder=0)


def setting(program: Program, model: Model, error: object = None) -> str:
    """The split, the types, and by whose kernels times are: `tp 2 · bf16 · calibrated, vllm kernels ± 9%`."""
    off = wording.within(error) if isinstance(error, float) else ""
    of = f"{whose(model)}{off}" if model.name != "ideal" else "ideal roofline, a lower bound"
    return " · ".join([*program.parallelism.words(), *precision.words(program), of])
