"""What is known of measured rows beside their columns: `sources.yaml`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from llmir.base import readers

from .rows import Array, Table

FILE = Path(__file__).with_name("sources.yaml")
# What an entry may say, and what it is where no entry says it; all else in one is a word that rows have.
FACTS: dict[str, object] = {
    **dict.fromkeys(("timed", "fills", "variant", "routing", "left_out", "unfit"), ""),
    **dict.fromkeys(("cache", "stored", "version", "machine", "chunk", "graphs", "ran", "passes"), ""),
    **dict.fromkeys(("turns", "ahead", "utilization"), nan),
    **dict.fromkeys(("lengths", "shortest"), 1.0),
    **dict.fromkeys(("apart_ms", "patience", "enough"), 0.0),
    "rounds": 10.0,
    "harness_us": 0.0,
}


@cache
def known() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = readers.load(FILE.read_bytes())
    return found


def facts(table: str, rows: Table) -> Table:
    """The rows with what is known of them as columns; what their own columns say is kept."""
    said = {f: np.full(len(rows), usual, float if usual != "" else object) for f, usual in FACTS.items()}
    for entry in known()["rows"]:
        if entry["table"] != table:
            continue
        fits = np.full(len(rows), fill_value=True)
        for column in entry.keys() - FACTS.keys() - {"table"}:
            fits &= _among(rows[column], entry[column])
        for fact in FACTS.keys() & entry.keys():
            said[fact][fits] = entry[fact]
    for fact in FACTS.keys() & rows.columns.keys():
        own = rows[fact]
        said[fact] = np.where((own == "") | (own != own), said[fact], own)  # noqa: PLR0124 (not a number)
    columns = {**rows.columns, **said}
    if "gpu" in columns:
        columns["gpu"] = np.where(said["machine"] == "", rows["gpu"], said["machine"])
    return Table(columns, rows.problems)


def _among(cells: Array, words: Any) -> Array:
    """Which cells are among an entry's words."""
    if cells.dtype != object:
        return np.isin(cells, words)
    patterns = [str(word).lower() for word in (words if isinstance(words, list) else [words])]
    fits = {c: any(fnmatchcase(c.strip().lower(), p) for p in patterns) for c in set(cells.tolist())}
    return np.array([fits[cell] for cell in cells.tolist()], dtype=bool)
