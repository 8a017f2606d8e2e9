"""Measured rows from CSV files: bad rows are named by their number, the rest is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir.base import strict_csv
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, UnreadableError
from llmir.base.names import bounded, plain, suggest
from llmir.base.values import Figures

Array = np.ndarray[Any, np.dtype[Any]]

# Beyond these a number is a mistake: no axis of a tensor, and a call of 1000 s.
MOST = 2**31
LONGEST_US = 1e9


class Column(NamedTuple):
    """Numbers: the least and the most that make sense, whether whole, and what an empty cell means.

    A column whose empty cells have a meaning may be absent. `reads` makes a number of a cell, which is
    `kind`.
    """

    low: float = 1
    high: float = MOST
    whole: bool = True
    empty: float | None = None
    reads: Callable[[str], float] = float
    kind: str = "a number"


LATENCY = {"latency_us": Column(1e-3, LONGEST_US, whole=False)}


@dataclass(frozen=True)
class Table(Figures):
    """Columns of equal length, numbers as float64 and words as objects; `line` is the row in the file."""

    columns: Mapping[str, Array]
    problems: Sequence[str] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.columns["line"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, index: Any) -> Table:
        """Some of the rows."""
        return Table({name: column[index] for name, column in self.columns.items()})

    def alike(self, *names: str) -> dict[tuple[Any, ...], Array]:
        """The numbers of the rows that have the same in these columns, by what that is."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(self[n].tolist() for n in names), strict=True)):
            found.setdefault(key, []).append(i)
        return {key: np.array(rows) for key, rows in found.items()}


def read(path: Path, numbers: Mapping[str, Column], words: Sequence[str], more: Sequence[str] = ()) -> Table:
    """The rows of a CSV file; InputError if a column is missing that may not be, as words of `more` may.

    A row with a bad cell is left out, and `problems` says which and why; the first below the header is 1.
    """
    try:
        with strict_csv.table(path) as reader:
            header = reader.fieldnames or []
            needed = [n for n, column in numbers.items() if column.empty is None]
            twice = next((c for c in (*numbers, *words, *more) if list(header).count(c) > 1), None)
            if twice:
                raise InputError(f"{path.name}: column {twice} is there more than once")
            missing = [c for c in (*needed, *words) if c not in header]
            if missing:
                near = suggest(missing[0], header) or f"; it has {', '.join(map(str, header)) or 'none'}"
                raise InputError(f"{path.name}: missing column {', '.join(missing)}{plain(near)}")
            return _table(reader, path.name, numbers, (*words, *more))
    except UnreadableError as error:
        raise InputError(f"{path.name}: {error}") from None


def _table(reader: Any, file: str, numbers: Mapping[str, Column], words: Sequence[str]) -> Table:
    found: dict[str, list[Any]] = {name: [] for name in ("line", *numbers, *words)}
    problems = []
    for line, row in enumerate(reader, 1):
        try:
            values = [_number(row.get(name), name, column) for name, column in numbers.items()]
        except ValueError as error:
            problems.append(f"{file}: row {line}: {error}")
            continue
        for name, value in zip(found, (line, *values, *(row.get(w) or "" for w in words)), strict=True):
            found[name].append(value)
    arrays = {n: np.array(v, dtype=object if n in words else np.float64) for n, v in found.items()}
    return Table(arrays, tuple(problems))


def _number(cell: str | None, name: str, column: Column) -> float:
    text = (cell or "").strip()
    if not text:
        if column.empty is not None:
            return column.empty
        raise ValueError(f"{name} is empty")
    try:
        if "_" in text and column.reads is float:
            raise ValueError(text)  # Python reads 1_000 as a number
        value = column.reads(text)
    except ValueError:
        raise ValueError(f"{name} must be {column.kind}, got {plain(text, 20)!r}") from None
    if not math.isfinite(value) or not column.low <= value <= column.high:
        raise ValueError(
            f"{name} must be {bounded('a number', column.low, column.high)}, got {plain(text, 20)}"
        )
    if column.whole and value % 1:
        raise ValueError(f"{name} must be an integer, got {plain(text, 20)}")
    return value
