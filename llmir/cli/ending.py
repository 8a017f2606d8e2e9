"""How a command ends: with an exit code and, if something is wrong, one line on stderr."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import click

from llmir.base.errors import LlmirError
from llmir.base.registry import blame

BAD_INPUT, OUR_BUG, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141

LONGEST = 2000  # characters of a message


class Closed(io.TextIOBase):
    """A standard stream that was closed before the command started: it is not read, and takes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, *_: object) -> Any:
        """`OSError`, and so does `write`."""
        raise OSError(errno.EBADF, "it is closed", self.name)

    write = read

    @property
    def buffer(self) -> Closed:
        """The same for bytes."""
        return self


def streams() -> None:
    """Standard streams that are there, whatever was closed, and that show a character they lack as `?`."""
    sys.stdin, sys.stdout = sys.stdin or Closed("stdin"), sys.stdout or Closed("stdout")
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def guard(run: Callable[[], Any]) -> int:
    """What `run()` returns as an exit code; errors become a line and theirs."""
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:  # nobody reads on, as after `head`
        drop(sys.stdout)
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        drop(sys.stdout)
        message, code = _said(error)
        line("error", message)
        return code


def echo(text: str | bytes, **how: Any) -> None:
    """Write to stdout."""
    try:
        click.echo(text, **how)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


def drop(stream: TextIO) -> None:
    """What a stream does not take is dropped: Python would complain about it at exit."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _said(error: BaseException) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    match error:
        case click.ClickException():
            return _lower(error.format_message()), BAD_INPUT
        case LlmirError():
            return str(error), error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return str(error) or "interrupted", INTERRUPTED
    words = blame(error) or _beyond(error)
    where = "a bug in llmir; `llmir --traceback …` shows where"
    return (words, BAD_INPUT) if words else (f"{type(error).__name__}: {error} ({where})", OUR_BUG)


def _beyond(error: BaseException) -> str | None:
    """What the machine could not do, and no change of the program would help; None for any other error."""
    match error:
        case OSError():
            return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
        case MemoryError():
            return f"not enough memory: {error}".removesuffix(": ")
        case RecursionError():
            return "nested too deeply for Python's stack"
        case OverflowError():
            return f"a number is too large to compute with: {error}"
    return None


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:] if not message[:2].isupper() else message


def line(label: str, message: str) -> None:
    """`label: message` on stderr, whatever the message holds: one line, no control characters."""
    text = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    try:
        click.echo(f"{label}: {text if len(text) <= LONGEST else f'{text[: LONGEST - 1]}…'}", err=True)
    except OSError:  # nobody can be told
        drop(sys.stderr)
