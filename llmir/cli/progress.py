"""How far long work is: one line on stderr, where a terminal shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

SOON_S = 1.0  # work that is done by then needs no line


@contextmanager
def bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """What is told what is being done, how much of it is, and of how much, if that is known."""
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    shown = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True))
    task, began = shown.add_task("", total=None), time.monotonic()

    with ExitStack() as stack:

        def progress(what: str, done: int, of: int | None) -> None:
            late = time.monotonic() - began > SOON_S
            if not shown.live.is_started and late and sys.stderr.isatty():
                stack.enter_context(shown)
            shown.update(task, completed=done, total=of, description=what)

        yield progress
