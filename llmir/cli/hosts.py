"""`llmir calibrate --host`: what engines add to their kernels, fitted to whole models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmir.errors import InputError

from . import output

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmir.backends.silicon.calibrate import Overheads
    from llmir.hw import Device

TABLE = "e2e.csv"


def fit(
    folder: str,
    engine: str | None,
    form: str,
    target: str | None,
    known: Callable[[Device], Device] = lambda device: device,
) -> None:
    """Fit the hosts of all engines, or of one, whose file is then written."""
    from llmir import measured

    found = [o for o in measured.overheads(Path(folder) / TABLE, known) if engine in (None, o.engine)]
    if not found:
        raise InputError(f"{folder}: no runs of {engine} in {TABLE}")
    folder_of_all = bool(target) and not Path(str(target)).suffix
    if target and len(found) > 1 and not folder_of_all:
        names = ", ".join(o.engine for o in found)
        raise InputError(f"{target}: a file is of one engine, say which with --engine: {names}")
    rows = [_row(o) for o in found]
    output.emit_rows(rows, form, None, _shown(rows))
    for one in found if target else ():
        output.emit(_yaml(one), f"{target}/engines/{one.engine}.yaml" if folder_of_all else target)


def _row(o: Overheads) -> dict[str, Any]:
    e = o.errors
    errors = {"n": e.n, "mape": e.mape, "median": e.median, "bias": e.bias, "p90": e.p90}
    return {"engine": o.engine, "models": o.models, **errors, **vars(o.host)}


def _shown(rows: list[dict[str, Any]]) -> Any:
    from rich.console import Group

    from llmir.backends.cost.kernels import Host, parameters
    from llmir.backends.export import table

    known = parameters(Host)
    headings = ("engine", "models", "rows", "mean", "median", "bias", "p90", *(p.name for p in known))
    shown = table.columns(headings, headings[1:])
    for row in rows:
        errors = [f"{100 * row[e]:.1f}%" for e in ("mape", "median", "bias", "p90")]
        table.add(shown, (row["engine"], f"{row['models']}", f"{row['n']:,}", *errors, *_values(row)))
    meanings = table.pairs([(p.name, p.unit or "ratio", p.meaning) for p in known])
    return Group(shown, "", "errors on models left out of the fit", "", meanings)


def _values(row: dict[str, Any]) -> list[str]:
    from llmir.backends.cost.calibration import digits
    from llmir.backends.cost.kernels import Host, parameters

    return [digits(row[p.name]) for p in parameters(Host)]


def _yaml(o: Overheads) -> str:
    """A file of `hw/engines`, three significant digits a parameter."""
    from llmir.backends.cost.calibration import digits

    head = f'origin: "{o.engine} in whole runs of {o.models} models, {TABLE}"\nrows: {o.rows}\n'
    values = {"error_percent": 100 * o.errors.mape, **vars(o.host)}
    return head + "".join(f"{name}: {digits(value)}\n" for name, value in values.items())
