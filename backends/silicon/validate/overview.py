"""A validation as people read it: its groups in sections, what beats its bound, what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from llmir.backends.export import table
from llmir.names import spans

from . import show
from .judged import BY, Validation


def more(found: Validation) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """The tables below the first: rows faster than their bound, rows refused."""
    exceeds = [[*words, f"{n:,}"] for *words, n in show.exceeds(found)]
    refused = [[kind, reason, spans(n, 3), f"{len(n):,}"] for kind, reason, n in found.reasons()]
    tables: list[tuple[tuple[str, ...], list[list[str]]]] = [
        (("kind", "device", "measured below ideal, because", "rows"), exceeds),
        (("kind", "refused, because", "row numbers", "rows"), refused),
    ]
    return [(headings, rows) for headings, rows in tables if rows]


@table.printed(of=Validation)
def shown(found: Validation, by: Sequence[str] = BY) -> Any:
    """The errors of groups, rows faster than their bound, and rows refused."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(f"{show.scope(found)}, cost model {found.cost_model}")]
    parts += _sections([*by, *show.HEADINGS[:-1]], show.group_lines(found, by), len(by))
    for headings, rows in more(found):
        below = table.columns(headings, headings[-1:], headings[1:-1])
        for row in rows:
            table.add(below, row)
        parts += ["", below]
    return Group(*parts)


def _sections(headings: list[str], lines: list[list[str]], keys: int) -> list[Any]:
    """Tables of groups, alike in width, under what they share: all keys but the last two."""
    from rich.text import Text

    shared, parts = max(keys - 2, 0), []
    headings = headings[shared:]
    cells = [headings, *(line[shared:] for line in lines)]
    widths = [
        max(map(len, column)) for column in zip(*(line[: len(headings)] for line in cells), strict=True)
    ]
    for title, some in groupby(lines, key=lambda line: line[:shared]):
        shown = table.columns(headings, headings[keys - shared :], headings[: keys - shared])
        for column, width in zip(shown.columns, widths, strict=True):
            column.min_width = width
        for line in some:
            table.add(shown, line[shared : shared + len(headings)])
        parts += ["", *([Text(", ".join(title), style="bold")] if shared else []), shown]
    return parts
