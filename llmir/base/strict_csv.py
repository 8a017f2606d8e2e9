"""CSV up to a budget: so many lines, each so long, of so many cells."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from .errors import UnreadableError
from .names import plain

# The largest measured table has 24,717 rows of 700 characters at most, in 20 columns.
LINES = 1_000_000
LENGTH = 100_000
COLUMNS = 1_000


@contextmanager
def table(path: Path, more: str = "") -> Iterator[csv.DictReader[str]]:
    """The rows of a file by its header, what is beyond the header under `more`; `UnreadableError` ends it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(_lines(file), restkey=more)
            header = reader.fieldnames or []
            if len(header) > COLUMNS:
                raise UnreadableError(f"{len(header):,} columns, {COLUMNS:,} are the most")
            if not any(header):
                raise UnreadableError("the file is empty")
            yield reader
    except OSError as error:
        raise UnreadableError(f"cannot be read, {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UnreadableError(f"not readable as CSV, {plain(str(error))}") from None


def _lines(file: TextIO) -> Iterator[str]:
    for number in range(1, LINES + 2):
        line = file.readline(LENGTH + 1)
        if not line:
            return
        if len(line) > LENGTH:
            raise UnreadableError(f"line {number:,} has more than {LENGTH:,} characters")
        yield line
    raise UnreadableError(f"more than {LINES:,} lines")


def inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: text that begins as one stands after an apostrophe.

    >>> [inert(x) for x in ("=1+1", "@SUM(A1)", "-0.5", -0.5, "+3e5", "q_proj", None)]
    ["'=1+1", "'@SUM(A1)", '-0.5', -0.5, '+3e5', 'q_proj', None]
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
