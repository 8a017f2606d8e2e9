"""A measured row beside what is predicted for it, rows that are refused, and the statistics of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.silicon.folds import errors
from llmir.errors import InputError
from llmir.frozen import Figures
from llmir.names import suggest
from llmir.views import Shown

METRICS = {
    "latency": "one call of a kernel",
    "ttft": "time to the first token",
    "tpot": "time per output token after the first",
    "e2e": "from prompt to last token, of a batch",
    "token": "seconds for each output token, over all GPUs: the inverse of a throughput",
}


class Where(NamedTuple):
    """What a row is of; the device as the table calls it if we do not know it."""

    file: str
    row: int
    kind: str
    metric: str
    device: str
    framework: str
    engine: str
    model: str
    dtype: str


class Judged(NamedTuple):
    """A figure that was measured, in seconds, and its prediction; `measured_s` is NaN in a log without it.

    `ideal_s` is the roofline's lower bound. `basis` says whose kernels the prediction is by, `band` its mean
    relative error where that is known. `exceeds` is empty, or the rule that explains why the bound is above
    the measurement.
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
    measured_s: float
    predicted_s: float
    ideal_s: float
    basis: str = ""
    band: float = math.nan
    exceeds: str = ""

    @property
    def within(self) -> bool:
        """Whether the error is not above the band."""
        return abs(self.error) <= self.band

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def size(self) -> str:
        """The decade of the measured time."""
        edges = (
            (1e-5, "< 10 µs"),
            (1e-4, "10–100 µs"),
            (1e-3, "0.1–1 ms"),
            (1e-2, "1–10 ms"),
            (0.1, "10–100 ms"),
        )
        return next((name for edge, name in edges if self.measured_s < edge), "≥ 100 ms")


class Refused(NamedTuple):
    """A row that is not priced, and why; `metric` is what would have been judged first, if that is known."""

    file: str
    row: int
    kind: str
    metric: str
    device: str
    framework: str
    engine: str
    model: str
    dtype: str
    reason: str


class Group(NamedTuple):
    """Rows that are alike in some keys; shares of one, `all_mape` with each refused row as 100%."""

    keys: dict[str, str]
    n: int
    mape: float
    median: float
    bias: float
    p90: float
    refused: int
    all_mape: float


BY = ("kind", "metric", "device", "framework")
KEYS = (*BY, "engine", "model", "dtype", "size", "file")


@dataclass
class Findings:
    """What a validation has judged so far."""

    rows: list[Judged] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Validation(Figures, Shown):
    """What was judged and what was not; `problems` are rows whose cells make no sense.

    `questions` are of files whose times no machine can have.
    """

    cost_model: str
    rows: Sequence[Judged] = ()
    refused: Sequence[Refused] = ()
    problems: Sequence[str] = ()
    questions: Sequence[str] = ()

    @property
    def measured(self) -> tuple[Judged, ...]:
        """The rows that have a measurement to be held against."""
        return tuple(r for r in self.rows if not math.isnan(r.measured_s))

    @property
    def exceeding(self) -> tuple[Judged, ...]:
        """The rows whose lower bound is above what was measured."""
        return tuple(r for r in self.measured if r.exceeds)

    def groups(self, by: Sequence[str] = BY) -> list[Group]:
        """Statistics of the rows alike in `by`, in order; InputError for an unknown key."""
        for key in by:
            if key not in KEYS:
                raise InputError(
                    f"by: unknown key {key!r}; allowed are {', '.join(KEYS)}{suggest(key, KEYS)}"
                )
        judged: dict[tuple[str, ...], list[Judged]] = {}
        for row in self.measured:
            judged.setdefault(tuple(getattr(row, k) for k in by), []).append(row)
        # A refused row is not of a size: it counts in each group that is alike in all else.
        known = [k for k in by if k in Refused._fields]
        counts: dict[tuple[str, ...], int] = {}
        for refused in self.refused:
            some = tuple(getattr(refused, k) for k in known)
            counts[some] = counts.get(some, 0) + 1
        where = [list(by).index(k) for k in known]
        found = []
        for names, rows in judged.items():
            missing = counts.get(tuple(names[i] for i in where), 0)
            found.append(_group(dict(zip(by, names, strict=True)), rows, missing))
        met = {tuple(names[i] for i in where) for names in judged}
        for some, n in counts.items():
            if some not in met:
                nan = math.nan
                of = dict(zip(known, some, strict=True))
                found.append(Group({k: of.get(k, "") for k in by}, 0, nan, nan, nan, nan, n, 1.0))
        return sorted(found, key=lambda g: tuple(g.keys.values()))

    def reasons(self) -> list[tuple[str, str, list[int]]]:
        """Kind, reason and the numbers of the rows that were refused for it, most first."""
        numbers: dict[tuple[str, str], list[int]] = {}
        for row in self.refused:
            numbers.setdefault((row.kind, row.reason), []).append(row.row)
        found = [(kind, reason, rows) for (kind, reason), rows in numbers.items()]
        return sorted(found, key=lambda x: (-len(x[2]), x[:2]))


def _group(keys: dict[str, str], rows: Iterable[Judged], refused: int) -> Group:
    pairs: Any = np.array([(r.predicted_s, r.measured_s) for r in rows])
    found = errors(pairs[:, 0], pairs[:, 1])
    everything = (found.n * found.mape + refused) / (found.n + refused)
    return Group(keys, *found, refused=refused, all_mape=everything)
