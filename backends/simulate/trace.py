"""Traces of requests, as publishers write them: when each came, and its tokens.

| who | file | columns or keys |
|---|---|---|
| Azure | CSV | `TIMESTAMP, ContextTokens, GeneratedTokens` |
| vidur | CSV | `arrived_at, num_prefill_tokens, num_decode_tokens`, in seconds |
| llmir | CSV | `arrival_s, prompt, generate`, maybe `cancel_tokens, cancel_s`, what `--requests-out` writes |
| Mooncake, AIPerf | JSON lines | `timestamp` in ms, `input_length, output_length`, maybe `hash_ids` |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.request.workload import LONGEST
from llmir.base.arguments import shown
from llmir.base.errors import InputError, UnreadableError
from llmir.base.names import plain
from llmir.base.reading import Budget, contents, decoded
from llmir.base.strict_csv import table

from .load import Load

BUDGET = Budget(bytes=2 << 30, nodes=0, depth=0)
FIRST = 5  # wrong rows that an error names


class Form(NamedTuple):
    """The names of a row's time, prompt and answer, and the seconds of a time; and of cancellations.

    Those are the tokens after which a client leaves, and the time at which it does.
    """

    time: str
    prompt: str
    generate: str
    seconds: Callable[[Any], float]
    cancel_tokens: str | None = None
    cancel_s: str | None = None


_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|[+-]\d\d:\d\d)?")


def _clock(text: Any) -> float:
    """Seconds of `2023-11-16 18:15:46.6805900`; a zone does not count, as only differences do."""
    if not (found := _CLOCK.fullmatch(str(text).strip())):
        raise ValueError
    return datetime.fromisoformat(found[1]).replace(tzinfo=timezone.utc).timestamp() + float(found[2] or 0)


CSV = (
    Form("TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock),
    Form("arrived_at", "num_prefill_tokens", "num_decode_tokens", float),
    Form("arrival_s", "prompt", "generate", float, "cancel_tokens", "cancel_s"),
)
JSON = Form("timestamp", "input_length", "output_length", lambda ms: float(ms) / 1000)


def trace(path: Path, speed: float = 1.0) -> Load:
    """The requests of a file, `speed` times as fast; the first comes at 0.

    They come closer together by `speed`, but clients that leave wait as long. InputError for a file that is
    none of these, and for rows that are not sorted, or have cells that are missing, negative or no numbers:
    the first five.
    """
    name = plain(str(path))
    try:
        rows = list(_json(path) if path.suffix.lower() in (".jsonl", ".json") else _csv(path))
    except UnreadableError as error:
        raise InputError(f"{name}: {error}") from None
    found: list[Row] = []
    wrong = []
    for number, (line, row) in enumerate(rows, 1):
        why = row if isinstance(row, str) else "comes before a row above" if _before(row, found) else None
        if why:
            wrong.append(f"row {number} (line {line}): {why}")
        elif not isinstance(row, str):
            found.append(row)
    if wrong:
        more = f"; and {len(wrong) - FIRST:,} more" if len(wrong) > FIRST else ""
        raise InputError(f"{name}: {'; '.join(wrong[:FIRST])}{more}")
    if not found:
        raise InputError(f"{name}: has no requests")
    columns = {name: np.array([getattr(row, name) for row in found]) for name in Row._fields[:-1]}
    time, prompt = columns["time_s"], columns["prompt"]
    stops, leaves = columns["stops"], columns["leave_s"]
    return Load(
        prompt,
        np.minimum(columns["generate"], stops),
        np.zeros_like(prompt),
        (time - time[0]) / speed,
        hashes=tuple(row.hashes for row in found) if any(row.hashes for row in found) else (),
        asked=columns["generate"] if (stops < columns["generate"]).any() else None,
        leave_s=leaves if np.isfinite(leaves).any() else None,
    )


class Row(NamedTuple):
    """A request: when it comes, its tokens, after how many and how many seconds its client leaves."""

    time_s: float
    prompt: int
    generate: int
    stops: int
    leave_s: float
    hashes: tuple[int, ...]


def _before(row: Row, rows: list[Row]) -> bool:
    return bool(rows) and row.time_s < rows[-1].time_s


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


class _WrongError(Exception):
    """What is wrong with a row."""


def _row(form: Form, row: Mapping[str, Any]) -> Row | str:
    """A row's request, or what is wrong with it."""
    if missing := [name for name in form[:3] if row.get(name) in (None, "")]:
        return f"{missing[0]} is missing"
    try:
        time_s = _time(form, form.time, row)
        prompt, generate = (_tokens(name, row[name], LONGEST) for name in form[1:3])
        stops, leave_s = generate, inf
        if form.cancel_tokens and row.get(form.cancel_tokens) not in (None, ""):
            stops = _tokens(form.cancel_tokens, row[form.cancel_tokens], generate)
        if form.cancel_s and row.get(form.cancel_s) not in (None, ""):
            leave_s = _time(form, form.cancel_s, row) - time_s
            if leave_s <= 0:
                return f"{form.cancel_s} is {shown(row[form.cancel_s])}, expected a time after {form.time}"
    except _WrongError as wrong:
        return str(wrong)
    hashes = row.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple) or not all(type(each) is int for each in hashes):
        return f"hash_ids is {shown(hashes)}, expected a list of integers"
    return Row(time_s, prompt, generate, stops, leave_s, tuple(hashes))


def _time(form: Form, name: str, row: Mapping[str, Any]) -> float:
    try:
        time_s = form.seconds(row[name])
    except (ValueError, TypeError, OverflowError):
        time_s = -1.0
    if not 0 <= time_s < inf:
        raise _WrongError(f"{name} is {shown(row[name])}, expected a time from 0 up")
    return time_s


def _tokens(name: str, cell: Any, most: int) -> int:
    try:
        count = float(cell)
    except (ValueError, TypeError, OverflowError):
        count = -1.0
    if not (1 <= count <= most and count.is_integer()):
        raise _WrongError(f"{name} is {shown(cell)}, expected tokens from 1 to {most:,}")
    return int(count)
