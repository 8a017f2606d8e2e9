"""Sweeps as tables and files."""

from __future__ import annotations

import io
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from llmir.backends.export import jsonio, table, units
from llmir.backends.search.axes import POINTS
from llmir.backends.search.figures import SHARES
from llmir.backends.search.sweep import Sweep
from llmir.views import exporter

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 40  # rows that a terminal shows


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
    names = [name for name, values in sweep.axes.items() if len(values) > 1 and name not in POINTS]
    points = [name for name in POINTS if len(sweep.axes.get(name, ())) > 1]
    figures = ("step", "±", "tokens/s", "peak", "fits", "bound", "$/Mtok")
    columns = table.columns((*names, *points, *figures), (*points, *figures))
    rows = [row for row in islice(sweep.rows(), SHOWN) if not row["refused"]]
    for row in rows:
        table.add(
            columns, (*(str(row[n] or "–") for n in names), *(f"{row[n]:,}" for n in points), *_cells(row))
        )
    fixed = {n: v[0] for n, v in sweep.axes.items() if len(v) == 1 and v[0] is not None}
    words = [", ".join(f"{name} {value}" for name, value in fixed.items())] if fixed else []
    refused = {row: why for row, why in enumerate(sweep.columns["refused"]) if why}
    more = len(sweep) - min(len(sweep), SHOWN)
    words += [f"{more:,} more of {len(sweep):,} rows; -o FILE has all"] if more else []
    words += [f"{len(refused):,} refused, such as: {next(iter(refused.values()))}"] if refused else []
    return table.stack(*([columns] if rows else []), "", *words)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    bound = max(SHARES, key=lambda name: float(row[name]))
    usd = row["cost_usd_per_mtok"]
    return (
        units.time(row["time_s"]),
        "" if row["error"] is None else f"{100 * row['error']:.0f}%",
        units.count(row["batch"] * row["new"] / row["time_s"]),
        units.bytes(row["peak_memory_bytes"]),
        "yes" if row["fits"] else "no",
        bound.removesuffix("_share"),
        "" if usd is None else units.digits(usd),
    )
