"""What pages of results are told: figures, tables and charts, each value with its kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmir.backends.export import wording
from llmir.base.version import __version__

Told = dict[str, Any]


def value(given: Any) -> Any:
    """As JSON has it: what is no number, or without end, is nothing."""
    plain = given.item() if hasattr(given, "item") else given
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def figure(title: str, kind: str, given: Any, beside: str = "") -> Told:
    """A card of the strip."""
    return {"title": title, "kind": kind, "value": value(given), "beside": beside}


def column(key: str, title: str, kind: str = "text", more: str = "", *, prose: bool = False) -> Told:
    """A column of a table: `key` heads it in CSV, `more` is said beside the pointer."""
    return {"key": key, "title": title, "kind": kind, "more": more or None, "prose": prose}


def sheet(
    title: str, columns: Sequence[Told], rows: Iterable[Sequence[Any]], *, file: str, **more: Any
) -> Told:
    """A table. `choosable` rows are chosen in charts too; `wrong` has columns that miss a limit, by row."""
    cells = [[value(cell) for cell in row] for row in rows]
    told = {"kind": "sheet", "title": title, "columns": list(columns), "rows": cells, "file": file}
    return {**told, "look": "wide", "choosable": False, "wrong": {}, "note": "", **more}


def axis(title: str, kind: str, key: str = "", **more: Any) -> Told:
    """An axis of a chart; `log` says whether it is one of powers, else the chart decides."""
    return {"title": title, "kind": kind, "key": key or None, **more}


def point(x: Any, y: Any, row: int | None = None, words: str = "", letter: str = "") -> list[Any]:
    """A mark: what it says, and which row of tables it stands for."""
    return [value(x), value(y), row, wording.plain(words) if words else "", letter]


def marks(title: str, x: Told, y: Told, series: Sequence[Told], *, file: str, **more: Any) -> Told:
    """A chart of lines and marks; `limits` are drawn across it, with what lies beyond."""
    told = {"kind": "marks", "title": title, "x": x, "y": y, "series": list(series), "file": file}
    return {**told, "look": "", "limits": [], "note": "", **more}


def document(
    model: str,
    chips: Iterable[tuple[str, str]],
    figures: Iterable[Told],
    views: Iterable[Told],
    *,
    answer: str = "",
    lines: Iterable[str] = (),
    basis: str = "",
    notes: Iterable[str] = (),
    about: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The whole: `answer` and `lines` stand first, `about` says of each chosen row what is heard."""
    return {
        "version": __version__,
        "model": model,
        "chips": [("model", model), *chips],
        "answer": answer,
        "lines": list(lines),
        "figures": list(figures),
        "views": list(views),
        "basis": basis,
        "notes": list(notes),
        "about": list(about),
    }
