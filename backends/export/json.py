"""Reports as JSON, CSV and Markdown text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base import readers
from llmir.base.errors import InputError
from llmir.base.formats import Result, exporter

from . import wording


def to_json(data: object) -> str:
    """`data` as JSON text that every parser can read: it contains no NaN and no infinity."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with equal keys as CSV, below a line with these keys. None is an empty cell, and no cell is read
    as a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(rows[0]) if rows else []
    writer.writerow(map(readers.escape_formula, names))
    writer.writerows([readers.escape_formula(row[name]) for name in names] for row in rows)
    return text.getvalue()


def to_markdown(headings: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> str:
    """A Markdown table; the columns in `right` contain numbers and are right-aligned. Cells are escaped
    text.
    """
    numeric = set(right)
    lines = [[md(c) for c in row] for row in (headings, *rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(headings))]
    rule = ["-" * (w - 1) + ":" if i in numeric else "-" * w for i, w in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        sized = enumerate(zip(cells, widths, strict=True))
        return f"| {' | '.join(c.rjust(w) if i in numeric else c.ljust(w) for i, (c, w) in sized)} |"

    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])]) + "\n"


def md(text: object) -> str:
    """`text` in a form that Markdown shows literally.

    >>> print(md("[a](b) <b>*x*</b> q_proj | &"))
    \\[a\\](b) \\<b>\\*x\\*\\</b> q_proj \\| \\&
    """
    kept = re.sub(r"([\\`*\[\]|~#<&])", r"\\\1", wording.plain(text))
    # Markdown does not read an underscore inside a word as markup
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", kept)


@exporter("json", ".json", of=Result)
def result_json(result: Result) -> str:
    """`to_dict()` as text."""
    return to_json(result.to_dict())


def workload_rows(workload: Workload) -> list[dict[str, Any]]:
    """One flat row for each op of each phase, in SI units."""
    found = []
    for phase, report in wording.phases(workload):
        where = {"model": workload.program.name, "hardware": workload.device.name, "phase": phase}
        found += _op_rows(report, where)
    return found


def _op_rows(report: Report, where: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**where, **op, "shape": "x".join(map(str, op["shape"]))} for op in report.to_dict()["ops"]]


@exporter("csv", ".csv", of=Workload)
def workload_csv(workload: Workload) -> str:
    """One line for each op of each phase."""
    return to_csv(workload_rows(workload))


@exporter("csv", ".csv", of=Report)
def report_csv(report: Report) -> str:
    """One line for each op, in SI units."""
    if report.shape:
        raise InputError(f"a table of ops needs a report of one point, got a grid of {report.shape}")
    return to_csv(_op_rows(report, {}))


@exporter("md", ".md", of=Workload)
def workload_markdown(workload: Workload) -> str:
    """The report as text."""
    steps = wording.phases(workload)
    compared = wording.compare_steps(report for _, report in steps)
    lines = (wording.subject_lines, wording.result_lines, wording.detail_lines)
    parts = [
        f"# {md(wording.model_on_devices(workload))}\n",
        to_markdown(("", ""), [pair for of in lines for pair in of(workload)]),
        "".join(f"- Note: {md(note)}\n" for note in workload.notes),
        "## Steps\n",
        to_markdown(("", *(wording.TITLES[name] for name, _ in steps)), compared),
    ]
    for name, report in steps:
        headings, rows, right = wording.flat(report)
        title = wording.phase_title(workload, name, report)
        parts += [
            f"## {title[:1].upper()}{title[1:]}\n",
            f"{'. '.join(wording.remarks(report))}.\n",
            to_markdown(headings, rows, right),
        ]
    return "\n".join(p for p in parts if p)
