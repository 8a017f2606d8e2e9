"""Measured rows from CSV files: reading, error statistics, facts about sources, and device names.

Order of the file: `read_rows` reads columns and reports bad rows by number. `error_statistics` computes
errors, and `group_folds` divides rows into parts so that groups of shapes are held out of a fit. `add_facts`
adds facts from `sources.yaml`. `DeviceLookup` finds the device for a name in a table: in a YAML file next to
the table, otherwise among the bundled devices.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatchcase
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmir.base import readers
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, UnreadableError
from llmir.base.names import bounded, plain, suggest
from llmir.base.values import Figures
from llmir.hw import library
from llmir.hw.device import Device

# Columns and rows

Array = np.ndarray[Any, np.dtype[Any]]

# Larger numbers are mistakes: no tensor has a longer axis, and no call takes 1000 s.
MOST = 2**31
LONGEST_US = 1e9


class Column(NamedTuple):
    """A column of numbers: its range, whether it contains integers, and the value that stands for an empty
    cell.

    If a column has a value for empty cells, it may be missing. `reads` converts the text of a cell, and
    `kind` is the name of its type in errors.
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
    """Columns of equal length: numbers as float64 and text as objects.

    `line` is the row number in the file.
    """

    columns: Mapping[str, Array]
    problems: Sequence[str] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.columns["line"])

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, index: Any) -> Table:
        """Select rows."""
        return Table({name: column[index] for name, column in self.columns.items()})

    def alike(self, *names: str) -> dict[tuple[Any, ...], Array]:
        """Group rows by the values of some columns: the row numbers by these values."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(self[n].tolist() for n in names), strict=True)):
            found.setdefault(key, []).append(i)
        return {key: np.array(rows) for key, rows in found.items()}


def read_rows(
    path: Path, numbers: Mapping[str, Column], words: Sequence[str], more: Sequence[str] = ()
) -> Table:
    """Read a CSV file.

    If a row has a bad cell, it is omitted and listed in `problems` with the reason. The first row below the
    header is row 1.

    Args:
        path: The file.
        numbers: Columns of numbers.
        words: Columns of text that are required.
        more: Columns of text that may be missing.

    Raises:
        InputError: A required column is missing, or a column occurs twice.
    """
    try:
        with readers.table(path) as reader:
            header = reader.fieldnames or []
            needed = [n for n, column in numbers.items() if column.empty is None]
            twice = next((c for c in (*numbers, *words, *more) if list(header).count(c) > 1), None)
            if twice:
                raise InputError(f"{path.name}: column {twice} occurs more than once")
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


# Errors and folds


class ErrorStatistics(NamedTuple):
    """Statistics of (predicted − measured)/measured: number, mean and median of the absolute values, bias,
    90th percentile.
    """

    n: int
    mape: float
    median: float
    bias: float
    p90: float


def error_statistics(predicted: Array, measured: Array) -> ErrorStatistics:
    """Statistics of the relative errors of `predicted`; NaN without rows.

    >>> [round(e, 3) for e in error_statistics(np.array([1.1, 0.9, 1.0, 1.2]), np.ones(4))]
    [4, 0.1, 0.1, 0.05, 0.17]
    """
    if not len(measured):
        return ErrorStatistics(0, nan, nan, nan, nan)
    e = predicted / measured - 1
    size = np.abs(e)
    found = size.mean(), np.median(size), e.mean(), np.quantile(size, 0.9)
    return ErrorStatistics(len(e), *map(float, found))


def group_folds(groups: Sequence[object], *, folds: int = 5, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Pairs of the indices of rows to fit and of rows to evaluate. All rows of a group are in the same part.

    Each row is evaluated once. With fewer groups than folds, there is one fold per group.

    >>> [(fit.tolist(), judge.tolist()) for fit, judge in group_folds(["a", "b", "a"], folds=2)]
    [([1], [0, 2]), ([0, 2], [1])]
    """
    names = list(dict.fromkeys(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    place = {names[g]: n % folds for n, g in enumerate(order)}
    fold = np.array([place[g] for g in groups])
    for n in range(min(folds, len(names))):
        yield np.flatnonzero(fold != n), np.flatnonzero(fold == n)


# Facts about sources

FILE = Path(__file__).with_name("sources.yaml")
# The facts of an entry, with their defaults. Other keys of an entry select rows by a column.
FACTS: dict[str, object] = {
    **dict.fromkeys(("timed", "fills", "variant", "routing", "left_out", "unfit"), ""),
    **dict.fromkeys(("cache", "stored", "activations", "version", "machine"), ""),
    **dict.fromkeys(("chunk", "graphs", "ran", "passes"), ""),
    **dict.fromkeys(("turns", "ahead", "utilization"), nan),
    **dict.fromkeys(("lengths", "shortest"), 1.0),
    **dict.fromkeys(("apart_ms", "patience", "enough", "receive"), 0.0),
    "rounds": 10.0,
    "harness_us": 0.0,
}


@cache
def known_sources() -> dict[str, Any]:
    """The contents of `sources.yaml`."""
    found: dict[str, Any] = readers.load_yaml(FILE.read_bytes())
    return found


def add_facts(table: str, rows: Table) -> Table:
    """Add the known facts as columns. Values in the rows have priority."""
    said = {f: np.full(len(rows), usual, float if usual != "" else object) for f, usual in FACTS.items()}
    for entry in known_sources()["rows"]:
        if entry["table"] != table:
            continue
        fits = np.full(len(rows), fill_value=True)
        for column in entry.keys() - FACTS.keys() - {"table"}:
            fits &= _among(rows[column], entry[column])
        for fact in FACTS.keys() & entry.keys():
            said[fact][fits] = entry[fact]
    for fact in FACTS.keys() & rows.columns.keys():
        own = rows[fact]
        said[fact] = np.where((own == "") | (own != own), said[fact], own)  # noqa: PLR0124 (not a number)
    columns = {**rows.columns, **said}
    if "gpu" in columns:
        columns["gpu"] = np.where(said["machine"] == "", rows["gpu"], said["machine"])
    return Table(columns, rows.problems)


def _among(cells: Array, words: Any) -> Array:
    """Whether each cell matches a pattern in an entry."""
    if cells.dtype != object:
        return np.isin(cells, words)
    patterns = [str(word).lower() for word in (words if isinstance(words, list) else [words])]
    fits = {c: any(fnmatchcase(c.strip().lower(), p) for p in patterns) for c in set(cells.tolist())}
    return np.array([fits[cell] for cell in cells.tolist()], dtype=bool)


# Devices and engines by name


def device_for(gpu: str) -> str:
    """The device for the name of a machine in a table.

    >>> device_for("a100_argonne"), device_for("h100_sxm")
    ('a100-40-sxm', 'h100_sxm')
    """
    return str(known_sources()["machines"].get(gpu.strip().lower(), gpu.strip()))


def engine_name(framework: str) -> str:
    """The name of a framework without its version, in one spelling.

    >>> [engine_name(f) for f in ("vllm-0.24.0", "vLLM", "trtllm-nan", "TensorRT-LLM", "nccl-2.27.3")]
    ['vllm', 'vllm', 'trtllm', 'trtllm', 'nccl']
    """
    word = re.sub(r"-(nan|\d).*$", "", framework.strip().lower()).split("(")[0].strip()
    return str(known_sources()["engines"].get(word, word))


def engine_at_version(framework: str, version: str = "") -> str:
    """An engine with its version, in the form of `--engine`. `version` is used if the name of the framework
    contains none.

    >>> engine_at_version("vllm-0.24.0"), engine_at_version("trtllm-nan", "1.0"), engine_at_version("SGLang")
    ('vllm@0.24.0', 'trtllm@1.0', 'sglang')
    """
    said = re.search(r"-v?(\d[\w.]*)", framework.strip())
    known_as = said[1] if said else version.strip()
    return f"{engine_name(framework)}@{known_as}" if known_as else engine_name(framework)


def kernel_source(framework: str, kernel: str = "") -> str:
    """An engine, and the name of its kernel if there is one.

    >>> kernel_source("vllm-0.24.0"), kernel_source("SGLang", "triton")
    ('vllm', 'sglang-triton')
    >>> kernel_source("vllm-0.24.0", "vllm_triton_attn")
    'vllm-triton_attn'
    """
    name = engine_name(framework)
    return f"{name}-{kernel.removeprefix(name + '_')}" if kernel else name


class DeviceLookup:
    """Devices by name, from YAML files in `folder` first, then from the bundled ones. Each file is read only
    once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[Path | str, Device] = {}

    def __call__(self, name: str) -> Device:
        """Load a device; HardwareError if it is unknown."""
        path = self.file(name)
        key = path.resolve() if path else name
        if key not in self.known:
            self.known[key] = library.load(path or device_for(name))
        return self.known[key]

    def file(self, name: str) -> Path | None:
        """The YAML file of this name, if it exists."""
        for folder in (self.folder, FILE.parent):
            beside = folder / f"{name}.yaml"
            with suppress(OSError):  # a name that is too long for one
                if os.sep not in name and beside.is_file() and beside != FILE:
                    return beside
        return Path(name) if name.endswith((".yaml", ".yml")) and "\0" not in name else None

    def base(self, device: Device, name: str, target: str) -> str:
        """The value of `extend` in a file `target` that extends `device`; for a bundled device, this is its
        name.
        """
        path = next((k for k, d in self.known.items() if d is device and isinstance(k, Path)), None)
        if path is None:
            return name
        if path == Path(target).resolve():
            raise InputError(f"{target}: is the file that the fit extends; write to another file")
        return os.path.relpath(path, Path(target).resolve().parent)
