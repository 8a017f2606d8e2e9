"""Lists of things of one kind, such as the bundled models, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmir.base.dataclass import dataclass
from llmir.base.formats import Shown, exporter
from llmir.base.values import Figures

from . import json, table

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Rows(Figures, Shown):
    """Rows with equal keys, and the table that a person sees of them, with units.

    `data` is their JSON, where that is not a list of the rows.
    """

    rows: Sequence[Mapping[str, Any]]
    table: RenderableType
    data: Any = None


@table.printed(of=Rows)
def shown(rows: Rows) -> RenderableType:
    """The table."""
    return rows.table


@exporter("json", ".json", of=Rows)
def to_json(rows: Rows) -> str:
    """A list of objects, or what there is instead."""
    return json.to_json(rows.rows if rows.data is None else rows.data)


@exporter("csv", ".csv", of=Rows)
def to_csv(rows: Rows) -> str:
    """A line for each."""
    return json.to_csv(rows.rows)


@exporter("md", ".md", of=Rows)
def to_markdown(rows: Rows) -> str:
    """A Markdown table of the values."""
    first = rows.rows[0]
    cells = [["" if v is None else v for v in row.values()] for row in rows.rows]
    numeric = [i for i, v in enumerate(first.values()) if isinstance(v, int | float)]
    return json.to_markdown(list(first), cells, numeric)
