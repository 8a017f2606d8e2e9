"""Traces of requests, as publishers write them: when each came, and its tokens.

| who | file | columns or keys |
|---|---|---|
| Azure | CSV | `TIMESTAMP, ContextTokens, GeneratedTokens` |
| vidur | CSV | `arrived_at, num_prefill_tokens, num_decode_tokens`, in seconds |
| llmir | CSV | `arrival_s, prompt, generate`, what `--requests-out` writes |
| Mooncake, AIPerf | JSON lines | `timestamp` in ms, `input_length, output_length`, maybe `hash_ids` |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.workload import LONGEST
from llmir.convert import shown
from llmir.errors import InputError, UnreadableError
from llmir.names import plain
from llmir.reading import Budget, contents, decoded
from llmir.strict_csv import table

from .load import Load

BUDGET = Budget(bytes=2 << 30, nodes=0, depth=0)
FIRST = 5  # wrong rows that an error names


class Form(NamedTuple):
    """The names of a row's time, prompt and answer, and the seconds of a time."""

    time: str
    prompt: str
    generate: str
    seconds: Callable[[Any], float]


_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|[+-]\d\d:\d\d)?")


def _clock(text: Any) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`; a zone does not count, as only differences do."""
    if not (found := _CLOCK.fullmatch(str(text).strip())):
        raise ValueError
    return datetime.fromisoformat(found[1]).replace(tzinfo=timezone.utc).timestamp() + float(found[2] or 0)


CSV = (
    Form("TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock),
    Form("arrived_at", "num_prefill_tokens", "num_decode_tokens", float),
    Form("arrival_s", "prompt", "generate", float),
)
JSON = Form("timestamp", "input_length", "output_length", lambda ms: float(ms) / 1000)


def trace(path: Path, speed: float = 1.0) -> Load:
    """The requests of a file, `speed` times as fast; the first comes at 0.

    InputError for a file that is none of these, and for rows that are not sorted, or have cells that are
    missing, negative or no numbers: the first five, by line.
    """
    name = plain(str(path))
    try:
        rows = list(_json(path) if path.suffix.lower() in (".jsonl", ".json") else _csv(path))
    except UnreadableError as error:
        raise InputError(f"{name}: {error}") from None
    wrong = [f"line {line}: {row}" for line, row in rows if isinstance(row, str)]
    found = [(line, row) for line, row in rows if not isinstance(row, str)]
    unsorted = (line for (_, a), (line, b) in pairwise(found) if b[0] < a[0])
    wrong += [f"line {line}: comes before the line above" for line in unsorted]
    if wrong:
        more = f"; and {len(wrong) - FIRST:,} more" if len(wrong) > FIRST else ""
        raise InputError(f"{name}: {'; '.join(wrong[:FIRST])}{more}")
    if not found:
        raise InputError(f"{name}: has no requests")
    times, prompts, answers, hashes = zip(*(row for _, row in found), strict=True)
    time, prompt, generate = np.array(times), np.array(prompts), np.array(answers)
    known = hashes if any(hashes) else ()
    return Load(prompt, generate, np.zeros_like(prompt), (time - time[0]) / speed, None, known)


Row = tuple[float, int, int, tuple[int, ...]]
Lines = Iterator[tuple[int, "Row | str"]]  # and in place of a row what is wrong with it


def _csv(path: Path) -> Lines:
    with table(path) as reader:
        header = [str(name) for name in reader.fieldnames or ()]
        form = next((f for f in CSV if {*f[:3]} <= {*header}), None)
        if form is None:
            known = "; ".join(", ".join(f[:3]) for f in CSV)
            raise UnreadableError(f"columns {plain(', '.join(header))} are no trace; known are {known}")
        for row in reader:
            yield reader.line_num, _row(form, row)


def _json(path: Path) -> Lines:
    for number, text in enumerate(decoded(contents(path, BUDGET), BUDGET).splitlines(), 1):
        if text.strip():
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            yield number, _row(JSON, row) if isinstance(row, dict) else f"no JSON object, {shown(text)}"


def _row(form: Form, row: Mapping[str, Any]) -> Row | str:
    """A row's time and tokens, or what is wrong with it."""
    cells: list[Any] = [row.get(name) for name in form[:3]]
    if missing := [name for name, cell in zip(form[:3], cells, strict=True) if cell in (None, "")]:
        return f"{missing[0]} is missing"
    try:
        time = form.seconds(cells[0])
        if not 0 <= time < float("inf"):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        return f"{form.time} is {shown(cells[0])}, expected a time from 0 up"
    tokens = []
    for name, cell in zip(form[1:3], cells[1:], strict=True):
        try:
            count = float(cell)
        except (ValueError, TypeError, OverflowError):
            count = -1.0
        if not (1 <= count <= LONGEST and count.is_integer()):
            return f"{name} is {shown(cell)}, expected tokens from 1 to {LONGEST:,}"
        tokens.append(int(count))
    hashes = row.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple) or not all(type(each) is int for each in hashes):
        return f"hash_ids is {shown(hashes)}, expected a list of integers"
    return time, tokens[0], tokens[1], tuple(hashes)
