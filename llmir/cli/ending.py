"""How a command ends: with an exit code and, if something is wrong, one line on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from llmir.errors import LlmirError
from llmir.plugins import blame

BAD_INPUT, OUR_BUG, INTERRUPTED, BROKEN_PIPE = 2, 70, 130, 141

LONGEST = 2000  # characters of a message


def guard(run: Callable[[], Any]) -> int:
    """What `run()` returns as an exit code; errors become a line and theirs."""
    try:
        code = run()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return nobody_reads()
    except (Exception, KeyboardInterrupt) as error:
        message, code = _said(error)
        line("error", message)
        return code


def nobody_reads() -> int:
    """The exit code when stdout was closed early, as `head` does."""
    # What is still in the buffer has nowhere to go, and Python would complain about it at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _said(error: BaseException) -> tuple[str, int]:
    """What is said of an error, and the exit code."""
    match error:
        case click.ClickException():
            return _lower(error.format_message()), BAD_INPUT
        case LlmirError():
            return str(error), error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", INTERRUPTED
    if words := blame(error):
        return words, BAD_INPUT
    match error:
        case OSError():
            return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), BAD_INPUT
    where = "a bug in llmir; `llmir --traceback …` shows where"
    return f"{type(error).__name__}: {error} ({where})", OUR_BUG


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:] if not message[:2].isupper() else message


def line(label: str, message: str) -> None:
    """`label: message` on stderr, whatever the message holds: one line, no control characters."""
    text = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
    click.echo(f"{label}: {text if len(text) <= LONGEST else f'{text[: LONGEST - 1]}…'}", err=True)
