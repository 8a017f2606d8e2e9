"""Charts of a validation: predicted against measured times, the error by time, and single rows."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.export.files import write
from llmir.base.dataclass import dataclass
from llmir.base.errors import OutputError
from llmir.base.names import plain

from .frame import COLOURS
from .frame import check as check_matplotlib

Array = np.ndarray[Any, np.dtype[Any]]

OTHERS = "#999999"
MOST = 400  # largest number of rows that are drawn individually
LEGEND: dict[str, Any] = {"fontsize": 8, "framealpha": 0.85, "edgecolor": "none"}


@dataclass(frozen=True, eq=False)
class ValidationTimes:
    """Measured and predicted seconds of rows; each row has a number and belongs to a series."""

    series: Sequence[str]
    rows: Sequence[int]
    measured: Array
    predicted: Array

    @property
    def error(self) -> Array:
        """In percent."""
        return np.asarray(100 * (self.predicted / self.measured - 1))


def check(folder: str | os.PathLike[str]) -> Path:
    """Create the folder if it does not exist; InputError without matplotlib, OutputError if the folder cannot
    be written.
    """
    check_matplotlib("--plot")
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{plain(str(folder))}: the folder cannot be created ({error.strerror or error})"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"{plain(str(folder))}: no permission to write")
    return path


def draw(
    folder: Path, name: str, title: str, times: ValidationTimes, *, each: bool = False
) -> Iterator[Path]:
    """Draw PNG files of some rows, with a common prefix of the file names; with `each`, also a chart of
    single rows. Yields the paths.
    """
    from matplotlib.figure import Figure

    plots = {"scatter": _scatter, "error": _by_size} | ({"requests": _one_by_one} if each else {})
    for sort, plot in plots.items():
        figure = Figure(figsize=(7, 5.5), layout="constrained")
        axes = figure.subplots()
        axes.set_title(f"{plain(title)}, {len(times.rows):,} rows", fontsize=11)
        axes.grid(visible=True, which="major", color="#E5E5E5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        plot(axes, times)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=140)
        path = folder / f"{name}-{sort}.png"
        write(path, picture.getvalue())
        yield path


def _seconds(axis: Any, times: Array) -> None:
    """A logarithmic axis of times with units; a short axis has marks between its powers of ten."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    short = np.max(times) < 200 * np.min(times)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_major_formatter(EngFormatter(unit="s"))
    axis.set_minor_formatter(NullFormatter())


def _points(axes: Any, times: ValidationTimes, y: Array) -> None:
    """Draw `y` over the measured times; series for which there is no color left are combined as `others`."""
    largest = [name for name, _ in Counter(times.series).most_common(len(COLOURS))]
    shown = np.array([name if name in largest else "others" for name in times.series], dtype=object)
    colours = dict(zip(largest, COLOURS, strict=False))
    size = 14 if len(times.rows) < 500 else 5
    for name in (*largest, "others"):
        at = shown == name
        if at.any():
            style = {"color": colours.get(name, OTHERS), "zorder": 2 if name in colours else 1}
            label = f"{name} ({at.sum():,})"
            axes.scatter(times.measured[at], y[at], s=size, alpha=0.55, linewidths=0, label=label, **style)


def _scatter(axes: Any, times: ValidationTimes) -> None:
    """Predicted over measured times on logarithmic axes, with the diagonal and lines at a factor of two."""
    _points(axes, times, times.predicted)
    ends = np.array([times.measured.min(), times.measured.max()])
    axes.plot(ends, ends, color="#444444", linewidth=1)
    for factor in (0.5, 2):
        axes.plot(ends, ends * factor, color="#AAAAAA", linewidth=0.8, linestyle="--")
    axes.annotate("×2", (ends[0], ends[0] * 2), fontsize=8, color="#777777", va="bottom")
    axes.set(xscale="log", yscale="log", xlabel="measured", ylabel="predicted")
    _seconds(axes.xaxis, times.measured)
    _seconds(axes.yaxis, times.predicted)
    axes.legend(markerscale=1.5, **LEGEND)


def _by_size(axes: Any, times: ValidationTimes) -> None:
    """The error over the measured time, with the median of each half decade."""
    error = times.error
    _points(axes, times, error)
    bins = np.floor(2 * np.log10(times.measured))
    middles = [(10 ** ((b + 0.5) / 2), np.median(error[bins == b])) for b in np.unique(bins)]
    line = {"color": "#222222", "linewidth": 1.4, "marker": "o", "markersize": 3}
    axes.plot(*zip(*middles, strict=True), label="median", **line)
    axes.axhline(0, color="#444444", linewidth=1)
    axes.set(xscale="log", xlabel="measured", ylabel="error, %")
    axes.set_ylim(max(-105, error.min() - 5), min(205, error.max() + 5))
    _seconds(axes.xaxis, times.measured)
    axes.legend(markerscale=1.5, **LEGEND)


def _one_by_one(axes: Any, times: ValidationTimes) -> None:
    """Measured and predicted time of each row in order."""
    at, measured, predicted = times.rows[:MOST], times.measured[:MOST], times.predicted[:MOST]
    axes.vlines(at, predicted, measured, color="#CCCCCC", linewidth=0.8)
    axes.scatter(at, measured, s=14, color=COLOURS[1], label="measured")
    axes.scatter(at, predicted, s=14, color=COLOURS[0], label="predicted")
    more = f", the first {MOST} of {len(times.rows):,}" if len(times.rows) > MOST else ""
    axes.set(xlabel=f"request{more}", ylabel="time", yscale="log")
    _seconds(axes.yaxis, np.concatenate([measured, predicted]))
    axes.legend(**LEGEND)
