"""The steady state of a closed loop: so many users, each of whom asks again as soon as the answer is there.

A step decodes all requests that are past their prompt, and carries chunks of others' prompts as far as the
engine's budget of tokens goes. With n requests that decode, G tokens an answer and a step of s seconds, a
request ends in each n / (G − 1)-th part of a step, and as many prompts begin. By Little's law (1961) those
not decoding are as many as begin in a second, times the seconds that they wait and are read; n is where both
agree. An arrival finds what a loop with one user fewer has on average (Reiser and Lavenberg 1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.chunks import Chunk, chunks
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.backends.serving.loop import fitting, in_flight, run_at_once
from llmir.frozen import Record
from llmir.hw.sections.scheduler import Scheduler

_POINTS = 4  # counts of sequences at which steps are priced; between them their time is a straight line
_HALVINGS = 60


class Term(NamedTuple):
    """A part of the time from token to token."""

    what: str
    time_s: float


class Turn(NamedTuple):
    """Steps that decode so many sequences, or none, and read chunks of prompts: how many a token waits for.

    `time_s` are the seconds of one, on average.
    """

    decoding: int
    chunks: tuple[Chunk, ...]
    share: float
    time_s: float


class State(NamedTuple):
    """What a loop settles at: how many requests decode, on average, and what the steps of a token are.

    Their shares add up the time from token to token; without a second token there are none.
    """

    decoding: float
    ttft_s: float
    turns: tuple[Turn, ...]

    @property
    def tpot_s(self) -> float:
        """Seconds from token to token."""
        return sum(turn.share * turn.time_s for turn in self.turns)


@dataclass(frozen=True, eq=False)
class ClosedLoop(Record):
    """`concurrency` users of a workload's prompts and answers, of whom each asks again when it is answered.

    The workload's own batch does not count; its `chunk`, else the engine's, is the budget of a step.
    """

    job: Workload
    concurrency: int

    @cached_property
    def scheduler(self) -> Scheduler:
        """The engine's, or one that mixes where none is known."""
        runs = self.job.prefill.plan.model.runs
        return (runs and runs.section(Scheduler)) or Scheduler()

    @property
    def chunk(self) -> int | None:
        """Tokens of a step on each data-parallel rank; None for as many as there are."""
        return self.job.chunk or (self.job.pool.tokens if self.job.pool else None)

    @cached_property
    def max_in_flight(self) -> int:
        """How many requests memory holds at once: of all ages, or of an engine of whole batches as old."""
        return fitting(self.job) if self._whole else in_flight(self.job, self.chunk)

    @property
    def limit(self) -> str:
        """What keeps more from being in flight."""
        if self._whole:
            return "that fit"
        full = self.max_in_flight == run_at_once(self.job)
        return "that the engine runs" if full else "that fit, of mean length"

    @property
    def _whole(self) -> bool:
        """Whether the engine takes whole batches, all as old."""
        return self.chunk is None and not self.scheduler.mixes

    @property
    def in_flight(self) -> int:
        """How many are there at once, decoding or being read; the others wait outside."""
        return min(self.concurrency, self.max_in_flight)

    @property
    def decoding(self) -> int:
        """How many of them decode in a step, on average, rounded down to as many in each lane."""
        return max(1, int(self.state.decoding / self.lanes)) * self.lanes

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        return self.state.tpot_s if self.job.generate > 1 else None

    @property
    def ttft_s(self) -> float:
        """Mean time to the first token, with what requests wait that memory does not hold."""
        return self.state.ttft_s + (self.concurrency / self.in_flight - 1) * self._answer_s

    @property
    def e2e_s(self) -> float:
        """Mean time to the last token."""
        return self.concurrency / self.in_flight * self._answer_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that all requests get in a second."""
        return self.in_flight * self.job.generate / self._answer_s if self._answer_s else float("inf")

    @property
    def _answer_s(self) -> float:
        """Seconds that a request is in flight."""
        return self.state.ttft_s + (self.job.generate - 1) * (self.tpot_s or 0.0)

    @property
    def error(self) -> float | None:
        """The mean relative error that is known of such times."""
        if not self.state.turns:
            return self.job.prefill.error
        decode, *reads = ((turn.share * turn.time_s, turn) for turn in self.state.turns)
        known = [(decode[0], self.step(decode[1].decoding).error)]
        known += [(seconds, self.job.prefill.error) for seconds, _ in reads]
        if any(error is None for _, error in known):
            return None
        return sum(s * float(e or 0) for s, e in known) / sum(s for s, _ in known)

    @property
    def terms(self) -> tuple[Term, ...]:
        """What TPOT is made of; the terms add up to it."""
        if not self.state.turns:
            return ()
        decode, *reads = self.state.turns
        step = self.step(decode.decoding)
        host = float(step.overhead["host_s"])
        beside = self.scheduler.mixes  # what is read beside decodes takes their place
        more = sum(turn.share * (turn.time_s - beside * decode.time_s) for turn in reads)
        what = "chunks of others' prompts in the same steps" if beside else "others' prompts, read first"
        terms = [Term(f"a step that decodes {decode.decoding:,}", decode.time_s - host)]
        terms += [Term("scheduling and sampling", host)] if host else []
        return (*terms, Term(what, more)) if reads else tuple(terms)

    def most(self, tpot_s: float) -> int:
        """The most users whose tokens come within `tpot_s`, of as many as memory holds; 0 if not one's do."""
        low, high = 0, self._unit * (self.max_in_flight // self._unit) + self._unit
        while high - low > self._unit:
            middle = (low + high) // 2 // self._unit * self._unit
            seconds = replace(self, concurrency=middle).tpot_s or 0.0
            low, high = (middle, high) if seconds <= tpot_s else (low, middle)
        return low

    @property
    def _unit(self) -> int:
        """Requests come in multiples of the micro-batches."""
        return self.job.program.micro_batches

    def bound_s(self, requests: int) -> float:
        """Seconds that a token takes at least where so many requests decode, by the model of the workload.

        The longer of what the slowest stage works and of a token's way through all stages.
        """
        alone = self.step(min(requests, self.job.program.parallelism.dp * self._unit))
        return max(float(self.step(requests).interval_s), float(alone.period_s))

    @cached_property
    def lanes(self) -> int:
        """Data-parallel ranks and micro-batches, each of which has requests of its own."""
        return min(self.in_flight, self.job.program.parallelism.dp * self._unit)

    @cached_property
    def coupled(self) -> int:
        """Ranks that wait for one another's prompts in each step, since experts lie over all of them."""
        parallel = self.job.program.parallelism
        return min(parallel.dp, self.in_flight) if parallel.ep > 1 else 1

    def step(self, batch: Any, chunk: Chunk | None = None) -> Report:
        """A step that decodes `batch` sequences half way through their answers, beside a chunk of prompts."""
        middle = self.job.length + max(self.job.generate - 2, 0) // 2
        beside = [{"batch": chunk.prompts, "new": chunk.new, "context": chunk.cached}] if chunk else []
        at: dict[str, Any] = {"batch": batch, "new": 1, "context": middle, "beside": beside}
        return Report(self.job.program, self.job.device, **at, model=self.job.model)

    def read(self, decoding: int, chunk: Chunk) -> Report:
        """A step that reads a chunk of prompts, beside so many that decode, if any."""
        if decoding:
            return self.step(decoding, chunk)
        at: dict[str, Any] = {"batch": chunk.prompts, "new": chunk.new, "context": chunk.cached}
        return Report(self.job.program, self.job.device, **at, model=self.job.model)

    @cached_property
    def state(self) -> State:
        """What the loop settles at, of the requests in flight."""
        users = self.in_flight / self.lanes
        together = replace(self.job, batch=self.in_flight, chunk=self.chunk)
        if self.job.generate == 1:
            return State(0.0, together.ttft_s, ())
        if users <= 1 and self.coupled == 1:
            assert together.tpot_s is not None
            return State(self.in_flight, together.ttft_s, (Turn(self.in_flight, (), 1.0, together.tpot_s),))
        return self._mixed(users) if self.scheduler.mixes else self._waves(together)

    def _waves(self, together: Workload) -> State:
        """Of an engine that reads prompts first: answers as long end together, and the next wave begins.

        The first tokens of its m groups come one after another, and on average a token waits for the half of
        the groups that are yet to come.
        """
        job, steps = self.job, together.chunks
        decode = float(self.step(self.in_flight).period_s)
        groups = -(-self.in_flight // steps[0].prompts)
        after = (groups - 1) / (2 * groups)
        whole = together.ttft_s
        turns = [Turn(self.in_flight, (), 1.0, decode)]
        if after:
            count = sum(chunk.steps for chunk in steps)
            share = after * count / (job.generate - 1)
            turns.append(Turn(0, steps, share, whole / count))
        return State(self.in_flight, whole * (1 - after), tuple(turns))

    def _mixed(self, users: float) -> State:
        """Of an engine that reads chunks of prompts beside decodes."""
        later, new = self.job.generate - 1, self.job.length - self.job.cached
        room = self._room(users)
        group = max(1, min(int(users / later), room // new)) if room else max(1, int(users / later))
        lanes = self._unit if self.coupled > 1 else self.lanes
        steps = chunks(group * lanes, new, self.job.cached, room, lanes)
        count = sum(chunk.steps for chunk in steps)

        def seconds(decoding: Any) -> tuple[Any, Any]:
            """Of a step that decodes, and what each step of a group of prompts takes more, on average."""
            decode = self.step(decoding).period_s
            rows = np.reshape(decoding, (-1, 1))
            reads = [c.times * np.sum(self.step(rows, c).period_s, axis=1) for c in steps]
            return decode, sum(reads) / count - decode

        def share(decoding: float) -> float:
            """Of steps that read prompts of others, where so many requests of a lane decode."""
            busy = decoding / later * count / group
            own = busy * (users - 1) / users
            others = (1 - min(busy, 1)) ** (self.coupled - 1)
            return max(own, 1 - (1 - min(own, 1)) * others)

        points = self._points()
        decodes, mores = seconds(points)

        def excess(decoding: float) -> float:
            """Requests of a lane that decode, wait and are read, less those that there are."""
            at = decoding * self.lanes
            decode, more = np.interp(at, points, decodes), np.interp(at, points, mores)
            step = decode + share(decoding) * more
            ahead = max(0.0, (users - decoding) * (users - 1) / users - (group - 1))
            ttft = (
                step + count * (decode + more) + ahead * (count * more / group + _steps(new, room) * decode)
            )
            return float(decoding + decoding / later * ttft / step - users)

        decoding = _root(excess, users)
        if room:
            decoding = min(decoding, room * later / new)
        whole = min(max(1, round(decoding)) * self.lanes, self.in_flight)
        decode, more = (float(np.sum(part)) for part in seconds(np.array([whole])))
        part = share(decoding)
        turns = (Turn(whole, (), 1 - part, decode), Turn(whole, steps, part, decode + more))
        answer = (users - decoding) * later / decoding * sum(t.share * t.time_s for t in turns)
        return State(decoding * self.lanes, answer, turns)

    def _room(self, users: float) -> int | None:
        """Tokens of prompts in a step beside decodes; None without a budget.

        No more requests of a lane decode than prompts can come for: n · P / (G − 1) = budget − n.
        """
        if self.chunk is None:
            return None
        later, new = self.job.generate - 1, self.job.length - self.job.cached
        return self.chunk - min(math.ceil(users), self.chunk * later // (later + new))

    def _points(self) -> Any:
        """Counts of sequences at which steps are priced."""
        most = self.in_flight // self._unit
        found = {max(1, math.ceil(most / 2**i)) for i in range(_POINTS)}
        return self._unit * np.array(sorted(found))


def _steps(new: int, room: int | None) -> float:
    """How many steps so many tokens fill."""
    return new / room if room else 0.0


def _root(excess: Callable[[float], float], most: float) -> float:
    """Where a function that grows passes 0, between 0 and `most`."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high
