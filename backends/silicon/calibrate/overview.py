"""Fits and their errors as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmir.backends.cost.kernels import Host, parameters
from llmir.backends.export import table
from llmir.hw.calibration import digits

from .refit import Refit

ERRORS = ("mape", "median", "bias", "p90")


@table.printed(of=Refit)
def shown(found: Refit) -> Any:
    """Rows of kernels, and of the hosts that were fitted with them or alone."""
    kernels, hosts = found.kernels, found.hosts
    tables = [*([_kernels(kernels)] if kernels else []), *([_hosts(hosts)] if hosts else [])]
    return table.stack(*(part for each in tables for part in (each, "")))


def _percents(row: Mapping[str, Any], *names: str) -> list[str]:
    return [f"{100 * row[name]:.1f}%" for name in names]


def _kernels(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    names = ("device", "engine", "family", "parameters", "n", "groups", "set_apart")
    headings = (*names[:4], "rows", "groups", "set apart")
    errors = ("mean", "median", "bias", "p90", "ideal")
    shown = table.columns((*headings, *errors), (*headings[3:], *errors))
    for row in rows:
        about = (str(row[name]) for name in names)
        table.add(shown, (*about, *_percents(row, *ERRORS, "ideal_mape")))
    legend = "errors on shapes left out of the fit; ideal: the mean error of the roofline"
    return Group(shown, "", legend)


def _hosts(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    known = parameters(Host)
    headings = ("engine", "models", "rows", "mean", "median", "bias", "p90", *(p.name for p in known))
    shown = table.columns(headings, headings[1:])
    for row in rows:
        values = [digits(row[p.name]) for p in known]
        table.add(
            shown, (row["engine"], f"{row['models']}", f"{row['n']:,}", *_percents(row, *ERRORS), *values)
        )
    meanings = table.pairs([(p.name, p.unit or "ratio", p.meaning) for p in known])
    return Group(shown, "", "errors on models left out of the fit", "", meanings)
