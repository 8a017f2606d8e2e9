"""Sweeps as tables and files, for any number of rows.

Order of the file: a sweep in memory as CSV, JSON lines, Parquet, Arrow and a terminal's table; the file
formats that are written part by part and joined (`SweepFormat`); and `SweepFolder`, a folder of parts, one
per structure, joined into one file at the end.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from llmir.backends.search.structures import combined_reason
from llmir.backends.search.sweep import BLOCK, LOST, POINTS, SHARES, Sweep, SweepPart, schema
from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, OutputError
from llmir.base.formats import Pairs, exporter
from llmir.base.names import plain

from . import json as jsonio
from . import table, units, wording
from .files import check_writable, exclusive, move, staging

if TYPE_CHECKING:
    from rich.console import RenderableType

# Sweeps in memory

SHOWN = 40  # rows that a terminal shows
REASONS = 3  # number of reasons for rejected rows
MOST_AXES = 3
_FIGURES = ("step", "±", "tokens/s", "peak", "fits", "bound")
_SPENT = {"cost_usd_per_mtok": "$/Mtok", "energy_j_per_token": "J/tok ≤"}
_SPENT_NOTES = {
    "cost_usd_per_mtok": "price of a million tokens of such steps; set prices with --price",
    "energy_j_per_token": wording.AT_MOST,
}


@exporter("csv", ".csv", of=Sweep)
def to_csv(sweep: Sweep) -> str:
    """A CSV line for each row, in SI units."""
    return jsonio.to_csv(list(sweep.rows()))


@exporter("jsonl", ".jsonl", of=Sweep)
def to_json_lines(sweep: Sweep) -> str:
    """One JSON object per line."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in sweep.rows())


@exporter("parquet", ".parquet", of=Sweep)
def to_parquet(sweep: Sweep) -> bytes:
    """A Parquet file; pyarrow must be installed."""
    columns, out = sweep.to_arrow(), io.BytesIO()
    import pyarrow.parquet

    pyarrow.parquet.write_table(columns, out)
    return out.getvalue()


@exporter("arrow", ".arrow", ".feather", of=Sweep)
def to_arrow(sweep: Sweep) -> bytes:
    """An Arrow file in Feather format; pyarrow must be installed."""
    columns, out = sweep.to_arrow(), io.BytesIO()
    import pyarrow

    with pyarrow.ipc.new_file(out, columns.schema) as file:
        file.write_table(columns)
    return out.getvalue()


@table.table_of(of=Sweep)
def shown(sweep: Sweep) -> RenderableType:
    """The first rows (axes with several values, time, memory, largest bound, price), and the reasons for
    rejected rows.
    """
    from rich.text import Text

    names = [name for name, values in sweep.axes.items() if len(values) > 1 and name not in POINTS]
    points = [name for name in POINTS if len(sweep.axes.get(name, ())) > 1]
    rows = [row for row in islice(sweep.rows(), SHOWN) if not row["refused"]]
    spent = {name: title for name, title in _SPENT.items() if any(row[name] is not None for row in rows)}
    cells = [dict(zip((*_FIGURES, *spent.values()), _cells(row, spent), strict=True)) for row in rows]
    # A line of 80 columns has space for three axes with all results; if there are more axes, results with
    # equal values are shown once.
    many, few = len(names) + len(points) > MOST_AXES, len(rows) > 1
    equal = [n for n in _FIGURES if many and few and len({row[n] for row in cells}) == 1]
    figures = [name for name in (*_FIGURES, *spent.values()) if name not in equal]
    columns = table.columns((*names, *points, *figures), (*points, *figures), gap=1)
    for row, cell in zip(rows, cells, strict=True):
        at = (*(str(row[n] or "–") for n in names), *(f"{row[n]:,}" for n in points))
        table.add(columns, (*at, *(cell[name] for name in figures)))
    alike = [("results", ", ".join(f"{name} {cells[0][name]}" for name in equal))] if equal else []
    more = len(sweep) - min(len(sweep), SHOWN)
    words = [f"{more:,} more of {len(sweep):,} rows; -o FILE has all"] if more else []
    refused = Counter[str]()
    for part in sweep.parts:
        if part.refusals:
            refused[str(part.why)] += part.refusals
    words += [
        f"{n:,} of the rows refused: {why.removeprefix('shard: ')}" for why, n in refused.most_common(REASONS)
    ]
    words += [f"{len(refused) - REASONS:,} more reasons; -o FILE has all"] if len(refused) > REASONS else []
    head: list[RenderableType] = [
        Text(wording.plain(sweep.model), style="bold"),
        table.pairs([*_fixed(sweep), *alike]),
    ]
    notes = [*_basis(sweep)]
    if rows:
        notes += [("step", "time of one step, ± the mean error of its kernels on held-out shapes")]
        notes += [("peak", "memory of the fullest GPU during the step; bound: the largest part of the time")]
    notes += [(title, _SPENT_NOTES[name]) for name, title in spent.items()]
    return table.stack(*head, "", columns, "", *words, *([""] if words else []), table.pairs(notes))


def _fixed(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """The values that all rows share."""
    fixed = {name: values[0] for name, values in sweep.axes.items() if len(values) == 1}
    said = {name: value for name, value in fixed.items() if value is not None}
    if said:
        at = (
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
            for name, value in said.items()
        )
        yield "all rows", ", ".join(at)


def _basis(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """The dtypes and the cost models of the rows."""
    if not {"weights", "activations", "kv", "collectives"}.isdisjoint(sweep.axes):
        for i, types in enumerate(sweep.precisions):
            yield "" if i else "precision", types
    for i, basis in enumerate(sweep.basis):
        yield "" if i else "cost model", basis


def _cells(row: dict[str, Any], spent: Iterable[str]) -> tuple[str, ...]:
    bound = max(SHARES, key=lambda name: float(row[name]))
    return (
        units.time(row["time_s"]),
        "" if row["error"] is None else f"{100 * row['error']:.0f}%",
        units.count(row["batch"] * row["new"] / row["time_s"]),
        units.bytes(row["peak_memory_bytes"]),
        "yes" if row["fits"] else "no",
        bound.removesuffix("_share"),
        *("–" if row[name] is None else units.digits(row[name]) for name in spent),
    )


# File formats

LINES = 1 << 13  # largest number of rows in memory as text


class SweepFormat(ABC):
    """The file format of a sweep with given axes."""

    suffix: ClassVar[str]

    def __init__(self, axes: Mapping[str, Any]) -> None:
        self.axes = axes

    @abstractmethod
    def write(self, path: Path, parts: Iterable[SweepPart]) -> None:
        """Write a file of some parts; only one part is in memory at a time."""

    @abstractmethod
    def join(self, path: Path, files: Sequence[Path]) -> None:
        """Join several files into one."""

    @abstractmethod
    def refused(self, path: Path) -> Iterator[str | None]:
        """The reason why each row of a file was rejected; None for other rows."""


class TextFormat(SweepFormat):
    """Lines of text; the first `heading` lines contain the names of the columns."""

    heading: ClassVar[int] = 0

    @abstractmethod
    def text(self, rows: list[dict[str, Any]]) -> str:
        """The text of some rows, with a heading above them."""

    def write(self, path: Path, parts: Iterable[SweepPart]) -> None:
        """In pieces."""
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            rows = chain.from_iterable(Sweep(self.axes, [part]).rows() for part in parts)
            below = 0
            while some := list(islice(rows, LINES)):
                file.writelines(self.text(some).splitlines(keepends=True)[below:])
                below = self.heading

    def join(self, path: Path, files: Sequence[Path]) -> None:
        """Write the contents of the files into one file, one after the other."""
        with open(path, "wb") as whole:
            for i, file in enumerate(files):
                with open(file, "rb") as part:
                    for _ in range(self.heading if i else 0):
                        part.readline()
                    shutil.copyfileobj(part, whole, 1 << 20)


class CsvFormat(TextFormat):
    """A line for each row, in SI units."""

    suffix = ".csv"
    heading = 1

    def text(self, rows: list[dict[str, Any]]) -> str:
        return jsonio.to_csv(rows)

    def refused(self, path: Path) -> Iterator[str | None]:
        import csv

        with open(path, encoding="utf-8", newline="") as file:
            yield from (row["refused"] or None for row in csv.DictReader(file))


class JsonLinesFormat(TextFormat):
    """An object a line."""

    suffix = ".jsonl"

    def text(self, rows: list[dict[str, Any]]) -> str:
        """Find each value by its name."""
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)

    def refused(self, path: Path) -> Iterator[str | None]:
        with open(path, encoding="utf-8") as file:
            yield from (json.loads(line)["refused"] for line in file)


class ColumnFormat(SweepFormat):
    """Tables of pyarrow, which must be installed."""

    def __init__(self, axes: Mapping[str, Any]) -> None:
        super().__init__(axes)
        try:
            self.schema = schema(axes)
        except ImportError:
            raise InputError(f"{self.suffix} files need pyarrow: pip install pyarrow") from None

    @abstractmethod
    def writer(self, path: Path) -> Any:
        """The writer for tables."""

    @abstractmethod
    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The tables in a file."""

    def write(self, path: Path, parts: Iterable[SweepPart]) -> None:
        """A table for each part."""
        with closing(self.writer(path)) as file:
            for part in parts:
                file.write_table(Sweep(self.axes, [part]).to_arrow())

    def join(self, path: Path, files: Sequence[Path]) -> None:
        """Combine small tables of several parts into tables as large as those of one part."""
        import pyarrow

        some: list[Any] = []
        with closing(self.writer(path)) as whole:
            for table in chain(*map(self.tables, files)):
                if sum(map(len, some)) + len(table) > BLOCK:
                    whole.write_table(pyarrow.concat_tables(some).combine_chunks())
                    some = []
                some.append(table)
            if some:
                whole.write_table(pyarrow.concat_tables(some).combine_chunks())

    def refused(self, path: Path) -> Iterator[str | None]:
        for part in self.tables(path, ["refused"]):
            yield from part.column("refused").to_pylist()


class ParquetFormat(ColumnFormat):
    """Parquet, for pandas, polars and DuckDB."""

    suffix = ".parquet"

    def writer(self, path: Path) -> Any:
        """Names are stored once (as a dictionary), and numbers as they are."""
        from pyarrow import parquet, types

        names = [field.name for field in self.schema if types.is_string(field.type)]
        return parquet.ParquetWriter(path, self.schema, use_dictionary=names, write_statistics=names)

    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The groups of rows."""
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=columns)


class ArrowFormat(ColumnFormat):
    """Arrow IPC, for Feather."""

    suffix = ".arrow"

    def writer(self, path: Path) -> Any:
        """Write a file, not a stream."""
        import pyarrow

        return pyarrow.ipc.new_file(str(path), self.schema)

    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Its batches."""
        import pyarrow

        with pyarrow.OSFile(str(path)) as source, pyarrow.ipc.open_file(source) as file:
            for batch in range(file.num_record_batches):
                table = pyarrow.Table.from_batches([file.get_batch(batch)])
                yield table.select(columns) if columns else table


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], SweepFormat]] = {
    "csv": CsvFormat,
    "jsonl": JsonLinesFormat,
    "parquet": ParquetFormat,
    "arrow": ArrowFormat,
}


# Folders of parts

# A part's name: number of the structure, key of its content, rows, digest of the file, and whether its worker
# was lost.
_PART = re.compile(r"\d{5,}-([0-9a-f]{32})-(\d+)-([0-9a-f]{32})(-lost)?\.(?:csv|jsonl|parquet|arrow)")
_LOG = logging.getLogger("llmir")


@dataclass(frozen=True)
class SweepFile(Pairs):
    """A sweep in a file, or in a folder of parts; it counts rows and rejected rows.

    `why` is the first reason for a rejection, and `read` is the number of structures that already existed.
    """

    path: str
    rows: int
    refused: int
    structures: int
    read: int
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return dict(vars(self))

    def pairs(self) -> list[tuple[str, str]]:
        """The human-readable form."""
        said = [("rows", f"{self.rows:,} of {self.structures:,} structures, in {plain(self.path)}")]
        if self.read:
            said.append(("read", f"{self.read:,} structures, which were there"))
        return [*said, ("refused", f"{self.refused:,}: {self.why}")] if self.refused else said


class RowCounts(NamedTuple):
    """The rows of a part, the number of rejected rows, and the first reason."""

    rows: int
    refused: int
    why: str | None

    def and_of(self, part: SweepPart) -> RowCounts:
        """Add the counts of a part."""
        return RowCounts(self.rows + len(part), self.refused + part.refusals, self.why or part.why)


class SweepFolder:
    """The folder of the parts, and the final file.

    `target` is the file into which parts are joined; None if the result is the folder itself.
    """

    def __init__(self, path: Path, form: str, target: Path | None, shown: str) -> None:
        self.path, self.form, self.target, self.shown = path, form, target, shown
        self.found: dict[int, tuple[Path, RowCounts]] = {}
        self._keys: dict[int, str] = {}
        self.read = 0

    @classmethod
    def of(cls, path: str | os.PathLike[str], form: str | None) -> SweepFolder:
        """Find the format for a path; InputError for an unknown format or an invalid path.

        OutputError if the file cannot be written.
        """
        arguments.path("path", path)
        said = os.fspath(path)  # a Path has no / at its end
        if form is not None:
            arguments.choice("format", form, tuple(FORMATS))
        if said.endswith(("/", os.sep)) or os.path.isdir(said):
            return cls(Path(said), form or "parquet", None, said)
        suffix = os.path.splitext(said)[1].lower()
        by = suffix.removeprefix(".")
        if by not in FORMATS:
            known = ", ".join(f".{name}" for name in FORMATS)
            got = f"suffix {suffix!r} is unknown" if suffix else "no suffix"
            raise InputError(f"{plain(said)}: {got}; allowed are {known}, and a folder that ends in /")
        if form not in (None, by):
            raise InputError(f"{plain(said)}: the suffix means {by}, but the format is {form}")
        target = check_writable(said)
        return cls(target.with_name(f"{target.name}.parts"), by, target, said)

    @contextmanager
    def opened(self, axes: Mapping[str, Any]) -> Iterator[None]:
        """Create the folder and read its existing parts."""
        self.format: SweepFormat = FORMATS[self.form](axes)
        if not self.path.parent.is_dir():
            missing = plain(str(self.path.parent), limit=1000)
            raise OutputError(f"{plain(self.shown, limit=1000)}: there is no folder {missing}")
        try:
            with exclusive(self.path):
                try:
                    with staging(self.path) as self._aside:
                        found = {file: _PART.fullmatch(file.name) for file in self.path.iterdir()}
                        self._there = {m[1]: file for file, m in found.items() if m and not m[4]}
                        yield
                finally:
                    with suppress(OSError):  # the folder is not empty
                        self.path.rmdir()
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error})"
            raise OutputError(f"{plain(self.shown, limit=1000)}: {reason}") from None

    def find(self, index: int, key: str) -> RowCounts | None:
        """The complete part with this key, moved to this position; None if it has to be computed."""
        self._keys[index] = key
        file = self._there.get(key)
        if file is None or file.suffix != self.format.suffix:
            return None
        counts = self._checked(file)
        if counts is None:
            _LOG.info(f"{plain(str(file), limit=1000)} is damaged; it is computed again")
            return None
        self.read += 1
        self._put(index, file, counts)
        return counts

    def _checked(self, file: Path) -> RowCounts | None:
        """The rows of a part; if its content does not match its name, the part is removed and the result is
        None.
        """
        said = _PART.fullmatch(file.name)
        if said and file.is_file() and _digest(file) == said[3]:
            counts = _counts(self.format, file)
            if counts.rows == int(said[2]):
                return counts
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        return None

    def add(self, index: int, parts: Iterable[SweepPart]) -> None:
        """Write a part atomically; a rejected structure is a part with one row."""
        file = self._aside / f"part{self.format.suffix}"
        alone: list[SweepPart] = []
        counts = RowCounts(0, 0, None)

        def pieces() -> Iterator[SweepPart]:
            nonlocal counts
            for part in parts:
                if part.alone:
                    alone.append(part)
                    return
                counts = counts.and_of(part)
                yield part

        self.format.write(file, pieces())
        if alone:
            self.format.write(file, alone)
            counts = RowCounts(0, 0, None).and_of(alone[0])
        self._put(index, file, counts)

    def _put(self, index: int, file: Path, counts: RowCounts) -> None:
        lost = "-lost" if counts.why == LOST else ""  # the next call tries again
        of = f"{index:05}-{self._keys[index]}-{counts.rows}-{_digest(file)}"
        place = self.path / f"{of}{lost}{self.format.suffix}"
        if file.parent != place.parent:
            move(file, place)
        elif file != place:  # a part of an earlier run that is already on the disk
            os.replace(file, place)
        self.found[index] = place, counts

    def left(self, of: int) -> str:
        """The message that is shown after an interrupt."""
        whole = f"{len(self.found):,} of {of:,} structures are whole"
        place = self.path if os.path.isabs(self.shown) else os.path.relpath(self.path)
        return f"interrupted; {whole} in {place}, from which the same command goes on"

    def whole(self) -> SweepFile:
        """Finish: join the parts into one file if requested, and remove other parts."""
        files = [self.found[index][0] for index in sorted(self.found)]
        counts = [counts for _, counts in self.found.values()]
        rows, refused = sum(c.rows for c in counts), sum(c.refused for c in counts)
        why = next((self.found[i][1].why for i in sorted(self.found) if self.found[i][1].why), None)
        if rows == refused:
            for file in files:
                file.unlink()
            raise InputError(combined_reason(rows, why))
        if self.target:
            self._join(files)
        for file in self.path.iterdir():
            if _PART.fullmatch(file.name) and (self.target or file not in files):
                file.unlink()
        return SweepFile(self.shown, rows, refused, len(files), self.read, why)

    def _join(self, files: list[Path]) -> None:
        assert self.target is not None
        whole = files[0]
        if len(files) > 1:
            whole = self._aside / f"whole{self.format.suffix}"
            self.format.join(whole, files)
        move(whole, self.target)


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    return found.hexdigest()[:32]


def _counts(form: SweepFormat, file: Path) -> RowCounts:
    rows, refused, first = 0, 0, None
    for why in form.refused(file):
        rows += 1
        if why is not None:
            refused, first = refused + 1, first or why
    return RowCounts(rows, refused, first)
