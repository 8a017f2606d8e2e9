"""A result as tables one below the other: on a terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llmir.base.formats import exporter

from . import json, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


class Section(NamedTuple):
    """Rows under headings, empty ones of labels and what they say; columns from `right` on hold numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: int = 1

    @property
    def numeric(self) -> range:
        """The columns of numbers."""
        return range(self.right if any(self.headings) else len(self.headings), len(self.headings))


Sections = Callable[[Any], Iterable[Section]]


def sectioned(of: type) -> Callable[[Sections], Sections]:
    """A decorator: the function gives the sections of things of that class."""

    def take(sections: Sections) -> Sections:
        @table.printed(of=of)
        def printed(found: Any) -> Group:
            shown: list[RenderableType] = []
            for section in sections(found):
                shown += ["", _table(section)] if shown else [_table(section)]
            return table.stack(*shown)

        @exporter("md", ".md", of=of)
        def markdown(found: Any) -> str:
            return "\n".join(json.to_markdown(s.headings, s.rows, s.numeric) for s in sections(found))

        @exporter("html", ".html", of=of)
        def html(found: Any) -> str:
            return "".join(table.html(s.headings, s.rows, s.numeric) for s in sections(found))

        return sections

    return take


def _table(section: Section) -> RenderableType:
    headings = section.headings
    if not any(headings):
        return table.pairs(tuple(row) for row in section.rows)
    shown = table.columns(headings, [headings[i] for i in section.numeric])
    for row in section.rows:  # figures are bold, and what they are made of is not
        table.add(shown, row, styles=["" if headings[0] or row[0].startswith(" ") else "bold"])
    return shown
