"""Limits on the work of a call: work that takes long is announced, and work that takes too long or too much
memory is refused.

Work is estimated before most of it is done, in one of two ways: from sizes (`check_work`), or from the time
of the first of many equal pieces (`Pace`). Commands have a limit of ten minutes and 2 GB, which `--max-work`
changes. Python functions have the limit of `max_work`; by default they have none, and only announce long
work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from .errors import WorkError

ANNOUNCED_S = 5.0  # longer work is announced
PILOT_S = 0.5  # seconds after which the pace of equal pieces of work is known


class Limit(NamedTuple):
    """The largest allowed work: seconds, and bytes of memory."""

    seconds: float
    bytes: float


COMMAND = Limit(600.0, 2e9)
NONE = Limit(float("inf"), float("inf"))
_LIMIT: ContextVar[Limit] = ContextVar("llmir_max_work", default=NONE)


@contextmanager
def max_work(limit: Limit) -> Iterator[None]:
    """Limit the work of all calls in this context."""
    before = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def check_work(what: str, advice: str, *, seconds: float = 0.0, memory: float = 0.0) -> None:
    """Announce long work on the logger `llmir`; raise WorkError if it exceeds the limit.

    Args:
        what: The work, such as "a simulation of 10,000,000 requests".
        advice: How to reduce it, such as "simulate fewer requests".
        seconds: The estimated time.
        memory: The estimated peak memory in bytes.
    """
    limit = _LIMIT.get()
    needs = ""
    if seconds > limit.seconds:
        needs = f"takes about {duration(seconds)}, more than {duration(limit.seconds)}"
    elif memory > limit.bytes:
        needs = f"needs about {size(memory)} of memory, more than {size(limit.bytes)}"
    if needs:
        raise WorkError(f"{what} {needs}; {advice}, or raise --max-work")
    if seconds > ANNOUNCED_S:
        logging.getLogger("llmir").info("%s takes about %s", what, duration(seconds))


class Pace:
    """Check the total time of equal pieces of work as soon as the first pieces show how long one takes.

    The time counts from the first `step`. Later estimates exclude the first piece, because it also computes
    results that the others share.
    """

    def __init__(self, what: str, advice: str, count: int) -> None:
        self.what, self.advice, self.count = what, advice, count
        self._done, self._start, self._checked = 0, time.process_time(), False

    def step(self) -> None:
        """Count a piece; call it either at the start of each piece or at the end of each."""
        self._done += 1
        if self._done == 1:
            self._start = time.process_time()
            return
        spent, pieces = time.process_time() - self._start, self._done - 1
        if not self._checked and (spent > PILOT_S or pieces >= self.count // 10):
            self._checked = True
            check_work(self.what, self.advice, seconds=spent / pieces * self.count)


def duration(seconds: float) -> str:
    """Format a time with a suitable unit.

    >>> duration(8.3), duration(100), duration(5000), duration(300_000)
    ('8 s', '100 s', '83 min', '83 h')
    """
    for most, unit, name in ((120, 1, "s"), (7200, 60, "min")):
        if seconds <= most:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:,.0f} h"


def size(number: float) -> str:
    """Format a number of bytes in GB.

    >>> size(2e9), size(3.24e10)
    ('2 GB', '32 GB')
    """
    return f"{number / 1e9:,.{0 if number >= 1e9 else 1}f} GB"
