"""A context manager that pauses the cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """Look for no cycles inside, where much is made and all of it is kept: looking took a fifth of a search.

    What is held by nothing goes at once as ever; only cycles wait until the end.

    >>> with pause_gc():
    ...     print(gc.isenabled())
    False
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
