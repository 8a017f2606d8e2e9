"""Errors of two validations of the same tables, by table, engine and dtype: a table in Markdown.

llmir validate gemm.csv … -o before.csv, the same of another version as after.csv; then
python benchmarks/errors.py before.csv after.csv [file,device,engine,dtype]
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path

BY = "file,engine,dtype"
Rows = dict[tuple[str, str, str], dict[str, str]]


def rows(path: str) -> Rows:
    """Rows of what `llmir validate -o FILE.csv` writes, by file, row and metric."""
    with Path(path).open(newline="") as file:
        return {(r["file"], r["row"], r["metric"]): r for r in csv.DictReader(file)}


def judged(row: dict[str, str] | None) -> bool:
    """Whether it has a prediction beside a measurement."""
    return bool(row and row["predicted_s"] and row["measured_s"])


def error(row: dict[str, str]) -> float:
    """The size of the relative error, in percent."""
    return 100 * abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1)


def mean(errors: list[float]) -> str:
    """A percentage, or a dash for none."""
    return f"{sum(errors) / len(errors):.1f}" if errors else "–"


def main(before: str, after: str, by: str = BY) -> None:
    """A line for each group: errors of the rows that both judge, and of those that one alone does."""
    old, new, keys = rows(before), rows(after), by.split(",")
    both: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    left: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    more: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        group = tuple((now or was or {})[k] for k in keys)
        if was and now and judged(was) and judged(now):
            both[group].append((error(was), error(now)))
        elif was and judged(was):
            left[group][now["refused"] if now else "not read"] += 1
        elif now and judged(now):
            more[group].append(error(now))
    headings = [*keys, "rows", "before, %", "after, %", "new rows", "their error, %", "left out"]
    print("|", " | ".join(headings), "|")
    print("|" + "---|" * len(headings))
    for group in sorted({*both, *left, *more}):
        was, now = ([pair[i] for pair in both[group]] for i in (0, 1))
        out = "; ".join(f"{n} {why}" for why, n in left[group].items())
        cells = [
            *group,
            f"{len(was):,}",
            mean(was),
            mean(now),
            f"{len(more[group]):,}",
            mean(more[group]),
            out,
        ]
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main(*sys.argv[1:])
