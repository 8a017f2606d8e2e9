"""A validation as tables, JSON, rows and charts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.export import table, units
from llmir.backends.export.charts import validation
from llmir.base.names import spans

from .memory import memory_totals
from .rows import BY, RowGroup, Validation, ValidationRow

NUMBERS = ("rows", "within ±", "within twice ±")  # headings of numeric columns in the other tables
HEADINGS = ("n", "MAPE", "median", "bias", "p90", "±", "in ±", "in 2±", "refused", "with refused")
# The columns that fit in a terminal of 80 columns; another table lists the rejected rows.
TERMINAL = tuple(name for name in HEADINGS if name not in ("p90", "refused", "with refused"))


def to_dict(found: Validation, by: Sequence[str] = BY) -> dict[str, Any]:
    """The JSON of `llmir validate`. Errors are shares, and None without rows."""
    return {
        "schema_version": 1,
        "cost_model": found.cost_model,
        "groups": [group_row(g) for g in found.groups(by)],
        "within_band": [line._asdict() for line in found.coverage],
        "exceeds": [
            {"kind": kind, "device": device, "rule": rule, "n": n} for kind, device, rule, n in exceeds(found)
        ],
        "amounts": [amount._asdict() | {"error": amount.error} for amount in found.amounts],
        "rows": [validation_row(r) for r in found.rows],
        "refused": [rejected_row(r) for r in found.refused],
        "problems": list(found.problems),
        "questions": list(found.questions),
    }


def group_row(group: RowGroup) -> dict[str, Any]:
    """A group as a flat row."""
    return {**group.keys, **{f: _known(v) for f, v in group._asdict().items() if f != "keys"}}


def validation_row(row: ValidationRow) -> dict[str, Any]:
    """A row with its error as a flat row."""
    figures = {name: _known(value) for name, value in row._asdict().items() if name != "reason"}
    return figures | {"error": _known(row.error)}


def rejected_row(row: ValidationRow) -> dict[str, Any]:
    """A rejected row with its reason as a flat row."""
    figures = ValidationRow._field_defaults.keys() - {"reason"}
    return {name: value for name, value in row._asdict().items() if name not in figures}


def every_row(found: Validation) -> list[dict[str, Any]]:
    """Rows in the order of their files; for a rejected row, the reason is in `refused`."""
    rows = [validation_row(row) | {"refused": row.reason} for row in (*found.rows, *found.refused)]
    files = {file: n for n, file in enumerate(dict.fromkeys(row["file"] for row in rows))}
    return sorted(rows, key=lambda row: (files[row["file"]], row["row"]))


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def group_lines(found: Validation, by: Sequence[str]) -> list[list[str]]:
    """Cells of the table of groups."""
    lines = []
    for group in found.groups(by):
        shares = (
            *(group.mape, group.median, group.bias, group.p90),
            *(group.band, group.within, group.within_twice),
        )
        figures = [_share(x) for x in shares]
        more = [str(group.refused) if group.refused else "", _share(group.all_mape) if group.refused else ""]
        lines.append([*group.keys.values(), f"{group.n:,}", *figures, *more])
    return lines


def _share(x: float) -> str:
    return "–" if math.isnan(x) else units.percent(x) if x >= 0 else f"-{units.percent(-x)}"


def exceeds(found: Validation) -> list[tuple[str, str, str, int]]:
    """Kind, device, rule, and the number of rows that are below their lower bound by this rule; the most
    frequent come first.
    """
    counts = Counter((row.kind, row.device, row.exceeds) for row in found.exceeding)
    return sorted(((*about, n) for about, n in counts.items()), key=lambda x: (-x[3], x[:3]))


def scope(found: Validation) -> str:
    """One line with the number of estimated rows."""
    rows = {(r.file, r.row) for r in found.rows} | {(a.file, a.row) for a in found.amounts}
    total = len(rows) + len(found.refused) + len(found.problems)
    said = [f"{len(rows):,} of {total:,} rows priced"]
    said += [f"{len(found.refused):,} refused"] if found.refused else []
    said += [f"{len(found.problems):,} unreadable"] if found.problems else []
    return ", ".join(said)


def coverage_lines(found: Validation) -> list[list[str]]:
    """Cells of the table of bands."""
    return [
        [line.of, line.basis, f"{line.n:,}", _share(line.share), _share(line.twice)]
        for line in found.coverage
    ]


def more(found: Validation) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """The tables after the first: rows within their bands, rows below their bound, rejected rows."""
    faster = [[*words, f"{n:,}"] for *words, n in exceeds(found)]
    refused = [[kind, reason, spans(n, 3), f"{len(n):,}"] for kind, reason, n in found.reasons()]
    tables: list[tuple[tuple[str, ...], list[list[str]]]] = [
        (("of", "basis", "rows", "within ±", "within twice ±"), coverage_lines(found)),
        (("kind", "device", "measured below ideal, because", "rows"), faster),
        (("kind", "refused, because", "row numbers", "rows"), refused),
    ]
    memory = ("term", "engine", "n", "MAPE", "bias", "worst")
    sums = [[m, e, f"{n:,}", *map(_share, off)] for m, e, n, *off in memory_totals(found.amounts)]
    tables.insert(0, (memory, sums))
    return [(headings, rows) for headings, rows in tables if rows]


@table.table_of(of=Validation)
def shown(found: Validation, by: Sequence[str] = BY) -> Any:
    """The tables of errors, of rows below their bound, and of rejected rows."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(f"{scope(found)}, cost model {found.cost_model}")]
    kept = [*range(len(by)), *(len(by) + HEADINGS.index(name) for name in TERMINAL)]
    lines = [[line[n] for n in kept] for line in group_lines(found, by)]
    parts += table.sections([*by, *TERMINAL], lines, len(by))
    for headings, rows in more(found):
        below = table.columns(headings, NUMBERS, [h for h in headings[1:] if h not in NUMBERS])
        for row in rows:
            table.add(below, row)
        parts += ["", below]
    return Group(*parts)


def pictures(found: Validation, folder: Path) -> list[Path]:
    """Draw each plot for each kind of rows and metric as PNG; return the written files."""
    kinds: dict[tuple[str, str], list[ValidationRow]] = {}
    for row in found.measured:
        kinds.setdefault((row.kind, row.metric), []).append(row)
    written: list[Path] = []
    for (kind, metric), rows in kinds.items():
        measured, predicted = np.array([(r.measured_s, r.predicted_s) for r in rows]).T
        series = [f"{r.device}, {r.engine}" if r.engine else r.device for r in rows]
        times = validation.ValidationTimes(series, [r.row for r in rows], measured, predicted)
        name, title = re.sub(r"[^\w.-]+", "-", f"{kind}-{metric}"), f"{kind}, {metric}: {found.cost_model}"
        written += validation.draw(folder, name, title, times, each=kind == "chat")
    return written
