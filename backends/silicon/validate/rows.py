"""The results of a validation: measured rows with predictions, rejected rows, and statistics.

`ValidationRow` is one figure and `Validation` all of them. `groups` contains statistics of errors, and
`coverage` tests the error bands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from llmir.backends.silicon.rows import error_statistics
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Displayable
from llmir.base.names import suggest
from llmir.base.values import Figures
from llmir.hw.transfer import ENGINE, RELATIONS

from .memory import MemoryAmount

LATENCY = "latency"  # the metric of a kernel


class ValidationRow(NamedTuple):
    """A measured figure in seconds and its prediction, or the `reason` why there is none.

    - `metric`: latency (of a kernel call), ttft, tpot, e2e (from prompt to last token of a batch), or token
      (seconds per output token over all GPUs, the inverse of a throughput). For a rejected row, the first
      metric that would have been compared.
    - `device`: The name in the table if the device is unknown.
    - `measured_s`: NaN for a log without measured times.
    - `ideal_s`: The roofline, a lower bound.
    - `basis`, `relation`, `band`: The kernels of the prediction, the relation of most of them to the device,
      and the mean relative error if known.
    - `exceeds`: The rule that explains why the measurement is below the bound; otherwise empty.
    - `version`, `tp`: The engine's range of versions, and the tensor-parallel degree of a whole model.
    - `users`, `concurrency`, `workload`: For a closed loop, the range that its number of users is in, this
      number, and the mean tokens of a prompt and of an output, such as `922+922`.
    """

    file: str
    row: int
    kind: str
    metric: str
    device: str
    framework: str
    engine: str
    model: str
    dtype: str
    measured_s: float = math.nan
    predicted_s: float = math.nan
    ideal_s: float = math.nan
    basis: str = ""
    band: float = math.nan
    relation: str = ""
    exceeds: str = ""
    reason: str = ""
    version: str = ""
    tp: str = ""
    users: str = ""
    concurrency: str = ""
    workload: str = ""

    @property
    def within(self) -> bool:
        """Whether the error is within the band."""
        return abs(self.error) <= self.band

    @property
    def of(self) -> str:
        """What was measured: a kernel call or a whole model."""
        return "kernels" if self.metric == LATENCY else "whole models"

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def size(self) -> str:
        """The order of magnitude of the measured time; empty without a measurement."""
        edges = (
            (1e-5, "< 10 µs"),
            (1e-4, "10–100 µs"),
            (1e-3, "0.1–1 ms"),
            (1e-2, "1–10 ms"),
            (0.1, "10–100 ms"),
            (math.inf, "≥ 100 ms"),
        )
        return next((name for edge, name in edges if self.measured_s < edge), "")


class Coverage(NamedTuple):
    """Of `n` rows with a known band, the shares with an error within the band and within twice the band."""

    of: str
    basis: str
    n: int
    share: float
    twice: float


class RowGroup(NamedTuple):
    """Statistics of rows with equal keys; errors are shares, and `all_mape` counts each rejected row as 100%.

    `band` is the mean of the errors that are printed with the predictions. `within` and `within_twice` are
    the shares of rows within it and within twice it.
    """

    keys: dict[str, str]
    n: int
    mape: float
    median: float
    bias: float
    p90: float
    refused: int
    all_mape: float
    band: float = math.nan
    within: float = math.nan
    within_twice: float = math.nan


BY = ("kind", "metric", "device", "framework")
KEYS = (*BY, "engine", "version", "tp", "users", "model", "dtype", "relation", "size", "file")


@dataclass(frozen=True)
class Validation(Figures, Displayable):
    """Validated rows, rejected rows, and `problems`: rows with invalid cells.

    `questions` ask about files with impossible times. `amounts` are amounts of memory.
    """

    cost_model: str
    rows: Sequence[ValidationRow] = ()
    refused: Sequence[ValidationRow] = ()
    problems: Sequence[str] = ()
    questions: Sequence[str] = ()
    amounts: Sequence[MemoryAmount] = ()

    @property
    def measured(self) -> tuple[ValidationRow, ...]:
        """The rows with a measurement."""
        return tuple(r for r in self.rows if not math.isnan(r.measured_s))

    @property
    def exceeding(self) -> tuple[ValidationRow, ...]:
        """The rows whose lower bound is above the measurement."""
        return tuple(r for r in self.measured if r.exceeds)

    @property
    def coverage(self) -> tuple[Coverage, ...]:
        """Coverage of kernels and of whole models, by the relation of the kernels that take most of a row's
        time.
        """
        known: dict[tuple[str, str], list[ValidationRow]] = {}
        for row in self.measured:
            if not math.isnan(row.band):
                known.setdefault((row.of, row.relation), []).append(row)
        return tuple(_coverage(*key, known[key]) for key in sorted(known, key=_near))

    def groups(self, by: Sequence[str] = BY) -> list[RowGroup]:
        """Statistics of the rows with equal `by`, in order; InputError for an unknown key."""
        for key in by:
            if key not in KEYS:
                raise InputError(
                    f"by: unknown key {key!r}; allowed are {', '.join(KEYS)}{suggest(key, KEYS)}"
                )
        judged: dict[tuple[str, ...], list[ValidationRow]] = {}
        for row in self.measured:
            judged.setdefault(_words(row, by), []).append(row)
        # A rejected row has no size: it counts in each group that is equal in the other keys.
        rest = [key for key in by if key != "size"]
        refused = Counter(_words(row, rest) for row in self.refused)
        found = [_group(rows[0], by, rows, refused[_words(rows[0], rest)]) for rows in judged.values()]
        met = {_words(rows[0], rest) for rows in judged.values()}
        alone = {_words(row, rest): row for row in self.refused}
        found += [_group(row, by, [], refused[words]) for words, row in alone.items() if words not in met]
        return sorted(found, key=lambda group: tuple(group.keys.values()))

    def reasons(self) -> list[tuple[str, str, list[int]]]:
        """Kind, reason and row numbers of rejected rows; the most frequent reason comes first."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for row in self.refused:
            numbers.setdefault((row.kind, row.reason), []).append(row.row)
        found = [(kind, reason, rows) for (kind, reason), rows in numbers.items()]
        return sorted(found, key=lambda x: (-len(x[2]), x[:2]))


def _words(row: ValidationRow, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(row, key) for key in keys)


def _near(key: tuple[str, str]) -> tuple[str, int, str]:
    """Sort key: calibrated rows first, and then by the distance of the relation."""
    of, basis = key
    order = ("calibrated", ENGINE, *RELATIONS)
    return of, order.index(basis) if basis in order else len(order), basis


def _coverage(of: str, basis: str, rows: Sequence[ValidationRow]) -> Coverage:
    """Coverage of rows with a band.

    >>> times = (1.0, 1.1, 1.15, 0.7)
    >>> rows = [ValidationRow("t.csv", 1, "gemm", "latency", *[""] * 5, 1.0, t, 0.5, "", 0.1) for t in times]
    >>> _coverage("kernels", "calibrated", rows)[2:]
    (4, 0.5, 0.75)
    """
    off, band = np.array([(abs(row.error), row.band + 1e-12) for row in rows]).T
    return Coverage(of, basis, len(rows), float(np.mean(off <= band)), float(np.mean(off <= 2 * band)))


def _group(one: ValidationRow, by: Sequence[str], rows: Sequence[ValidationRow], refused: int) -> RowGroup:
    """Statistics of rows with the keys of `one`, with the number of rejected rows."""
    found = error_statistics(*np.array([(r.predicted_s, r.measured_s) for r in rows]).reshape(-1, 2).T)
    off = found.n * found.mape if rows else 0.0
    keys = dict(zip(by, _words(one, by), strict=True))
    known = [r for r in rows if not math.isnan(r.band)]
    said = (float(np.mean([r.band for r in known])), *_coverage("", "", known)[3:]) if known else ()
    return RowGroup(keys, *found, refused, (off + refused) / (found.n + refused), *said)
