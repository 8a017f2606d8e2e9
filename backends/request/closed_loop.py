"""The steady state of a closed loop: so many users, each of whom asks again as soon as the answer is there.

A step decodes all requests that are past their prompt, and carries chunks of others' prompts as far as the
engine's budget of tokens goes. How many these are follows from counting steps (`flow`); then each kind of
step is priced. A request finds what a loop with one user fewer has on average (Reiser and Lavenberg 1980).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.base.values import Record
from llmir.hw.scheduler import Scheduler

from .chunks import Chunk, chunks
from .flow import Flow, flow
from .loop import fitting, in_flight, run_at_once
from .workload import Workload

HOST = "scheduling and sampling"


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

    The workload's own batch does not count.
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
        return self.job.budget

    @cached_property
    def max_in_flight(self) -> int:
        """How many requests memory holds at once: of all ages, or of an engine of whole batches as old."""
        return fitting(self.job) if self.whole else in_flight(self.job, self.chunk)

    @property
    def limit(self) -> str:
        """What keeps more from being in flight."""
        if self.whole:
            return "that fit"
        full = self.max_in_flight == run_at_once(self.job)
        return "that the engine runs" if full else "that fit, of mean length"

    @property
    def whole(self) -> bool:
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
        terms += [Term(HOST, host)] if host else []
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
        together = replace(self.job, batch=self.in_flight)
        if self.job.generate == 1:
            return State(0.0, together.ttft_s, ())
        if users <= 1 and self.coupled == 1:
            assert together.tpot_s is not None
            return State(self.in_flight, together.ttft_s, (Turn(self.in_flight, (), 1.0, together.tpot_s),))
        return self._mixed(users) if self.scheduler.mixes else self._waves(together)

    def _waves(self, together: Workload) -> State:
        """Of an engine that reads prompts first: answers as long end together, and the next wave begins.

        The first tokens of its groups come one after another, and each waits for the prompts yet to be read.
        """
        job, steps = self.job, together.chunks
        decode = float(self.step(self.in_flight).period_s)
        whole, first = together.ttft_s, together.ttft_mean_s
        turns = [Turn(self.in_flight, (), 1.0, decode)]
        if (count := sum(chunk.steps for chunk in steps)) > 1:
            share = (1 - first / whole) * count / (job.generate - 1)
            turns.append(Turn(0, steps, share, whole / count))
        return State(self.in_flight, first, tuple(turns))

    def _mixed(self, users: float) -> State:
        """Of an engine that reads chunks of prompts beside decodes.

        A token meets the prompts of a loop with one user fewer, and those of all other ranks.
        """
        later, new = self.job.generate - 1, self.job.length - self.job.cached
        own = flow(users, later, new, self.chunk)
        others = flow(users - 1, later, new, self.chunk).share if users > 1 else 0.0
        part = 1 - (1 - others) * (1 - own.share) ** (self.coupled - 1)
        whole = min(max(1, round(own.decoding)) * self.lanes, self.in_flight)
        decode = float(self.step(whole).period_s)
        reads = [Turn(whole, *read, self._mean(whole, read[0])) for read in self._reads(own, new)]
        read = sum(turn.share * turn.time_s for turn in reads)
        turns = Turn(whole, (), 1 - part, decode), *(t._replace(share=part * t.share) for t in reads)
        ttft = sum(turn.share * turn.time_s for turn in turns) + own.reading * read
        return State(own.decoding * self.lanes, ttft, turns)

    def _reads(self, own: Flow, new: int) -> Iterator[tuple[tuple[Chunk, ...], float]]:
        """What those steps read that read prompts, each for its share of them.

        So many prompts, or one more; or a chunk of one, of which the last is short, or is filled by the next.
        """
        lanes, cached = self._unit if self.coupled > 1 else self.lanes, self.job.cached
        if own.service <= 1:
            few, more = divmod(max(1.0, own.prompts), 1)
            yield (Chunk(int(few) * lanes, new, cached),), 1 - more
            if more:
                yield (Chunk(int(few + 1) * lanes, new, cached),), more
            return
        budget = max(1, int(new / own.service))
        steps = -(-new // budget)
        alone = (1 - own.busy) * steps / ((1 - own.busy) * steps + own.busy * own.service)
        yield chunks(lanes, new, cached, budget, lanes), alone
        at = cached + np.linspace(0, new - budget, steps).astype(int)
        yield (Chunk(lanes, budget, at),), 1 - alone

    def _mean(self, decoding: int, steps: tuple[Chunk, ...]) -> float:
        """Seconds of a step that reads one of these chunks beside decodes, on average."""
        seconds = sum(c.times * float(np.sum(self.step(decoding, c).period_s)) for c in steps)
        return seconds / sum(chunk.steps for chunk in steps)
