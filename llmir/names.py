"""Names people type: matched without case, dashes or organisation, suggested when near, shown on one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def normalize(name: str) -> str:
    """The form in which two spellings of a name are compared.

    >>> normalize("meta-llama/Llama-3.1-8B") == normalize("llama3.1_8b")
    True
    """
    return "".join(c for c in name.rsplit("/", 1)[-1].lower() if c.isalnum() or c == ".")


def stored(param: str) -> tuple[str, int | None]:
    """The tensor in a checkpoint that a weight is, or is a piece of, and which one from the top.

    `[0/kv_heads]` is the first piece of the rows of each head, `[0/heads]` of each head of queries.

    >>> stored("layers.0.qkv_proj.weight[1]"), stored("layers.0.o_proj.weight")
    (('layers.0.qkv_proj.weight', 1), ('layers.0.o_proj.weight', None))
    >>> stored("layers.0.qkvz.weight[3/kv_heads]")
    ('layers.0.qkvz.weight', 3)
    """
    name, bracket, inside = param.removesuffix("]").rpartition("[")
    piece = inside.partition("/")[0]
    return (name, int(piece)) if bracket and piece.isdecimal() else (param, None)


def suggest(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """`; did you mean A, B?` for the known names nearest to `name`, or an empty string."""
    spellings = {normalize(k): k for k in known}
    near = difflib.get_close_matches(normalize(name), spellings, n=limit, cutoff=0.55)
    return f"; did you mean {', '.join(spellings[n] for n in near)}?" if near else ""


def plain(text: str, limit: int = 100) -> str:
    """`text` on one line: without control characters, and cut to `limit`.

    >>> plain("my\\nmodel\\x1b[31m"), plain("a long name", limit=5)
    ('mymodel[31m', 'a lo…')
    """
    kept = "".join(c for c in text if c.isprintable()).strip()
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def spans(numbers: Iterable[int], most: int) -> str:
    """Rising numbers in words, those in a row as a span, up to so many of them.

    >>> spans([3, 4, 5, 9, 11], 2), spans([7], 2)
    ('3–5, 9, …', '7')
    """
    ends: list[list[int]] = []
    for n in numbers:
        if ends and n == ends[-1][1] + 1:
            ends[-1][1] = n
        else:
            ends.append([n, n])
    words = [f"{first}–{last}" if last > first else f"{first}" for first, last in ends]
    return ", ".join([*words[:most], *(["…"] if len(words) > most else [])])
