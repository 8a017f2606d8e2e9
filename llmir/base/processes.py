"""Processes that end when they should: workers end with their parent, and commands end on SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

TERMINATED = 143  # the exit code, 128 + SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised in the main thread as an exception, so that a command cleans up as after Ctrl+C."""


def catch_termination() -> None:
    """Raise `Terminated` on SIGTERM. Call it from the main thread of a command."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def start_worker() -> None:
    """Prepare a child process: it ignores Ctrl+C, which its parent handles, and it ends when its parent
    ends.
    """
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    """End this process when its parent ends for any reason; then the parent's pipe is closed."""
    from multiprocessing import connection

    connection.wait([sentinel])
    os._exit(1)
