"""Points timed one after another until time is up, and the CSV files that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llmir.backends.export.files import write as write_file
from llmir.backends.export.json import to_csv

from .machine import Machine, Point

SOURCE = "llmir calibrate --run"


def record(
    points: Sequence[Point],
    machine: Machine,
    budget_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[int, Point], None] = lambda *_: None,
) -> list[tuple[Point, float]]:
    """The points with their seconds, as many as `budget_s` allows; those that cannot be done are left out."""
    end, found = clock() + budget_s, []
    for n, point in enumerate(points):
        if clock() >= end:
            break
        tell(n, point)
        if (seconds := machine.seconds(point)) is not None:
            found.append((point, seconds))
    return found


def write(
    folder: Path, timed: Sequence[tuple[Point, float]], gpu: str, framework: str, kernel: str = "torch"
) -> list[Path]:
    """A CSV file for each kind of point, rows in order of size; the paths."""
    paths = []
    for file in dict.fromkeys(point.file for point, _ in timed):
        rows: list[dict[str, object]] = []
        for point, seconds in timed:
            if point.file == file:
                by = {"framework": framework, "kernel": kernel, "source": SOURCE}
                rows.append({"gpu": gpu, **point.cells, "latency_us": f"{seconds * 1e6:.4g}", **by})
        rows.sort(key=lambda row: [(str(v), 0) if isinstance(v, str) else ("", v) for v in row.values()])
        paths.append(folder / f"{file}.csv")
        write_file(paths[-1], to_csv(rows))
    return paths
