"""How the time of a step is divided, and the time through pipeline stages with equal micro-batches.

`StepSeconds` is the only place that divides the time of a stage: into kernels, engine CPU time, launch gap
and rank skew. Reports, tables, JSON, timelines, pictures and pages show these parts. No part is below 0, and
the parts add up to the time of the stage.

With stage times t₁ … tₚ and m micro-batches, the step takes Σt + (m−1)·max t, the makespan of equal jobs in a
flow shop (Johnson 1954). If all stages are equal, the share (p−1)/(m+p−1) of the step is bubble (Narayanan et
al. 2021, "Efficient large-scale language model training on GPU clusters", section 2.2). `Timing` contains the
step, the period and the bubbles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from llmir.backends.cost.op_time import OpTime
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.ir.sizes.polynomial import maximum


@dataclass(frozen=True, eq=False)
class StagePart:
    """Rows that stages share, each with its op time."""

    priced: Sequence[tuple[Row, OpTime]]

    @property
    def prices(self) -> list[OpTime]:
        """The latter."""
        return [price for _, price in self.priced]


class StageKind(NamedTuple):
    """The parts of a stage with their numbers of executions; the number of equal stages, and whether the
    stage is first.
    """

    parts: Sequence[tuple[StagePart, int]]
    times: int
    first: bool


class Overhead(NamedTuple):
    """Time that an engine adds to the kernels of one stage in one micro-batch; each part is 0 or more."""

    host_s: Number = 0.0  # engine CPU time: the GPU waits while the CPU schedules and samples
    launching_s: Number = 0.0  # launch gap: the GPU waits for kernels that the CPU launches one by one
    skew_s: Number = 0.0  # rank skew: ranks wait for the last of them in collectives


# The row of a report for each part.
OVERHEAD_ROWS = {"host_s": "engine_cpu", "launching_s": "launch_gap", "skew_s": "rank_skew"}

Seconds = tuple[Number, ...]  # of each stage


class StepSeconds(NamedTuple):
    """Seconds of a micro-batch on each stage: the four parts, and their sum, `whole`.

    `kernels` is the time of the kernels in the step: in a captured graph with the remaining gap before each,
    and otherwise with the whole launch. The other parts are those of `Overhead`, in the same order.
    """

    kernels: Seconds
    engine_cpu: Seconds
    launch_gap: Seconds
    rank_skew: Seconds
    whole: Seconds

    @classmethod
    def of(cls, values: Sequence[Number], depth: int) -> StepSeconds:
        """Split a flat sequence of values by part, for `depth` stages."""
        return cls(*(tuple(values[i : i + depth]) for i in range(0, len(cls._fields) * depth, depth)))

    @property
    def overheads(self) -> tuple[Overhead, ...]:
        """The engine overhead of each stage."""
        return tuple(map(Overhead, self.engine_cpu, self.launch_gap, self.rank_skew))


_INSTANT = 1e-300  # seconds: a step without ops takes 0 and has no wait


@dataclass(frozen=True)
class Timing:
    """The seconds of each stage for one micro-batch, and the number of micro-batches in a step."""

    stages: tuple[Number, ...]
    micro_batches: int = 1

    @property
    def _all(self) -> Number:
        return sum(self.stages[1:], start=self.stages[0])

    @property
    def _slowest(self) -> Number:
        return reduce(maximum, self.stages)

    @property
    def step(self) -> Number:
        """The time from the start of the first micro-batch to the end of the last, including bubbles.

        >>> Timing((2.0, 2.0), micro_batches=4).step
        10.0
        """
        whole = self._all
        return whole if self.micro_batches == 1 else whole + (self.micro_batches - 1) * self._slowest

    @property
    def period(self) -> Number:
        """The time from one step to the next one that uses its tokens: until a micro-batch returns and the
        first stage is free.

        >>> Timing((2.0, 2.0)).period, Timing((2.0, 2.0), micro_batches=4).period
        (4.0, 8.0)
        """
        return maximum(self._all, self.interval)

    @property
    def interval(self) -> Number:
        """The time between steps while other requests keep the stages busy: the work of the slowest stage."""
        return self.micro_batches * self._slowest

    @property
    def busy(self) -> Number:
        """The work of all stages together."""
        return self.micro_batches * self._all

    @property
    def bubbles(self) -> tuple[Number, ...]:
        """For each stage, the seconds of a step in which it waits for the others; never negative.

        >>> Timing((1.0, 3.0), micro_batches=2).bubbles
        (5.0, 1.0)
        """
        step = self.step
        return tuple(maximum(step - self.micro_batches * seconds, 0.0) for seconds in self.stages)

    @property
    def bubble(self) -> Number:
        """The share of a single step in which stages wait.

        >>> Timing((1.0,) * 4, micro_batches=5).bubble
        0.375
        """
        whole = len(self.stages) * self.step
        return (whole - self.busy) / maximum(whole, _INSTANT)
