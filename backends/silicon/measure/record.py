"""Points timed one after another until time is up, and the CSV files that they make."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llmir.backends.export.files import write as write_file

from .machine import Machine, Point

Row = Mapping[str, str | int | float]
COLUMNS = {
    "gemm": ("gpu", "dtype", "m", "n", "k", "turns"),
    "attention_prefill": (
        *("gpu", "dtype", "kv_dtype", "batch", "q_len", "context"),
        *("num_heads", "num_kv_heads", "head_dim", "window"),
    ),
    "elementwise": ("gpu", "dtype", "op", "rows", "cols", "bytes_moved_ideal"),
    "collective": ("gpu", "op", "dtype", "num_gpus", "bytes"),
    "steps": ("gpu", "layers", "batch", "context"),
}
COLUMNS["attention_decode"] = COLUMNS["attention_prefill"]
ABOUT = ("latency_us", "framework", "kernel", "source")
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
    for file in dict.fromkeys(p.file for p, _ in timed):
        columns = COLUMNS[file]
        about = {"gpu": gpu, "framework": framework, "kernel": kernel, "source": SOURCE}
        rows = [{**about, **p.cells, "latency_us": f"{s * 1e6:.4g}"} for p, s in timed if p.file == file]
        rows.sort(key=lambda row: [(str(v), 0) if isinstance(v := row[c], str) else ("", v) for c in columns])
        text = io.StringIO()
        out = csv.DictWriter(text, (*columns, *ABOUT), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
        paths.append(folder / f"{file}.csv")
        write_file(paths[-1], text.getvalue())
    return paths
