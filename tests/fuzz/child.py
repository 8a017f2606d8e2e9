"""One input under limits of time and memory, and what came of it."""

from __future__ import annotations

import re
import resource
import signal
import traceback
import warnings
from typing import Any, NamedTuple

from llmir.base.errors import LlmirError

from .reader import BrokenError, Reader

MEMORY = 200 * 2**20  # bytes, beyond what the process has before
_LONGEST = 2000  # characters of a message


class Slow(BaseException):
    """It took too long; no reader can catch this by accident."""


class Outcome(NamedTuple):
    """`broken` breaks the contract; `kind` is alike for inputs that end in one place of the code."""

    broken: bool
    kind: str
    said: str


def limit_memory() -> None:
    """From now on this process gets so much more memory, and no core files."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _slow(*_: Any) -> None:
    raise Slow


def attempt(reader: Reader, data: bytes) -> Outcome:
    """What the reader makes of it: a result, one of llmir's errors, or a breach of contract."""
    signal.signal(signal.SIGPROF, _slow)
    signal.setitimer(signal.ITIMER_PROF, reader.seconds)
    try:
        with warnings.catch_warnings():  # they would stand on stderr, beside the one line
            warnings.simplefilter("error")
            warnings.simplefilter("default", UserWarning)  # llmir's own are notes
            reader.take(data)
        outcome = Outcome(False, "result", "")
    except LlmirError as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        said, place = str(error), _place(error)
        if len(said.splitlines()) == 1 and len(said) <= _LONGEST:
            return Outcome(False, f"{type(error).__name__} {place} {_words(said)}", said)
        outcome = Outcome(True, f"message {place}", said[:300])
    except Slow as error:
        outcome = Outcome(True, "slow", f"takes more than {reader.seconds:g} s, in {_place(error)}")
    except MemoryError as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome = Outcome(True, "memory", f"takes more than {MEMORY >> 20} MB, in {_place(error)}")
    except BrokenError as error:
        outcome = Outcome(True, f"broken {error}"[:60], str(error))
    except Exception as error:  # the contract: no other than llmir's own
        outcome = Outcome(True, f"{type(error).__name__} {_place(error)}", f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return outcome


def _words(said: str) -> str:
    """A message without what it was said of."""
    return re.sub(r"""'[^']*'|"[^"]*"|[\d,.]+|[@%$][^\s:]+""", "", said)[:50]


def _place(error: BaseException) -> str:
    """The last line of llmir that was reached, by the first of errors that led to another."""
    while error.__context__ is not None:
        error = error.__context__
    ours = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if "/llmir/" in f.filename and "/tests/" not in f.filename
    ]
    if not ours:
        return "?"
    last = ours[-1]
    return f"{last.filename.rpartition('/llmir/')[2]}:{last.lineno} {last.name}"
