"""Fits and their errors, as `llmir calibrate` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from . import output

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate import Refit

ERRORS = ("mape", "median", "bias", "p90")


def show(found: Refit, form: str) -> None:
    """Rows of kernels, and of the hosts that were fitted with them or alone."""
    from rich.console import Group

    kernels, hosts = found.kernels, found.hosts
    tables = [*([_kernels(kernels)] if kernels else []), *([_hosts(hosts)] if hosts else [])]
    shown = Group(*(part for table in tables for part in (table, "")))
    rows = [*kernels, *({"device": None, "family": "host", **host} if kernels else host for host in hosts)]
    output.emit_rows(rows, form, None, shown)


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """What shows on stderr how many sizes are timed, from the first on."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    shown = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True))
    task = shown.add_task("measuring", total=None)

    with ExitStack() as stack:

        def progress(what: str, done: int, of: int) -> None:
            if not shown.live.is_started:
                stack.enter_context(shown)
            shown.update(task, completed=done, total=of, description=what)

        yield progress


def _percents(row: Mapping[str, Any], *names: str) -> list[str]:
    return [f"{100 * row[name]:.1f}%" for name in names]


def _kernels(rows: Sequence[Mapping[str, Any]]) -> Any:
    from rich.console import Group

    from llmir.backends.export import table

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

    from llmir.backends.cost.calibration import digits
    from llmir.backends.cost.kernels import Host, parameters
    from llmir.backends.export import table

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
