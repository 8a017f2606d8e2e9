"""Several simulations of one server: replications with different seeds, and a series of rates.

`Replications` has the mean of each figure and its 95% confidence interval over seeds; `RateSeries` has one
run, or several replications, for each rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.formats import PageExport, Result
from llmir.base.values import Figures, figure

from .result import LatencySpread, Simulation

# Student's t at 97.5%, by degrees of freedom n from 1. For more, z + (z³ + z) / 4n with z = 1.96 is 0.4% too
# small at most (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5).
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


RATES = ("requests_per_s", "output_tokens_per_s", "largest_rate", "goodput", "goodput_share")


class Interval(NamedTuple):
    """A mean over runs, and half the width of its 95% confidence interval."""

    mean: float
    half: float


@dataclass(frozen=True, eq=False)
class Replications(Figures, Result, PageExport):
    """Runs that differ only in their seeds."""

    runs: tuple[Simulation, ...]

    @figure
    def latencies(self) -> Mapping[str, Mapping[str, Interval]]:
        """The confidence intervals of mean and percentiles, for each latency that all runs have."""
        each = [run.latencies for run in self.runs]
        found = {name: [spread for run in each if (spread := run[name])] for name in each[0]}
        whole = {name: np.array(spreads) for name, spreads in found.items() if len(spreads) == len(self.runs)}
        return {
            name: dict(zip(LatencySpread._fields, map(_interval, columns.T), strict=True))
            for name, columns in whole.items()
        }

    @figure
    def figures(self) -> Mapping[str, Interval]:
        """Confidence intervals of rates, of goodput if limits are set, and of cost and energy."""
        columns = {name: [getattr(run, name) for run in self.runs] for name in RATES}
        spent = [run.spending._asdict() for run in self.runs]
        columns |= {name: [run[name] for run in spent] for name in spent[0]}
        return {name: _interval(column) for name, column in columns.items() if None not in column}

    @property
    def overloaded(self) -> int:
        """The number of runs in which waits grow."""
        return sum(bool(run.overloaded) for run in self.runs)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all runs."""
        return tuple(dict.fromkeys(note for run in self.runs for note in run.notes))

    def to_dict(self) -> dict[str, Any]:
        """The JSON report: intervals, and each run."""
        return {
            "replications": len(self.runs),
            "latency_s": {
                name: {stat: interval._asdict() for stat, interval in stats.items()}
                for name, stats in self.latencies.items()
            },
            "figures": {name: interval._asdict() for name, interval in self.figures.items()},
            "overloaded": self.overloaded,
            "runs": [run.to_dict() for run in self.runs],
        }

    def __repr__(self) -> str:
        return f"<Replications {len(self.runs)} × {self.runs[0]!r}>"


@dataclass(frozen=True, eq=False)
class RateSeries(Figures, Result, PageExport):
    """Runs of one server at several rates, or replications at each rate."""

    runs: tuple[Simulation, ...] | tuple[Replications, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the first run."""
        return self.runs[0].notes

    def to_dict(self) -> dict[str, Any]:
        """The JSON report of each, in order."""
        return {"runs": [run.to_dict() for run in self.runs]}

    def __repr__(self) -> str:
        return f"<Rates {len(self.runs)} × {self.runs[0]!r}>"


def _interval(values: Any) -> Interval:
    count = len(values)
    t = STUDENT[count - 2] if count - 2 < len(STUDENT) else 1.96 + 2.37 / (count - 1)
    return Interval(float(np.mean(values)), t * float(np.std(values, ddof=1)) / count**0.5)
