"""The results of a validation: measured rows beside predictions, rejected rows, and statistics.

`ValidationRow` is one figure, `Validation` all of them; `groups` and `coverage` have errors and error
bands.
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

LATENCY = "latency"  # what is judged of a kernel


class ValidationRow(NamedTuple):
    """A measured figure, in seconds, beside its prediction; or the `reason` why it has none.

    `metric` is latency (of one call of a kernel), ttft, tpot, e2e (from prompt to last token, of a batch) or
    token (seconds for each output token, over all GPUs: the inverse of a throughput).
    The device is as the table calls it if we do not know it. `measured_s` is NaN in a log without it.
    `ideal_s` is the roofline's lower bound. `basis` says whose kernels the prediction is by, `relation` how
    near most of them were measured, `band` its mean relative error where that is known. `exceeds` is empty,
    or the rule that explains why the bound is above the measurement. `version` is the range of the engine's
    versions that it was priced by, and `tp` how many ways a whole model was split. Where there is a reason,
    `metric` is what would have been judged first, if that is known.
    `users` is the bin of the users of a closed loop, `concurrency` their number, and `workload` the mean
    tokens of a prompt and of an answer, as in `922+922`.
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
        """Whether the error is not above the band."""
        return abs(self.error) <= self.band

    @property
    def of(self) -> str:
        """What was timed: a kernel's call, or a whole model."""
        return "kernels" if self.metric == LATENCY else "whole models"

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def size(self) -> str:
        """The decade of the measured time; none of a row without one."""
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
    """Of `n` rows whose band is known, the shares whose error is within it, and within twice that."""

    of: str
    basis: str
    n: int
    share: float
    twice: float


class RowGroup(NamedTuple):
    """Rows that are alike in some keys; shares of one, `all_mape` with each refused row as 100%.

    `band` is the mean error that is printed beside the predictions; `within` and `within_twice` are the
    shares of rows within it and within twice it.
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
    """What was judged and what was not; `problems` are rows whose cells make no sense.

    `questions` are of files whose times no machine can have. `amounts` are those of memory.
    """

    cost_model: str
    rows: Sequence[ValidationRow] = ()
    refused: Sequence[ValidationRow] = ()
    problems: Sequence[str] = ()
    questions: Sequence[str] = ()
    amounts: Sequence[MemoryAmount] = ()

    @property
    def measured(self) -> tuple[ValidationRow, ...]:
        """The rows that have a measurement to be held against."""
        return tuple(r for r in self.rows if not math.isnan(r.measured_s))

    @property
    def exceeding(self) -> tuple[ValidationRow, ...]:
        """The rows whose lower bound is above what was measured."""
        return tuple(r for r in self.measured if r.exceeds)

    @property
    def coverage(self) -> tuple[Coverage, ...]:
        """Of kernels and of whole models, by how near the kernels of most of a row's time were measured."""
        known: dict[tuple[str, str], list[ValidationRow]] = {}
        for row in self.measured:
            if not math.isnan(row.band):
                known.setdefault((row.of, row.relation), []).append(row)
        return tuple(_coverage(*key, known[key]) for key in sorted(known, key=_near))

    def groups(self, by: Sequence[str] = BY) -> list[RowGroup]:
        """Statistics of the rows alike in `by`, in order; InputError for an unknown key."""
        for key in by:
            if key not in KEYS:
                raise InputError(
                    f"by: unknown key {key!r}; allowed are {', '.join(KEYS)}{suggest(key, KEYS)}"
                )
        judged: dict[tuple[str, ...], list[ValidationRow]] = {}
        for row in self.measured:
            judged.setdefault(_words(row, by), []).append(row)
        # A refused row is not of a size: it counts in each group that is alike in all else.
        rest = [key for key in by if key != "size"]
        refused = Counter(_words(row, rest) for row in self.refused)
        found = [_group(rows[0], by, rows, refused[_words(rows[0], rest)]) for rows in judged.values()]
        met = {_words(rows[0], rest) for rows in judged.values()}
        alone = {_words(row, rest): row for row in self.refused}
        found += [_group(row, by, [], refused[words]) for words, row in alone.items() if words not in met]
        return sorted(found, key=lambda group: tuple(group.keys.values()))

    def reasons(self) -> list[tuple[str, str, list[int]]]:
        """Kind, reason and the numbers of the rows that were refused for it, most first."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for row in self.refused:
            numbers.setdefault((row.kind, row.reason), []).append(row.row)
        found = [(kind, reason, rows) for (kind, reason), rows in numbers.items()]
        return sorted(found, key=lambda x: (-len(x[2]), x[:2]))


def _words(row: ValidationRow, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(row, key) for key in keys)


def _near(key: tuple[str, str]) -> tuple[str, int, str]:
    """From what is calibrated to what is far."""
    of, basis = key
    order = ("calibrated", ENGINE, *RELATIONS)
    return of, order.index(basis) if basis in order else len(order), basis


def _coverage(of: str, basis: str, rows: Sequence[ValidationRow]) -> Coverage:
    """Of rows with a band.

    >>> times = (1.0, 1.1, 1.15, 0.7)
    >>> rows = [ValidationRow("t.csv", 1, "gemm", "latency", *[""] * 5, 1.0, t, 0.5, "", 0.1) for t in times]
    >>> _coverage("kernels", "calibrated", rows)[2:]
    (4, 0.5, 0.75)
    """
    off, band = np.array([(abs(row.error), row.band + 1e-12) for row in rows]).T
    return Coverage(of, basis, len(rows), float(np.mean(off <= band)), float(np.mean(off <= 2 * band)))


def _group(one: ValidationRow, by: Sequence[str], rows: Sequence[ValidationRow], refused: int) -> RowGroup:
    """Rows like `one`, and how many more were refused."""
    found = error_statistics(*np.array([(r.predicted_s, r.measured_s) for r in rows]).reshape(-1, 2).T)
    off = found.n * found.mape if rows else 0.0
    keys = dict(zip(by, _words(one, by), strict=True))
    known = [r for r in rows if not math.isnan(r.band)]
    said = (float(np.mean([r.band for r in known])), *_coverage("", "", known)[3:]) if known else ()
    return RowGroup(keys, *found, refused, (off + refused) / (found.n + refused), *said)
