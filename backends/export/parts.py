"""Files of a sweep that are written piece by piece, and put together from several: of any number of rows."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from llmir.backends.search.part import BLOCK, Part
from llmir.backends.search.sweep import Sweep, schema
from llmir.base.errors import InputError

from . import json as jsonio

LINES = 1 << 13  # that are text in memory at once


class Format(ABC):
    """How a sweep with these axes lies in files."""

    suffix: ClassVar[str]

    def __init__(self, axes: Mapping[str, Any]) -> None:
        self.axes = axes

    @abstractmethod
    def write(self, path: Path, parts: Iterable[Part]) -> None:
        """A file of some parts, none of which stays in memory."""

    @abstractmethod
    def join(self, path: Path, files: Sequence[Path]) -> None:
        """One file of several."""

    @abstractmethod
    def refused(self, path: Path) -> Iterator[str | None]:
        """Of each row of a file, why it is refused."""


class Text(Format):
    """Lines, the first `heading` of which name the columns."""

    heading: ClassVar[int] = 0

    @abstractmethod
    def text(self, rows: list[dict[str, Any]]) -> str:
        """Some rows, below a heading."""

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        """In pieces."""
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            rows = chain.from_iterable(Sweep(self.axes, [part]).rows() for part in parts)
            below = 0
            while some := list(islice(rows, LINES)):
                file.writelines(self.text(some).splitlines(keepends=True)[below:])
                below = self.heading

    def join(self, path: Path, files: Sequence[Path]) -> None:
        """One below the other."""
        with open(path, "wb") as whole:
            for i, file in enumerate(files):
                with open(file, "rb") as part:
                    for _ in range(self.heading if i else 0):
                        part.readline()
                    shutil.copyfileobj(part, whole, 1 << 20)


class Csv(Text):
    """A line for each row, in SI units."""

    suffix = ".csv"
    heading = 1

    def text(self, rows: list[dict[str, Any]]) -> str:
        """As any table of llmir."""
        return jsonio.to_csv(rows)

    def refused(self, path: Path) -> Iterator[str | None]:
        """Of each line."""
        import csv

        with open(path, encoding="utf-8", newline="") as file:
            yield from (row["refused"] or None for row in csv.DictReader(file))


class JsonLines(Text):
    """An object a line."""

    suffix = ".jsonl"

    def text(self, rows: list[dict[str, Any]]) -> str:
        """Each by name."""
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)

    def refused(self, path: Path) -> Iterator[str | None]:
        """Of each line."""
        with open(path, encoding="utf-8") as file:
            yield from (json.loads(line)["refused"] for line in file)


class Columns(Format):
    """Tables of pyarrow, which must be installed."""

    def __init__(self, axes: Mapping[str, Any]) -> None:
        super().__init__(axes)
        try:
            self.schema = schema(axes)
        except ImportError:
            raise InputError(f"{self.suffix} files need pyarrow: pip install pyarrow") from None

    @abstractmethod
    def writer(self, path: Path) -> Any:
        """What tables are written to."""

    @abstractmethod
    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The tables in a file."""

    def write(self, path: Path, parts: Iterable[Part]) -> None:
        """A table for each part."""
        with closing(self.writer(path)) as file:
            for part in parts:
                file.write_table(Sweep(self.axes, [part]).to_arrow())

    def join(self, path: Path, files: Sequence[Path]) -> None:
        """Tables as large as those of one part, of several that are smaller."""
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
        """Of that column alone."""
        for table in self.tables(path, ["refused"]):
            yield from table.column("refused").to_pylist()


class Parquet(Columns):
    """As pandas, polars and DuckDB read it."""

    suffix = ".parquet"

    def writer(self, path: Path) -> Any:
        """Names are stored once, figures as they are."""
        from pyarrow import parquet, types

        names = [field.name for field in self.schema if types.is_string(field.type)]
        return parquet.ParquetWriter(path, self.schema, use_dictionary=names, write_statistics=names)

    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Its groups of rows."""
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=columns)


class Arrow(Columns):
    """As Feather reads it."""

    suffix = ".arrow"

    def writer(self, path: Path) -> Any:
        """A file, not a stream."""
        import pyarrow

        return pyarrow.ipc.new_file(str(path), self.schema)

    def tables(self, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Its batches."""
        import pyarrow

        with pyarrow.OSFile(str(path)) as source, pyarrow.ipc.open_file(source) as file:
            for batch in range(file.num_record_batches):
                table = pyarrow.Table.from_batches([file.get_batch(batch)])
                yield table.select(columns) if columns else table


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Format]] = {
    "csv": Csv,
    "jsonl": JsonLines,
    "parquet": Parquet,
    "arrow": Arrow,
}
