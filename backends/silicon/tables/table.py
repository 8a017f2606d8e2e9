"""The base of measured tables: columns name the format, and rows are small programs with sizes.

Rows that are alike in all but sizes share a program whose dimensions are symbols, with arrays of sizes
(`TablePoints`). A cost model estimates their ops as it does those of a model. `TableFormat` is a format,
`KernelTable` one with a `latency_us` per row; `load` reads a file and `load_all` a folder.
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
    """Rows of a table that one program prices: their numbers in it, and the values of the symbols.

    `harness` is what the benchmark adds to each, in seconds.
    """

    kind: str
    program: Program
    rows: Array
    at: Binding
    untimed: frozenset[str] = frozenset()
    harness: Array | float = 0.0

    def prices(self, model: DeviceCostModel) -> tuple[OpTime, ...]:
        """What the model makes of each op."""
        made = step_evaluator(self.program, model)
        return tuple(p for row, p in zip(made.rows, made.prices, strict=True) if row.name not in self.untimed)


@dataclass(frozen=True)
class RowRejection:
    """Rows of a table that no program prices, and why."""

    kind: str
    rows: Array
    reason: str


def columns(*sizes: str, **others: Column) -> Mapping[str, Column]:
    """Columns of a table of kernels: sizes, others, and the time of a call."""
    return FrozenDict({**dict.fromkeys(sizes, Column()), **others, **LATENCY})


class TableFormat:
    """A table that is known by its columns; a class registers itself under its name.

    `numbers` that have a meaning where they are empty, and `more` words, may be absent.
    """

    name: ClassVar[str] = ""
    facts: ClassVar[str] = ""  # the table whose entries in `sources.yaml` hold, if it is another one
    numbers: ClassVar[Mapping[str, Column]] = FrozenDict()
    words: ClassVar[Sequence[str]] = ()
    more: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls) -> None:
        if cls.name:
            FORMATS.add(cls.name, cls(), cls)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that it is known by."""
        return (*(n for n, column in self.numbers.items() if column.empty is None), *self.words)

    def extra(self, names: Sequence[str]) -> dict[str, Column]:
        """More columns of numbers, by what a file's are called."""
        return {}

    def standard(self, rows: Table) -> Table:
        """The rows with the columns that validation reads."""
        return rows


class KernelTable(TableFormat, ABC):
    """A table of calls of kernels, whose rows have a `latency_us`.

    Rows alike in the columns `key` share a program, whose `symbols` are columns. Those alike in `groups` are
    left out of a fit together.
    Where an engine has several kernels for one thing, as of attention, they are told apart by the column
    `kernel` if it has `variants`.
    """

    key: ClassVar[Sequence[str]] = ()
    symbols: ClassVar[Mapping[str, str]] = FrozenDict()
    groups: ClassVar[Sequence[str]] = ()
    finer: ClassVar[Sequence[str]] = ()  # the same where all are of one group
    variants: ClassVar[bool] = False
    fits: ClassVar[tuple[str, ...]] = ("",)  # how families begin that a fit to it is of, the first there is

    @abstractmethod
    def program(self, *key: Any) -> Program:
        """The program of rows that are alike; InputError says why there is none."""

    def sizes(self, rows: Table) -> Mapping[str, Array]:
        """The values of the program's symbols."""
        return {symbol: rows[column] for symbol, column in self.symbols.items()}

    def completed(self, rows: Table, device: Device) -> Table:
        """The rows with what follows for a device: columns that the key has and the file has not."""
        return rows

    def wrong(self, rows: Table) -> Mapping[str, Array]:
        """Which rows are no call of the kernel that they name, by the reason; of several the last holds."""
        return {}

    def untimed(self, program: Program) -> frozenset[str]:
        """The ops that a call does not contain."""
        return frozenset()

    def kinds(self, rows: Table) -> Array:
        """What each row is called in statistics."""
        return np.full(len(rows), self.name, dtype=object)

    def left_out_together(self, rows: Table) -> list[tuple[Any, ...]]:
        """What is left out of a fit together, for each row."""
        one = len(rows.alike(*self.groups)) < 2
        columns = self.finer if one and self.finer else self.groups
        return list(zip(*(rows[c] for c in columns), strict=True))

    def points(self, rows: Table, device: Device) -> Iterator[TablePoints | RowRejection]:
        """All rows, which are of one device."""
        rows = self.completed(rows, device)
        why = np.full(len(rows), "", dtype=object)
        for reason, which in self.wrong(rows).items():
            why[which] = reason
        why = np.where(rows["left_out"] == "", why, rows["left_out"])
        columns = {**rows.columns, "why": why, "kind of row": self.kinds(rows)}
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
    """The names in a file's first line; InputError if it is no CSV, or empty."""
    try:
        with readers.table(path) as reader:
            return list(reader.fieldnames or [])
    except UnreadableError as error:
        raise InputError(f"{path.name}: {error}") from None


def format_of(file: str, names: Sequence[str]) -> TableFormat:
    """What a file's columns say that it is; InputError names those missing for what comes nearest."""

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
    """A file's format and rows; columns that it may have and does not are as if empty."""
    names = header(path)
    format = format_of(path.name, names)
    found = read_rows(path, {**format.numbers, **format.extra(names)}, format.words, format.more)
    found = format.standard(found)
    columns = dict(found.columns)
    if "framework" in columns:
        columns["engine"] = np.array([engine_name(f) for f in columns["framework"]], dtype=object)
    return format, add_facts(format.facts or format.name, Table(columns, found.problems))


def load_all(folder: Path, tell: Callable[[str], None]) -> list[tuple[str, KernelTable, Table]]:
    """The tables of kernels in a folder, by file; `tell` hears of other files and of rows that make no sense.

    InputError where there is none.
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
