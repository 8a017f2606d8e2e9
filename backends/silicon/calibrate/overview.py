"""Fits and their errors as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from llmir.backends.export import table
from llmir.backends.kernels.base import parameters
from llmir.backends.kernels.engine_cpu import Host
from llmir.hw.calibration import digits

from .refit import Refit

SPREAD = "parameters, their least and most"
ERRORS = ("mape", "median", "bias", "p90")


@table.printed(of=Refit)
def shown(found: Refit) -> Any:
    """Rows of kernels, and of the hosts that were fitted with them or alone."""
    kernels, hosts = found.kernels, found.hosts
    tables = [
        *([_kernels(kernels), _spreads(found.spreads)] if kernels else []),
        *([_hosts(hosts), _runs(found.runs)] if hosts else []),
    ]
    return table.stack(*(part for each in tables for part in (each, "")))


def _percents(row: Mapping[str, Any], *names: str) -> list[str]:
    known = (row[name] for name in names)
    return ["–" if share is None or share != share else f"{100 * share:.1f}%" for share in known]  # noqa: PLR0124 (not a number)


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


def _spreads(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    shown = table.columns(("device", "engine", "family", SPREAD), (), (SPREAD,))
    for about, some in groupby(rows, lambda row: (row["device"], row["engine"], row["family"])):
        table.add(shown, (*about, ", ".join(map(_spread, some))))
    return Group(shown, "", "least and most of fits that leave a fifth of the groups out")


def _spread(row: Mapping[str, Any]) -> str:
    value, low, high = (digits(row[name]) for name in ("value", "low", "high"))
    return f"{row['parameter']} {value}" + (f" ({low} to {high})" if low != high else "")


LEFT = ("mape", "median", "bias", "model_mape", "model_median", "tp_mape", "tp_median")
_HEADS = ("rows", "mean", "median", "bias", "model", "(median)", "tp", "(median)")


def _hosts(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    known = parameters(Host)
    about = ("engine", "versions", "models")
    shown = table.columns((*about, *_HEADS, "other versions"), (about[-1], *_HEADS, "other versions"))
    fitted = table.columns((*about[:2], *(p.name for p in known)), [p.name for p in known])
    for row in rows:
        whose = [str(row[name]) for name in about]
        table.add(shown, (*whose, f"{row['n']:,}", *_percents(row, *LEFT, "other_versions")))
        table.add(fitted, (*whose[:2], *(digits(row[p.name]) for p in known)))
    meanings = table.pairs([(p.name, p.unit or "ratio", p.meaning) for p in known])
    legend = "errors on all runs; without the model, or the tp, in the fit; on the engine's other versions"
    return Group(shown, "", legend, "", fitted, "", meanings)


def _runs(rows: Sequence[Mapping[str, Any]]) -> Any:
    about = ("engine", "versions", "device", "tp")
    shown = table.columns((*about, *_HEADS), (about[-1], *_HEADS))
    for row in rows:
        table.add(shown, (*(str(row[name]) for name in about), f"{row['n']:,}", *_percents(row, *LEFT)))
    return shown
