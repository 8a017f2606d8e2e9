"""Reports as tables: with rich on a terminal, as HTML in notebooks.

`workload` prints a request, `report` a step, and `ops` the table of ops. `text` fits a table into 80
columns. `columns`, `pairs` and `stack` build the parts that other exporters use, and `table_of` registers a
table. `FixedRuleTable` draws the line of a table as long as its rows, with every version of rich.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from html import escape
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from rich.table import Table

from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.formats import Displayable, Pairs, exporter

from . import units, wording
from .wording import HEADINGS, NUMERIC, OpLine

if TYPE_CHECKING:
    from rich.console import Group, JustifyMethod, RenderableType
    from rich.table import Column

# Tables of reports

Make = TypeVar("Make", bound="Callable[..., RenderableType]")

BOUND_STYLES = {"memory": "blue", "compute": "dark_orange", "network": "magenta", "overhead": "bright_black"}

WIDE = 80  # width of a terminal, in characters, to which prose and cells with prose are wrapped
LEAST = 16  # width of a wrapped column
NAME = 20  # width of an op's name; a longer name continues on the next line

LINES = 400  # most lines of text in a notebook; unrolled layers would give thousands
LONG = 24  # number of characters after which a page wraps a cell
NEWLINE = "\n"
EMPTY = OpLine(*[""] * len(OpLine._fields))


def text(table: RenderableType, *, colour: bool = False) -> str:
    """A table as text, in 80 columns if its wrapped text allows that; nothing is cut off."""
    from rich.console import Console

    console = Console(
        file=open(os.devnull, "w"),  # noqa: SIM115 (captured, never written)
        width=1000,
        force_terminal=colour,
        no_color=not colour,
        color_system="256" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console, console.capture() as captured:
        console.print(_fit(table, WIDE), soft_wrap=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _fit(part: RenderableType, room: int) -> RenderableType:
    """A copy of `part` whose text is wrapped to `room` columns where possible."""
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if isinstance(part, Group):
        return Group(*(_fit(p, room) for p in part.renderables))
    if isinstance(part, Padding):
        inside = _fit(part.renderable, room - part.left - part.right)
        return Padding(inside, (part.top, part.right, part.bottom, part.left), expand=part.expand)
    if isinstance(part, Table):
        _shrink(part, room)
        return part
    return Constrain(part, room) if isinstance(part, (str, Text)) else part


def _shrink(table: Table, room: int) -> None:
    """Narrow the widest columns that can be wrapped, so that the table has `room` columns in total."""
    from rich.cells import cell_len

    def widest(column: Column) -> int:
        return max((cell_len(str(cell)) for cell in (column.header, *column.cells)), default=0)

    widths = [widest(column) for column in table.columns]
    gaps = (table.padding[1] + bool(table.box)) * (len(widths) - 1)
    wrapped = [i for i, column in enumerate(table.columns) if not column.no_wrap]
    while wrapped and sum(widths) + gaps > room:
        i = max(wrapped, key=lambda i: widths[i])
        if widths[i] <= LEAST:
            break
        widths[i] -= 1
    for i in wrapped:
        table.columns[i].max_width = widths[i]


def table_of(of: type) -> Callable[[Make], Make]:
    """A decorator: the function builds the table of results of that class for `print` and terminals."""

    def take(make: Make) -> Make:
        def printed_text(thing: Any, *, colour: bool = False, **options: Any) -> str:
            return text(make(thing, **options), colour=colour)

        exporter("table", ".txt", of=of)(wraps(make)(printed_text))
        return make

    return take


def columns(
    headings: Sequence[str], numeric: Iterable[str] = (), prose: Iterable[str] = (), *, gap: int = 2
) -> Table:
    """An empty table with a line under its headings; cells are never cut off, and their text is not markup.

    The columns in `numeric` are right-aligned; the columns in `prose` are wrapped if the table is too wide.
    Columns are at least `gap` characters apart.
    """
    from rich import box
    from rich.text import Text

    table = FixedRuleTable(
        box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )
    right, wrapped = set(numeric), set(prose)
    for heading in headings:
        justify: JustifyMethod = "right" if heading in right else "left"
        kept = heading not in wrapped
        table.add_column(Text(wording.plain(heading)), justify=justify, no_wrap=kept, overflow="fold")
    return table


def stack(*parts: RenderableType) -> Group:
    """Some tables and lines, one below the other."""
    from rich.console import Group

    return Group(*parts)


def add(table: Table, cells: Iterable[str], style: str = "", styles: Sequence[str] = ()) -> None:
    """A row of plain text; brackets are not markup."""
    from rich.text import Text

    of_each = chain(styles, repeat(""))
    table.add_row(*(Text(wording.plain(c), style=next(of_each)) for c in cells), style=style)


def pairs(rows: Iterable[tuple[str, ...]], prose: Sequence[int] = (-1,)) -> Table:
    """Labels with values; the columns in `prose` (by default the last one) are wrapped if the table is too
    wide.
    """

    table = FixedRuleTable(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        if not table.columns:
            for i in range(len(row)):
                table.add_column(no_wrap=not {i, i - len(row)} & {*prose}, overflow="fold")
        add(table, row, styles=["bold"])
    return table


def sections(headings: Sequence[str], lines: Sequence[list[str]], keys: int) -> list[RenderableType]:
    """Tables of equal width; the lines of each table share all keys (their first cells) except the last
    two.
    """
    from rich.text import Text

    shared = max(keys - 2, 0)
    parts: list[RenderableType] = []
    headings = headings[shared:]
    cells = [headings, *(line[shared:] for line in lines)]
    widths = [
        max(map(len, column)) for column in zip(*(line[: len(headings)] for line in cells), strict=True)
    ]
    for title, some in groupby(lines, key=lambda line: line[:shared]):
        shown = columns(headings, headings[keys - shared :], headings[: keys - shared])
        for column, width in zip(shown.columns, widths, strict=True):
            column.min_width = width
        for line in some:
            add(shown, line[shared : shared + len(headings)])
        parts += ["", *([Text(", ".join(title), style="bold")] if shared else []), shown]
    return parts


@table_of(of=Workload)
def workload(workload: Workload) -> Group:
    """The whole report of a workload: the request, the results, the memory, and the time by op."""
    return answer_sections(workload, pairs(wording.result_lines(workload)))


def answer_sections(workload: Workload, *answers: RenderableType) -> Group:
    """The request, the given results, their basis, and the time of each step by op."""
    from rich.console import Group
    from rich.text import Text

    steps = wording.phases(workload)
    parts: list[RenderableType] = [pairs(wording.subject_lines(workload)), "", *answers, ""]
    parts += [pairs(wording.detail_lines(workload)), "", _steps(steps)]
    for name, report in steps:
        title = Text(wording.phase_title(workload, name, report), style="bold")
        parts += ["", title, *_step(report)]
    parts += ["", *wording.remarks(workload.prefill)]
    return Group(*parts)


@table_of(of=Report)
def report(report: Report) -> Group:
    """One step with its results and ops; for a grid, the ranges of its results."""
    from rich.console import Group
    from rich.text import Text

    title = Text(f"{wording.model_on_devices(report)}: {wording.step_title(report)}", style="bold")
    if report.shape:
        names = ("figure", "least", "most")
        shown = columns(names, names[1:])
        for row in wording.ranges(report):
            add(shown, row, styles=["bold"])
        return Group(title, "", shown)
    figures = pairs([*wording.basis_lines(report), *wording.step_lines(report)])
    return Group(title, "", figures, "", *_step(report), "", *wording.remarks(report))


@table_of(of=Pairs)
def lines(result: Pairs) -> Table:
    """Lines that each consist of a label and its text."""
    return pairs(result.pairs())


def _steps(steps: list[tuple[str, Report]]) -> Table:
    titles = [wording.TITLES[name] for name, _ in steps]
    table = columns(["", *titles], prose=titles)
    for row in wording.compare_steps(report for _, report in steps):
        add(table, row, styles=["bold"])
    return table


def ops(report: Report) -> Table:
    """The rows of a step, grouped by the body that repeats them."""
    # On a terminal, group and repeat are on separate lines, because there is no space for all columns.
    fields = wording.fields(report)
    left_out = {"group", "repeat", "kind", "shape", *(["intensity"] if "ideal" in fields else [])}
    chosen = [f for f in fields if f not in left_out]
    numeric = [getattr(HEADINGS, f) for f in chosen if f in NUMERIC]
    table = columns([getattr(HEADINGS, f) for f in chosen], numeric, gap=1)

    def put(line: OpLine, style: str = "") -> None:
        if len(line.name) > NAME:
            cut = max(line.name.rfind(end, 0, NAME) for end in "_.") + 1 or NAME
            add(table, [line.name[:cut]], style)
            indent = " " * (len(line.name) - len(line.name.lstrip()) + 2)
            put(line._replace(name=indent + line.name[cut:]), style)
            return
        line = line._replace(flops=line.flops.removesuffix("FLOP").rstrip())
        styles = [BOUND_STYLES.get(line.bound, "") if f == "bound" else "" for f in chosen]
        add(table, [getattr(line, f) for f in chosen], style, styles)

    lines = zip(wording.op_lines(report), report.ops, strict=True)
    shown: dict[tuple[OpLine, ...], str] = {}  # stages by content, with the first stage of each content
    for (group, times), members in groupby(lines, key=lambda pair: (pair[0].group, pair[0].repeat)):
        inside = list(members)
        if group:
            share = units.percent(sum(float(cost.share) for _, cost in inside))
            alike = tuple(row._replace(group="", repeat="", share="") for row, _ in inside)
            first = shown.setdefault(alike, group) if len(alike) > 2 else group
            put(EMPTY._replace(name=f"{group} {times}".rstrip(), share=share), "bold")
            if first != group:
                put(EMPTY._replace(name=f" each as {first}"))
                continue
        for row, _ in inside:
            put(row._replace(name=f" {row.name}" if group else f"{row.name} {times}".rstrip()))
    table.add_section()
    put(wording.total_line(report), "bold")
    return table


def _step(report: Report) -> Iterator[RenderableType]:
    """The rows of a step, and their sum."""
    yield ops(report)
    yield from wording.sums(report)


@exporter("html", ".html", of=Report)
def report_html(report: Report) -> str:
    """One step as HTML; for a grid, its ranges."""
    title = f"{wording.model_on_devices(report)}: {wording.step_title(report)}"
    if report.shape:
        table = html(("figure", "least", "most"), wording.ranges(report))
        return caption(f"{title}, grid {report.shape}") + table
    figures = [*wording.basis_lines(report), *wording.step_lines(report)]
    parts = [caption(title), html(("", ""), figures), *_ops_html(report)]
    return "".join((*parts, *(caption(line, "small") for line in wording.remarks(report))))


@exporter("html", ".html", of=Workload)
def workload_html(workload: Workload) -> str:
    """A workload as HTML."""
    parts = [caption(wording.model_on_devices(workload))]
    rows = (wording.subject_lines, wording.result_lines, wording.detail_lines)
    parts.append(html(("", ""), [pair for of in rows for pair in of(workload)]))
    for name, report in wording.phases(workload):
        parts += [
            caption(wording.phase_title(workload, name, report)),
            html(("", ""), wording.step_lines(report)),
            *_ops_html(report),
        ]
    return "".join((*parts, *(caption(line, "small") for line in wording.remarks(workload.prefill))))


@exporter("html", ".html", of=Displayable)
def plain_html(thing: Displayable) -> str:
    """The first lines of the printed form, for results that have no HTML form."""
    lines = str(thing).splitlines()
    more = [f"… {len(lines) - LINES:,} more lines; print() shows them"] if len(lines) > LINES else []
    return f"<pre>{escape(NEWLINE.join(lines[:LINES] + more))}</pre>"


def _ops_html(report: Report) -> Iterator[str]:
    """The rows of a step, and their sum."""
    yield html(*wording.flat(report))
    yield from (caption(line, "small") for line in wording.sums(report))


def caption(text: str, tag: str = "b") -> str:
    """A line above a table, as HTML."""
    return f"<p><{tag}>{escape(wording.plain(text))}</{tag}></p>"


def html(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table as HTML; the columns in `right` contain numbers, and empty columns are omitted."""
    numeric, lines = set(right), list(rows)
    kept = [i for i, heading in enumerate(headings) if any(line[i] for line in lines) or not heading]

    def style(i: int, cell: str) -> str:
        wrapped = ";white-space:normal;min-width:12em" if len(cell) > LONG and any(headings) else ""
        return f"text-align:{'right' if i in numeric else 'left'}{wrapped}"

    def row(cells: Sequence[str], tag: str) -> str:
        found = (f"<{tag} style={style(i, cells[i])!r}>{escape(cells[i])}</{tag}>" for i in kept)
        return f"<tr>{''.join(found)}</tr>"

    head = f"<thead>{row(headings, 'th')}</thead>" if any(headings) else ""
    return f"<table>{head}<tbody>{''.join(row(r, 'td') for r in lines)}</tbody></table>"


# Rule of a table


class FixedRuleTable(Table):
    """Before version 14.3, rich counts a padding of the last column that it does not draw, so its lines are
    too long.
    """

    def _get_padding_width(self, column_index: int) -> int:
        _, right, _, left = self.padding
        return (left if column_index else 0) + (right if column_index + 1 < len(self.columns) else 0)
