"""Sweeps as folders of parts, one a structure, and as one file put together from them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from llmir.backends.search.part import Part
from llmir.backends.search.refusal import all_of
from llmir.backends.search.workers import LOST
from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError, OutputError
from llmir.base.formats import Pairs
from llmir.base.names import plain

from .files import check_writable
from .parts import FORMATS, Format

_PART = re.compile(r"\d{5,}-([0-9a-f]{32})(-lost)?\.(?:csv|jsonl|parquet|arrow)")


@dataclass(frozen=True)
class Written(Pairs):
    """A sweep that lies in a file, or in a folder of parts: how many rows, and how many of them are refused.

    `why` is the first reason, and `read` the structures that were there already.
    """

    path: str
    rows: int
    refused: int
    structures: int
    read: int
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return dict(vars(self))

    def pairs(self) -> list[tuple[str, str]]:
        """As a person reads it."""
        said = [("rows", f"{self.rows:,} of {self.structures:,} structures, in {plain(self.path)}")]
        if self.read:
            said.append(("read", f"{self.read:,} structures, which were there"))
        return [*said, ("refused", f"{self.refused:,}: {self.why}")] if self.refused else said


class Counts(NamedTuple):
    """Rows of a part, those refused, and the first reason."""

    rows: int
    refused: int
    why: str | None

    def and_of(self, part: Part) -> Counts:
        """With those of a part."""
        return Counts(self.rows + len(part), self.refused + part.refusals, self.why or part.why)


class Folder:
    """The folder that parts are written to, and what becomes of it at the end.

    `target` is the file that they are put together in, None where the folder itself is asked for.
    """

    def __init__(self, path: Path, form: str, target: Path | None, shown: str) -> None:
        self.path, self.form, self.target, self.shown = path, form, target, shown
        self.found: dict[int, tuple[Path, Counts]] = {}
        self._keys: dict[int, str] = {}
        self.read = 0

    @classmethod
    def of(cls, path: str | os.PathLike[str], form: str | None) -> Folder:
        """What such a path means; InputError for a format that there is none of, and for a path that is none.

        OutputError for what cannot be written.
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
            raise InputError(f"{plain(said)}: the suffix says {by}, format says {form}")
        target = check_writable(said)
        return cls(target.with_name(f"{target.name}.parts"), by, target, said)

    @contextmanager
    def opened(self, axes: Mapping[str, Any]) -> Iterator[None]:
        """With the folder made, and what lies in it known."""
        self.format: Format = FORMATS[self.form](axes)
        if not self.path.parent.is_dir():
            missing = plain(str(self.path.parent), limit=1000)
            raise OutputError(f"{plain(self.shown, limit=1000)}: there is no folder {missing}")
        try:
            self.path.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".llmir-", dir=self.path) as aside:
                self._aside = Path(aside)
                self._there = {
                    m[1]: f for f in self.path.iterdir() if (m := _PART.fullmatch(f.name)) and not m[2]
                }
                yield
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error})"
            raise OutputError(f"{plain(self.shown, limit=1000)}: {reason}") from None
        finally:
            with suppress(OSError):  # which is not empty
                self.path.rmdir()

    def find(self, index: int, key: str) -> Counts | None:
        """The whole part of that key, at that place from now on; None where it must be computed."""
        self._keys[index] = key
        file = self._there.get(key)
        if file is None or file.suffix != self.format.suffix:
            return None
        counts = _counts(self.format, file)
        self.read += 1
        self._put(index, file, counts)
        return counts

    def add(self, index: int, parts: Iterable[Part]) -> None:
        """Write a part of some pieces, whole or not at all; what stands for its structure stands alone."""
        file = self._aside / f"part{self.format.suffix}"
        alone: list[Part] = []
        counts = Counts(0, 0, None)

        def pieces() -> Iterator[Part]:
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
            counts = Counts(0, 0, None).and_of(alone[0])
        self._put(index, file, counts)

    def _put(self, index: int, file: Path, counts: Counts) -> None:
        lost = "-lost" if counts.why == LOST else ""  # which is tried again next time
        place = self.path / f"{index:05}-{self._keys[index]}{lost}{self.format.suffix}"
        os.replace(file, place)
        self.found[index] = place, counts

    def left(self, of: int) -> str:
        """What to say of an interrupt."""
        whole = f"{len(self.found):,} of {of:,} structures are whole"
        place = self.path if os.path.isabs(self.shown) else os.path.relpath(self.path)
        return f"interrupted; {whole} in {place}, from which the same command goes on"

    def whole(self) -> Written:
        """The end: one file where that is asked for, and no other parts."""
        files = [self.found[index][0] for index in sorted(self.found)]
        counts = [counts for _, counts in self.found.values()]
        rows, refused = sum(c.rows for c in counts), sum(c.refused for c in counts)
        why = next((self.found[i][1].why for i in sorted(self.found) if self.found[i][1].why), None)
        if rows == refused:
            for file in files:
                file.unlink()
            raise InputError(all_of(rows, why))
        if self.target:
            self._join(files)
        for file in self.path.iterdir():
            if _PART.fullmatch(file.name) and (self.target or file not in files):
                file.unlink()
        return Written(self.shown, rows, refused, len(files), self.read, why)

    def _join(self, files: list[Path]) -> None:
        assert self.target is not None
        whole = files[0]
        if len(files) > 1:
            whole = self._aside / f"whole{self.format.suffix}"
            self.format.join(whole, files)
        if self.target.exists():
            shutil.copymode(self.target, whole)
        os.replace(whole, self.target)


def _counts(form: Format, file: Path) -> Counts:
    rows, refused, first = 0, 0, None
    for why in form.refused(file):
        rows += 1
        if why is not None:
            refused, first = refused + 1, first or why
    return Counts(rows, refused, first)
