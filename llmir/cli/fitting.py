"""Fits and their errors, as `llmir calibrate` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmir.errors import InputError

from . import output

if TYPE_CHECKING:
    from pathlib import Path

    from llmir.backends.silicon.calibrate import Case, Errors, Family, Machines


def cases(families: Sequence[Family], folder: Path, machines: Machines) -> list[Case]:
    """The cases of these families, as far as the folder has their files; bad rows become notes."""
    from llmir.backends.silicon import calibrate

    found = []
    files = dict.fromkeys(family.file for family in families)
    if not any((folder / file).exists() for file in files):
        raise InputError(f"{folder}: has none of {', '.join(files)}")
    for family in families:
        if (folder / family.file).exists():
            some, problems = calibrate.cases(family, folder, machines)
            output.note(*problems)
            found += some
    for file in files:
        if (folder / file).exists():
            output.note(*calibrate.unfitted(file, folder))
    return found


def judge(found: Sequence[Case], form: str) -> list[tuple[Case, Errors]]:
    """The cases with their errors on shapes left out of the fit, which are printed."""
    judged = [(c, c.errors()) for c in found]
    rows = [_row(c, e) for c, e in judged]
    output.emit_rows(rows, form, None, _shown(rows))
    return judged


def _row(case: Case, errors: Errors) -> dict[str, Any]:
    return {
        "device": case.device.name,
        "engine": case.engine,
        "family": case.family.name,
        "parameters": case.parameters,
        "n": errors.n,
        "groups": len(set(case.groups)),
        "set_apart": len(case.hot),
        "mape": errors.mape,
        "median": errors.median,
        "bias": errors.bias,
        "p90": errors.p90,
        "ideal_mape": case.ideal_errors().mape,
    }


def _shown(rows: list[dict[str, Any]]) -> Any:
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
