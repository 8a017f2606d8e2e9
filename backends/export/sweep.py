"""Sweeps as tables and files."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from llmir.backends.search.axes import POINTS
from llmir.backends.search.figures import SHARES
from llmir.backends.search.sweep import Sweep
from llmir.base.formats import exporter

from . import json as jsonio
from . import spending, table, units, wording

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 40  # rows that a terminal shows
REASONS = 3  # for which rows are refused
MOST_AXES = 3
_FIGURES = ("step", "±", "tokens/s", "peak", "fits", "bound")
_SPENT = {"cost_usd_per_mtok": "$/Mtok", "energy_j_per_token": "J/tok ≤"}


@exporter("csv", ".csv", of=Sweep)
def to_csv(sweep: Sweep) -> str:
    """A line for each row, in SI units."""
    return jsonio.to_csv(list(sweep.rows()))


@exporter("jsonl", ".jsonl", of=Sweep)
def to_json_lines(sweep: Sweep) -> str:
    """An object a line."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in sweep.rows())


@exporter("parquet", ".parquet", of=Sweep)
def to_parquet(sweep: Sweep) -> bytes:
    """A Parquet file (pyarrow must be installed)."""
    columns, out = sweep.to_arrow(), io.BytesIO()
    import pyarrow.parquet

    pyarrow.parquet.write_table(columns, out)
    return out.getvalue()


@exporter("arrow", ".arrow", ".feather", of=Sweep)
def to_arrow(sweep: Sweep) -> bytes:
    """An Arrow file, as Feather reads it (pyarrow must be installed)."""
    columns, out = sweep.to_arrow(), io.BytesIO()
    import pyarrow

    with pyarrow.ipc.new_file(out, columns.schema) as file:
        file.write_table(columns)
    return out.getvalue()


@table.printed(of=Sweep)
def shown(sweep: Sweep) -> RenderableType:
    """The first rows: axes of several values, time, memory, what bounds most, price; and what was refused."""
    from rich.text import Text

    names = [name for name, values in sweep.axes.items() if len(values) > 1 and name not in POINTS]
    points = [name for name in POINTS if len(sweep.axes.get(name, ())) > 1]
    rows = [row for row in islice(sweep.rows(), SHOWN) if not row["refused"]]
    spent = {name: title for name, title in _SPENT.items() if any(row[name] is not None for row in rows)}
    cells = [dict(zip((*_FIGURES, *spent.values()), _cells(row, spent), strict=True)) for row in rows]
    # A line of 80 columns holds three axes beside all figures; beyond, those that are equal are said once.
    many, few = len(names) + len(points) > MOST_AXES, len(rows) > 1
    equal = [n for n in _FIGURES if many and few and len({row[n] for row in cells}) == 1]
    figures = [name for name in (*_FIGURES, *spent.values()) if name not in equal]
    columns = table.columns((*names, *points, *figures), (*points, *figures), gap=1)
    for row, cell in zip(rows, cells, strict=True):
        at = (*(str(row[n] or "–") for n in names), *(f"{row[n]:,}" for n in points))
        table.add(columns, (*at, *(cell[name] for name in figures)))
    alike = [("all", ", ".join(f"{name} {cells[0][name]}" for name in equal))] if equal else []
    more = len(sweep) - min(len(sweep), SHOWN)
    words = [f"{more:,} more of {len(sweep):,} rows; -o FILE has all"] if more else []
    refused = Counter[str]()
    for part in sweep.parts:
        if part.refusals:
            refused[str(part.why)] += part.refusals
    words += [f"{n:,} refused: {why}" for why, n in refused.most_common(REASONS)]
    words += [f"{len(refused) - REASONS:,} more reasons; -o FILE has all"] if len(refused) > REASONS else []
    head = table.pairs(
        [*_head(sweep), *alike, *([("energy", spending.AT_MOST)] if "energy_j_per_token" in spent else [])]
    )
    return table.stack(Text(wording.plain(sweep.model), style="bold"), head, "", columns, "", *words)


def _head(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """What all rows share, and what prices them."""
    fixed = {name: values[0] for name, values in sweep.axes.items() if len(values) == 1}
    said = {name: value for name, value in fixed.items() if value is not None}
    if said:
        at = (
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
            for name, value in said.items()
        )
        yield "each", ", ".join(at)
    for i, basis in enumerate(sweep.basis):
        yield "" if i else "cost model", basis


def _cells(row: dict[str, Any], spent: Iterable[str]) -> tuple[str, ...]:
    bound = max(SHARES, key=lambda name: float(row[name]))
    return (
        units.time(row["time_s"]),
        "" if row["error"] is None else f"{100 * row['error']:.0f}%",
        units.count(row["batch"] * row["new"] / row["time_s"]),
        units.bytes(row["peak_memory_bytes"]),
        "yes" if row["fits"] else "no",
        bound.removesuffix("_share"),
        *("–" if row[name] is None else units.digits(row[name]) for name in spent),
    )
