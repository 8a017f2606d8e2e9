"""Fits and their errors, as `llmir calibrate` shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import output

if TYPE_CHECKING:
    from pathlib import Path

    from llmir.backends.silicon.calibrate import Case
    from llmir.backends.silicon.machines import Machines


def fit(
    folder: Path,
    machines: Machines,
    form: str,
    wanted: Callable[[str, Case], bool] = lambda format, case: True,
) -> list[Case]:
    """The cases of a folder's tables, with their errors printed; what cannot be used becomes notes."""
    from llmir.backends.silicon import calibrate
    from llmir.backends.silicon.tables import load_all

    found = calibrate.fitted(load_all(folder, output.note), machines, wanted, output.note)
    if found:
        lines = [_row(case) for case in found]
        output.emit_rows(lines, form, None, _shown(lines))
    return found


def _row(case: Case) -> dict[str, Any]:
    errors = case.errors
    return {
        "device": case.device.name,
        "engine": case.engine,
        "family": case.name,
        "parameters": case.parameters,
        "n": errors.n,
        "groups": len(set(case.groups)),
        "set_apart": case.hot,
        "mape": errors.mape,
        "median": errors.median,
        "bias": errors.bias,
        "p90": errors.p90,
        "ideal_mape": case.ideal_errors.mape,
    }


def _shown(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.console import Group

    from llmir.backends.export import table

    headings = ("device", "engine", "family", "parameters", "rows", "groups", "set apart")
    errors = ("mean", "median", "bias", "p90", "ideal")
    shown = table.columns((*headings, *errors), (*headings[3:], *errors))
    for row in rows:
        *about, mape, median, bias, p90, ideal = row.values()
        percents = [f"{100 * e:.1f}%" for e in (mape, median, bias, p90, ideal)]
        table.add(shown, (*map(str, about), *percents))
    legend = "errors on shapes left out of the fit; ideal: the mean error of the roofline"
    return Group(shown, "", legend)
