"""The base of measured tables: the columns of a file determine its format, and its rows are small programs
with sizes.

Rows that differ only in sizes share a program with symbolic dimensions and arrays of sizes (`TablePoints`). A
cost model estimates the ops of these programs in the same way as the ops of a model. `TableFormat` is a
format, and `KernelTable` a format with one `latency_us` per row. `load` reads a file and `load_all` a folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel, OpTime
from llmir.backends.silicon.rows import LATENCY, Array, Column, Table, add_facts, engine_name, read_rows
from llmir.backends.step.evaluate import step_evaluator
from llmir.base import readers
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, LlmirError, UnreadableError
from llmir.base.names import plain
from llmir.base.registry import Kind
from llmir.base.values import FrozenDict
from llmir.hw.device import Device
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding

FORMATS: Kind[TableFormat] = Kind("measured table", "llmir.backends.silicon.tables")


@dataclass(frozen=True)
class TablePoints:
    """Rows of a table that share one program: the indices of the rows, and the values of the symbols.

    `untimed` ops are not part of the measured call. `harness` is the time in seconds that the benchmark adds.
    """

    kind: str
    program: Program
    rows: Array
    at: Binding
    untimed: frozenset[str] = frozenset()
    harness: Array | float = 0.0

    def prices(self, model: DeviceCostModel) -> tuple[OpTime, ...]:
        """The estimated time of each op by a cost model."""
        made = step_evaluator(self.program, model)
        return tuple(p for row, p in zip(made.rows, made.prices, strict=True) if row.name not in self.untimed)


@dataclass(frozen=True)
class RowRejection:
    """Rows of a table for which there is no program, and the reason."""

    kind: str
    rows: Array
    reason: str


def columns(*sizes: str, **others: Column) -> Mapping[str, Column]:
    """Columns of a kernel table: sizes, other columns, and the latency."""
    return FrozenDict({**dict.fromkeys(sizes, Column()), **others, **LATENCY})


class TableFormat:
    """A table format that is recognized by its columns; a class registers itself under its name.

    Columns in `numbers` that have a value for empty cells may be missing, and so may the text columns in
    `more`.
    """

    name: ClassVar[str] = ""
    facts: ClassVar[str] = ""  # the table name in `sources.yaml`, if different
    numbers: ClassVar[Mapping[str, Column]] = FrozenDict()
    words: ClassVar[Sequence[str]] = ()
    more: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls) -> None:
        if cls.name:
            FORMATS.add(cls.name, cls(), cls)

    @property
    def needed(self) -> tuple[str, ...]:
        """The required columns."""
        return (*(n for n, column in self.numbers.items() if column.empty is None), *self.words)

    def extra(self, names: Sequence[str]) -> dict[str, Column]:
        """Additional columns of numbers for the column names of a file."""
        return {}

    def standard(self, rows: Table) -> Table:
        """The rows with the columns that validation expects."""
        return rows


class KernelTable(TableFormat, ABC):
    """A table of kernel calls with a `latency_us` per row.

    Rows with equal columns `key` share a program; `symbols` are the columns with the values of its symbols.
    Rows with equal columns `groups` are held out of a fit together; if there is only one group, `finer` is
    used instead. If a table has `variants`, its column `kernel` distinguishes several kernels of an engine
    for the same purpose. `fits` lists prefixes of families; a fit to the table includes the families that
    match the first prefix with a match.
    """

    key: ClassVar[Sequence[str]] = ()
    symbols: ClassVar[Mapping[str, str]] = FrozenDict()
    groups: ClassVar[Sequence[str]] = ()
    finer: ClassVar[Sequence[str]] = ()  # instead of `groups` if there is one group
    variants: ClassVar[bool] = False
    fits: ClassVar[tuple[str, ...]] = ("",)  # prefixes of the fitted families

    @abstractmethod
    def program(self, *key: Any) -> Program:
        """The program of rows with equal keys; InputError if there is none."""

    def sizes(self, rows: Table) -> Mapping[str, Array]:
        """The values of the symbols of the program."""
        return {symbol: rows[column] for symbol, column in self.symbols.items()}

    def derived_columns(self, rows: Table, device: Device) -> Table:
        """The rows with additional columns that are derived for a device, such as missing columns of the
        key.
        """
        return rows

    def invalid_rows(self, rows: Table) -> Mapping[str, Array]:
        """Rows that do not describe a call of their kernel, by reason. If a row has several reasons, the last
        one counts.
        """
        return {}

    def untimed(self, program: Program) -> frozenset[str]:
        """The ops that are not part of the measured call."""
        return frozenset()

    def row_kinds(self, rows: Table) -> Array:
        """The kind of each row in statistics."""
        return np.full(len(rows), self.name, dtype=object)

    def held_out_groups(self, rows: Table) -> list[tuple[Any, ...]]:
        """The group of each row; rows of a group are held out of a fit together."""
        one = len(rows.alike(*self.groups)) < 2
        columns = self.finer if one and self.finer else self.groups
        return list(zip(*(rows[c] for c in columns), strict=True))

    def points(self, rows: Table, device: Device) -> Iterator[TablePoints | RowRejection]:
        """The points of all rows, which belong to one device, and the reasons why rows are rejected."""
        rows = self.derived_columns(rows, device)
        why = np.full(len(rows), "", dtype=object)
        for reason, which in self.invalid_rows(rows).items():
            why[which] = reason
        why = np.where(rows["left_out"] == "", why, rows["left_out"])
        columns = {**rows.columns, "why": why, "kind of row": self.row_kinds(rows)}
        for (reason, kind, *key), at in Table(columns).alike("why", "kind of row", *self.key).items():
            try:
                if reason:
                    raise InputError(reason)
                made = self.program(*key)
            except LlmirError as error:
                yield RowRejection(kind, at, str(error))
                continue
            harness = rows["harness_us"][at] * 1e-6
            yield TablePoints(
                kind, made, at, Binding(**self.sizes(rows.take(at))), self.untimed(made), harness
            )


def header(path: Path) -> list[str]:
    """The column names of a file; InputError if it is empty or not a CSV file."""
    try:
        with readers.table(path) as reader:
            return list(reader.fieldnames or [])
    except UnreadableError as error:
        raise InputError(f"{path.name}: {error}") from None


def format_of(file: str, names: Sequence[str]) -> TableFormat:
    """The format of a table with these columns; InputError names the missing columns of the nearest
    format.
    """

    def fit(format: TableFormat) -> tuple[bool, float, float]:
        share = sum(c in names for c in format.needed) / len(format.needed)
        return share == 1, share * len(format.needed), share

    best = max(FORMATS.values(), key=fit)
    missing = [c for c in best.needed if c not in names]
    if missing:
        near = f"nearest is {best.name}, without {', '.join(missing)}"
        shown = plain(", ".join(names), limit=120)
        raise InputError(f"{file}: not a table that can be validated; {near} (it has {shown})")
    return best


def load(path: Path) -> tuple[TableFormat, Table]:
    """Read a file: its format and rows. Absent optional columns count as empty."""
    names = header(path)
    format = format_of(path.name, names)
    found = read_rows(path, {**format.numbers, **format.extra(names)}, format.words, format.more)
    found = format.standard(found)
    columns = dict(found.columns)
    if "framework" in columns:
        columns["engine"] = np.array([engine_name(f) for f in columns["framework"]], dtype=object)
    return format, add_facts(format.facts or format.name, Table(columns, found.problems))


def load_all(folder: Path, tell: Callable[[str], None]) -> list[tuple[str, KernelTable, Table]]:
    """Read the kernel tables of a folder; `tell` is called with other files, and with invalid rows.

    Raises:
        InputError: The folder has no kernel table.
    """
    found = []
    for path in sorted(folder.glob("*.csv")):
        try:
            format, rows = load(path)
        except InputError as error:
            tell(str(error))
            continue
        if isinstance(format, KernelTable):
            for problem in rows.problems:
                tell(problem)
            found.append((path.name, format, rows))
    if not found:
        raise InputError(f"{folder}: has no table of measured kernels")
    return found


WHOSE = ("gpu", "framework")
MORE = ("kernel", "source", "timed", "variant")
