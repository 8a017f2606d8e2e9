"""Results as tables and lists in every format.

`@sectioned` registers the function that builds the `Section`s of a class of results. The terminal, Markdown
and HTML use them. `Rows` is a list of equal rows with JSON, CSV and Markdown, used by `catalog.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.base.formats import Displayable, exporter
from llmir.base.values import Figures

from . import json, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


# Sections in every format


class Section(NamedTuple):
    """Rows with headings; empty headings mean that rows are labels with values.

    `right` contains the indices of the columns with numbers, or the first of them.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: int | range = 1

    @property
    def numeric(self) -> range:
        """The columns of numbers."""
        if isinstance(self.right, range):
            return self.right
        return range(self.right if any(self.headings) else len(self.headings), len(self.headings))


Sections = Callable[[Any], Iterable[Section]]


def sectioned(of: type) -> Callable[[Sections], Sections]:
    """A decorator: the function returns the sections of results of that class."""

    def take(sections: Sections) -> Sections:
        @table.table_of(of=of)
        def printed(found: Any) -> Group:
            shown: list[RenderableType] = []
            for section in sections(found):
                shown += ["", section_table(section)] if shown else [section_table(section)]
            return table.stack(*shown)

        @exporter("md", ".md", of=of)
        def markdown(found: Any) -> str:
            return "\n".join(json.to_markdown(s.headings, s.rows, s.numeric) for s in sections(found))

        @exporter("html", ".html", of=of)
        def html(found: Any) -> str:
            return "".join(table.html(s.headings, s.rows, s.numeric) for s in sections(found))

        return sections

    return take


def section_table(section: Section) -> RenderableType:
    """A section for a terminal."""
    headings = section.headings
    if not any(headings):
        return table.pairs(tuple(row) for row in section.rows)
    shown = table.columns(headings, [headings[i] for i in section.numeric])
    for row in section.rows:  # values are bold, and their labels are not
        table.add(shown, row, styles=["" if headings[0] or row[0].startswith(" ") else "bold"])
    return shown


# Lists of equal rows


@dataclass(frozen=True)
class Rows(Figures, Displayable):
    """Rows with equal keys, and the table of them that a user sees, with units.

    `data` is the JSON form, if it is not a list of the rows.
    """

    rows: Sequence[Mapping[str, Any]]
    table: RenderableType
    data: Any = None

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """The rows in order."""
        return iter(self.rows)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)


@table.table_of(of=Rows)
def shown(rows: Rows) -> RenderableType:
    """The table."""
    return rows.table


@exporter("json", ".json", of=Rows)
def to_json(rows: Rows) -> str:
    """The rows as a list of objects; or a text instead."""
    return json.to_json(rows.rows if rows.data is None else rows.data)


@exporter("csv", ".csv", of=Rows)
def to_csv(rows: Rows) -> str:
    """A CSV table with one line per row."""
    return json.to_csv(rows.rows)


@exporter("md", ".md", of=Rows)
def to_markdown(rows: Rows) -> str:
    """A Markdown table of the values."""
    first = rows.rows[0]
    cells = [["" if v is None else v for v in row.values()] for row in rows.rows]
    numeric = [i for i, v in enumerate(first.values()) if isinstance(v, int | float)]
    return json.to_markdown(list(first), cells, numeric)
