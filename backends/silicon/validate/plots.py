"""Pictures of a validation: predicted against measured, error by size, and requests one by one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from llmir.errors import InputError, OutputError
from llmir.names import plain

from .judged import Judged, Validation

# Okabe and Ito's colours, which colour-blind readers can tell apart (jfly.uni-koeln.de/color).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
OTHERS = "#999999"
_REQUESTS = 400  # points a line of requests can show
_UNITS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def check(folder: str | os.PathLike[str]) -> Path:
    """The folder, made if need be; InputError without matplotlib, OutputError if it cannot be written."""
    if find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'llmir[plot]'")
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{plain(str(folder))}: cannot be made ({error.strerror or error})") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"{plain(str(folder))}: no permission to write")
    return path


def draw(found: Validation, folder: str | os.PathLike[str]) -> list[Path]:
    """A picture of each sort for each kind of rows and metric, as PNG; the files written."""
    path = check(folder)
    written = []
    kinds: dict[tuple[str, str], list[Judged]] = {}
    for row in found.measured:
        kinds.setdefault((row.kind, row.metric), []).append(row)
    for (kind, metric), rows in kinds.items():
        plots = {"scatter": _scatter, "error": _by_size} | ({"requests": _requests} if kind == "chat" else {})
        for name, plot in plots.items():
            stem = re.sub(r"[^\w.-]+", "-", f"{kind}-{metric}-{name}")
            written.append(_figure(path / f"{stem}.png", plot, rows, f"{kind}, {metric}: {found.cost_model}"))
    return written


def _figure(path: Path, plot: Callable[..., None], rows: Sequence[Judged], title: str) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5.5), layout="constrained")
    axes.set_title(f"{plain(title)}, {len(rows):,} rows", fontsize=11)
    axes.grid(visible=True, which="major", color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    plot(axes, rows)
    try:
        figure.savefig(path, dpi=140)
    except OSError as error:
        raise OutputError(f"{plain(str(path))}: cannot be written ({error.strerror or error})") from None
    finally:
        pyplot.close(figure)
    return path


def _series(rows: Sequence[Judged]) -> list[tuple[str, Any]]:
    """Rows by device and engine: a label, measured beside predicted seconds; the smallest are `others`."""
    found: dict[str, list[tuple[float, float]]] = {}
    for r in rows:
        label = f"{r.device}, {r.engine}" if r.engine else r.device
        found.setdefault(label, []).append((r.measured_s, r.predicted_s))
    order = sorted(found, key=lambda name: -len(found[name]))
    shown, rest = order[: len(COLOURS)], order[len(COLOURS) :]
    series = [(f"{name} ({len(found[name]):,})", np.array(found[name])) for name in shown]
    others = [pair for name in rest for pair in found[name]]
    return series + ([(f"others ({len(others):,})", np.array(others))] if others else [])


def _seconds(axis: Any, times: Any) -> None:
    """A logarithmic axis of times with units; a short one has marks between its powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def shown(x: float, _: object) -> str:
        scale, unit = next((s for s in reversed(_UNITS) if x >= s[0] * 0.999), _UNITS[0])
        return f"{x / scale:g} {unit}"

    short = np.max(times) < 200 * np.min(times)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_major_formatter(FuncFormatter(shown))
    axis.set_minor_formatter(NullFormatter())


def _points(axes: Any, rows: Sequence[Judged], y: Callable[[Any], Any]) -> None:
    size = 14 if len(rows) < 500 else 5
    for (label, pairs), colour in zip(_series(rows), (*COLOURS, OTHERS), strict=False):
        under = 1 if colour == OTHERS else 2
        axes.scatter(
            pairs[:, 0], y(pairs), s=size, color=colour, alpha=0.55, linewidths=0, label=label, zorder=under
        )
    axes.legend(fontsize=8, framealpha=0.85, edgecolor="none", markerscale=1.5)


def _scatter(axes: Any, rows: Sequence[Judged]) -> None:
    """Predicted over measured, both logarithmic, with the diagonal and a factor of two."""
    _points(axes, rows, lambda pairs: pairs[:, 1])
    times = np.array([(r.measured_s, r.predicted_s) for r in rows])
    ends = np.array([times[:, 0].min(), times[:, 0].max()])
    axes.plot(ends, ends, color="#444444", linewidth=1)
    for factor in (0.5, 2):
        axes.plot(ends, ends * factor, color="#AAAAAA", linewidth=0.8, linestyle="--")
    axes.annotate("×2", (ends[0], ends[0] * 2), fontsize=8, color="#777777", va="bottom")
    axes.set(xscale="log", yscale="log", xlabel="measured", ylabel="predicted")
    _seconds(axes.xaxis, times[:, 0])
    _seconds(axes.yaxis, times[:, 1])


def _by_size(axes: Any, rows: Sequence[Judged]) -> None:
    """The error over the measured time, with the median of each half decade."""
    _points(axes, rows, lambda pairs: 100 * (pairs[:, 1] / pairs[:, 0] - 1))
    measured = np.array([r.measured_s for r in rows])
    error = np.array([100 * r.error for r in rows])
    bins = np.floor(2 * np.log10(measured))
    middles = [(10 ** ((b + 0.5) / 2), np.median(error[bins == b])) for b in np.unique(bins)]
    axes.plot(
        *zip(*middles, strict=True), color="#222222", linewidth=1.4, marker="o", markersize=3, label="median"
    )
    axes.axhline(0, color="#444444", linewidth=1)
    axes.set(xscale="log", xlabel="measured", ylabel="error, %")
    axes.set_ylim(max(-105, error.min() - 5), min(205, error.max() + 5))
    _seconds(axes.xaxis, measured)
    axes.legend(fontsize=8, framealpha=0.85, edgecolor="none", markerscale=1.5)


def _requests(axes: Any, rows: Sequence[Judged]) -> None:
    """Measured and predicted time of each request in the order of the log."""
    shown = rows[:_REQUESTS]
    at = [r.row for r in shown]
    axes.vlines(
        at, [r.predicted_s for r in shown], [r.measured_s for r in shown], color="#CCCCCC", linewidth=0.8
    )
    axes.scatter(at, [r.measured_s for r in shown], s=14, color=COLOURS[1], label="measured")
    axes.scatter(at, [r.predicted_s for r in shown], s=14, color=COLOURS[0], label="predicted")
    more = f", the first {_REQUESTS} of {len(rows):,}" if len(rows) > _REQUESTS else ""
    axes.set(xlabel=f"request{more}", ylabel="time", yscale="log")
    _seconds(axes.yaxis, [(r.measured_s, r.predicted_s) for r in shown])
    axes.legend(fontsize=8, framealpha=0.85, edgecolor="none")
