"""Fits and their errors, as `llmir calibrate` shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from . import output

if TYPE_CHECKING:
    from llmir.backends.silicon.calibrate import Refit


def show(found: Refit, form: str) -> None:
    """Rows of kernels, and of the hosts that were fitted with them or alone."""
    from llmir.backends.silicon.calibrate import overview

    kernels, hosts = found.kernels, found.hosts
    rows = [*kernels, *({"device": None, "family": "host", **host} if kernels else host for host in hosts)]
    output.emit_rows(rows, form, None, overview.shown(found))


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
