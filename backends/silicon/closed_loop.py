"""Simulation of a measured closed loop: users who start together and send a number of requests each.

`InteractiveRun` simulates the users of a workload as they were measured (`MeasurementMethod`).
`has_simulator` returns whether the simulator supports the engine and the program.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.request.workload import Workload
from llmir.backends.simulate.closed_loop import loop_step_times
from llmir.backends.simulate.cluster import serve
from llmir.backends.simulate.engine import check_load, engine_capacity, engine_policy, has_policy
from llmir.backends.simulate.load import Load, sample_load
from llmir.backends.simulate.server import Server
from llmir.backends.simulate.step_times import Chunks, RecordingStepTimes
from llmir.base.dataclass import dataclass
from llmir.base.values import FrozenDict, Record
from llmir.ir.tools.ranks import independent_ranks

from .rows import Array


class MeasurementMethod(NamedTuple):
    """How a closed loop was measured; all users start together.

    For 0 and None, the engine's defaults apply.

    - `rounds`: Requests per user.
    - `shortest`: Lengths are uniform between this share of the longest length and the longest length.
    - `apart_s`: The shortest time in seconds between two requests.
    - `ahead`: Whether the engine schedules a step while the previous one runs.
    - `patience`, `enough`: Prompts wait for this number of decode steps, or until a step has this share of
      its tokens.
    - `utilization`: The share of the memory that the engine uses.
    - `graphs`: The largest number of decodes in a CUDA graph.
    - `receive`: The server looks for new requests every this number of decode steps.
    """

    rounds: int = 10
    shortest: float = 1.0
    apart_s: float = 0.0
    ahead: bool | None = None
    patience: int = 0
    enough: float = 0.0
    utilization: float | None = None
    graphs: int = 0
    receive: int = 0

    @property
    def scheduler(self) -> FrozenDict[str, Any]:
        """The fields of `Scheduler` that differ from the engine's release."""
        stated = {"patience": self.patience, "enough": self.enough, "receive_interval": self.receive}
        found: dict[str, Any] = {name: value for name, value in stated.items() if value}
        return FrozenDict(found if self.ahead is None else found | {"ahead": self.ahead})


def has_simulator(job: Workload) -> bool:
    """Whether the simulator has the policy of the engine, and the program runs on one server with one
    stage.
    """
    ranks, _ = independent_ranks(job.program)
    return has_policy(job) and ranks == len(job.program.entries) == 1


@dataclass(frozen=True, eq=False)
class InteractiveRun(Record):
    """A simulated closed loop of `users` users of a workload, as it was measured."""

    job: Workload
    users: int
    manner: MeasurementMethod

    @property
    def ttft_s(self) -> float:
        """Mean time to first token of all requests, in seconds."""
        return float(np.mean(self._first_s - self._arrival_s))

    @property
    def tpot_s(self) -> float:
        """Mean over requests of the time per output token after the first, in seconds."""
        return float(np.mean((self._end_s - self._first_s) / (self.load.generate - 1)))

    @property
    def decoding(self) -> float:
        """Mean number of decoding sequences per step, weighted by time."""
        time_s, decodes = self.events[1], self.events[3]
        return float(time_s @ decodes / time_s.sum())

    @cached_property
    def load(self) -> Load:
        """The requests of the users; rows with equal settings have the same requests."""
        count, job = self.users * self.manner.rounds, self.job
        lengths = (self._range(tokens) for tokens in (job.length, job.generate))
        return replace(sample_load(count, *lengths, users=self.users), apart_s=self.manner.apart_s)

    def _range(self, mean: int) -> int | str:
        """The distribution of lengths: one length, or uniform around the mean."""
        share = self.manner.shortest
        longest = mean * 2 / (1 + share)
        return mean if share == 1 else f"uniform:{max(2, round(share * longest))},{round(longest)}"

    @cached_property
    def server(self) -> Server:
        """The server, after it has completed all requests."""
        job, load = replace(self.job, max_model_len=int(self.load.written.max()) + 2), self.load
        room, fills = engine_capacity(job), engine_policy(job)
        check_load(load, room, fills)
        times = loop_step_times(job.program, job.prefill.plan.model)
        return serve(RecordingStepTimes(times), fills, room, load)

    @cached_property
    def events(self) -> Array:
        """The columns of the server's log."""
        return np.asarray(self.server.events.T)

    @property
    def reads(self) -> list[tuple[int, int, Chunks]]:
        """The steps with prefill: decoding sequences, their cached tokens, and the prefill chunks."""
        assert isinstance(self.server.prices, RecordingStepTimes)
        return self.server.prices.recorded.prefills

    def weights(self, metric: str) -> Array:
        """How much a second of each event adds to the figure."""
        if metric == "ttft":
            begin, end, each = self._arrival_s, self._first_s, np.ones(self.users * self.manner.rounds)
        else:
            begin, end, each = self._first_s, self._end_s, 1 / (self.load.generate - 1)
        at = self.events[0]
        return (_before(begin, each, at) - _before(end, each, at)) / len(each)

    @cached_property
    def _arrival_s(self) -> Array:
        return np.array(self.server.course.arrival_s)

    @cached_property
    def _first_s(self) -> Array:
        return np.array(self.server.course.first_s)

    @cached_property
    def _end_s(self) -> Array:
        return np.array(self.server.course.end_s)


def _before(times: Array, each: Array, at: Array) -> Array:
    """For each time in `at`, the sum of the entries of `each` whose `times` are not later."""
    order = np.argsort(times)
    sums = np.concatenate([[0.0], np.cumsum(each[order])])
    return np.asarray(sums[np.searchsorted(times[order], at, side="right")])
