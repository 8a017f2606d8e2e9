"""Latencies against the rate at which requests come, as charts of a page."""

from __future__ import annotations

from typing import Any

from llmir.backends.export import units
from llmir.backends.export.charts.latencies import Runs, curves, furthest, height, largest, title

from .document import Told, axis, marks, point


def by_rate(
    called: str,
    of: str,
    runs: Runs,
    *,
    limit: float | None = None,
    asked: float | None = None,
    servers: int = 1,
    said: str = "",
    choosable: bool = False,
) -> Told:
    """Percentiles of a latency over the rates of some runs of `servers` like theirs, with the limit.

    `asked` is a rate that is marked, and `said` stands below with what overload is.
    """
    found, stable = curves(of, runs, servers), servers * largest(runs)
    series: list[Told] = []
    for shape, (stat, curve) in zip((0, 2, 1), found.items(), strict=True):
        half = curve.half.any()
        points = []
        for n, (rate, seconds, off) in enumerate(zip(*(a.tolist() for a in curve), strict=True)):
            within = f" ± {units.time(off)}" if half else ""
            words = f"{units.digits(rate)} requests/s: {units.time(seconds)}{within}"
            points.append(point(rate, seconds, n if choosable else None, words))
        series.append({"name": f"{stat} of requests", "shape": shape, "line": True, "points": points})
    right = furthest(found, stable, asked)
    limits: list[dict[str, Any]] = []
    if stable < right:
        limits.append({"axis": "x", "at": stable, "words": "overloaded", "side": "high"})
        said = "; ".join(
            filter(None, (said, f"hatched: above {units.digits(stable)} requests/s the queue grows"))
        )
    if limit:
        limits.append({"axis": "y", "at": limit, "words": f"limit {units.time(limit)}"})
    if asked:
        limits.append({"axis": "x", "at": asked, "words": f"asked: {units.digits(asked)}", "asked": True})
    x = axis("requests/s", "digits", "rate", log=False, least=right / 1.08)
    y = axis(f"{title(of)}", "time", f"{of}_s", log=False, most=height(found, stable, limit))
    return marks(called, x, y, series, file=of, limits=limits, note=said, high=240)
