"""What others wrote: read up to a budget, and refused in one line by the first limit that it passes."""

from __future__ import annotations

import ast
import os
import re
import warnings
from pathlib import Path

from .dataclass import dataclass
from .errors import UnreadableError

_PIECE = 1 << 20


@dataclass(frozen=True)
class Budget:
    """The most that is taken of one text: bytes, values in it, how deep they nest, digits in a row.

    What an alias stands for counts as often as it is used.
    """

    bytes: int
    nodes: int
    depth: int
    digits: int = 400  # no number of a model or machine has more, and Python's own limit is 4,300


def contents(path: str | os.PathLike[str], budget: Budget) -> bytes:
    """The bytes of a file; `UnreadableError` if it cannot be read, or is larger than the budget."""
    try:
        with Path(path).expanduser().open("rb") as stream:
            data = bytearray()  # of a budget of gigabytes no more than there is
            while piece := stream.read(min(_PIECE, budget.bytes + 1 - len(data))):
                data += piece
    except (OSError, ValueError, RuntimeError) as error:  # a name with a NUL, an unknown ~user
        raise UnreadableError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > budget.bytes:
        raise UnreadableError(f"too large, of more than {budget.bytes:,} bytes")
    return bytes(data)


def decoded(data: bytes, budget: Budget) -> str:
    """Bytes as text; `UnreadableError` if they are no UTF-8, pass the budget, or hold a long number."""
    if len(data) > budget.bytes:
        raise UnreadableError(f"too large, of more than {budget.bytes:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8 text (byte {error.start})") from None
    check_digits(text, budget.digits)
    return text


def check_digits(text: str, most: int) -> None:
    """`UnreadableError` for a number of more than `most` digits."""
    found = re.search(rf"\d{{{most + 1}}}", text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        where = f" in line {line}" if "\n" in text.strip() else ""
        raise UnreadableError(f"a number of more than {most} digits{where}")


def expression(text: str) -> ast.expr:
    """The tree of a Python expression, which nothing runs; `SyntaxError` too where Python would only warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of 1and, which would stand on stderr
        return ast.parse(text.strip(), mode="eval").body
