"""Closed loop: the steady state of users who send the next request when the previous one completes.

`ClosedLoop.figures` contains the means that users see. They come from the simulator of the engine's
scheduler, which the caller passes as a function (`LoopSimulator`), so that `analyze --concurrency` and
`serve-sim --closed` print equal numbers. The closed form below serves engines without a simulated scheduler,
and fits.

The closed form: each step decodes all requests that are past their prompt, and also runs chunks of other
prompts within the token budget of the engine. `lane_state` computes what steps contain, which does not depend
on their times. A request with G tokens decodes in G − 1 steps, so n / (G − 1) of n decoding requests end in a
step, and as many prompts begin. By Little's law (1961), the number of requests that do not decode is the
number of arrivals per step times the number of steps of waiting and prefill. `ClosedLoop.state` then
estimates each kind of step. A request that arrives finds the average state of a loop with one user fewer
(Reiser and Lavenberg 1980).

The functions between these parts compute how many requests fit in memory, for a batch (which runs in waves)
and for a loop. `ClosedLoopWorkload` is a batch of requests together with the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.step.report import Report
from llmir.base.arguments import integer, show_value
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import Record
from llmir.hw.engine_sections import Scheduler

from .workload import REQUESTS, ChunkSteps, Workload, prefill_chunks

# Steps of a loop

_HALVINGS = 60
# Mean error of TTFT beyond that of the prefill step (queues, HTTP, tokenization, bursts): with it, 65% of 96
# closed loops of 2026 are within ± and 96% within 2 ± (docs/dev/runs.md).
SERVER_TTFT_ERROR = 0.3


class LoopLane(NamedTuple):
    """A lane of a closed loop: `decoding` requests on average, and `begin` prompts that start per step.

    One prompt takes `service` steps, and prompts take a share `busy` of all steps. A `share` of all steps
    contains prefill. `reading` is the number of steps that a prompt spends in prefill or waiting for earlier
    prompts.
    """

    decoding: float
    begin: float
    service: float
    share: float
    reading: float

    @property
    def busy(self) -> float:
        """The share of the prefill capacity of the steps that is used."""
        return min(self.begin * self.service, 1.0)

    @property
    def prompts(self) -> float:
        """Prompts per step with prefill; below one if a prompt takes several steps."""
        return self.begin / self.share


def lane_state(users: float, later: int, new: int, budget: int | None) -> LoopLane:
    """The steady state of `users` users, with `new` prompt tokens and `later` output tokens after the first.

    A request arrives during a step, and its prefill starts in the next step at the earliest. `budget` is the
    number of tokens per step, including one for each decode. Without a budget, a step prefills all prompts
    that have arrived.
    """
    # Decodes and the prompts that arrive for them fill a step at most: n + n · P / (G − 1) = budget.
    low, high = 0.0, min(users, budget * later / (later + new)) if budget else users
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _flow(middle, users, later, new, budget)
        there = middle + found.begin * (1 + found.reading)
        low, high = (middle, high) if there < users else (low, middle)
    found = _flow(high, users, later, new, budget)
    return found._replace(reading=max(1.0, (users - high) / found.begin - 1))


def _flow(decoding: float, users: float, later: int, new: int, budget: int | None) -> LoopLane:
    """The lane with `decoding` requests: prompts arrive at a queue that serves c = 1 / S of them per step.

    The queue is empty with probability (1 − ρ)^c: 1 − ρ as for any queue with c = 1, Poisson's value for c →
    ∞. More than x prompts are ahead with probability ρ exp(−2x (x / N + 1 − ρ)). This holds for N periodic
    streams of equal service times (Roberts and Virtamo 1991), here the N other users. For many users the mean
    is Pollaczek's ρ / 2 (1 − ρ). If another prompt follows, the last step of a long prompt also contains
    tokens of the next prompt.
    """
    begin = decoding / later
    if budget is None:
        return LoopLane(decoding, begin, 0.0, -math.expm1(-begin), 1.0)
    service = new / (budget - decoding)
    found = LoopLane(decoding, begin, service, 1.0, 1.0)
    busy, idle = found.busy, 1 - found.busy
    ahead = busy / (idle + math.sqrt(idle**2 + 8 / (math.pi * (users - 1)))) if users > 1 else 0.0
    if service <= 1:
        return found._replace(share=1 - idle ** (1 / service), reading=1 + service * ahead)
    steps = busy * service + idle * math.ceil(service)
    return found._replace(share=min(1.0, begin * steps), reading=steps + service * ahead)


# Requests that fit in memory


def in_flight(job: Workload, chunk: int | None) -> int:
    """The number of concurrent requests of a closed loop that memory and the engine allow, each with any
    number of generated tokens.

    Requests count with their mean length. Prompts are prefilled one by one, or in chunks, while the other
    caches stay allocated. InputError if not even one fits.
    """
    return min(fitting_requests(mean_request(job, chunk)), concurrent_sequences(job))


def mean_request(job: Workload, chunk: int | None) -> Workload:
    """A request halfway through its output; its memory is the mean over all ages."""
    how = chunk or (job.chunk if job.pool else job.length)
    return replace(job, batch=1, generate=job.generate // 2 + 1, chunk=how)


def concurrent_sequences(job: Workload) -> int:
    """The number of sequences that the engine runs at once, equal in each micro-batch."""
    most = job.pool.sequences * job.program.parallelism.dp if job.pool else REQUESTS
    return most - most % job.program.micro_batches


def fitting_requests(one: Workload, batch: int = 0) -> int:
    """The number of `batch` requests (0: any number) like `one` that fit in memory together.

    InputError if not even one fits.
    """
    if not one.max_batch:
        where = f"{one.program.devices} × {one.device.name}"
        raise InputError(f"does not fit: not even one request of {one.program.name} on {where}")
    return min(batch or one.max_batch, one.max_batch)


def static_batch_time(job: Callable[[int], Workload], batch: int, within: int) -> float:
    """Seconds until a static batch is complete: waves of `within` requests, and then the remaining
    requests.
    """
    whole, rest = divmod(batch, within)
    return whole * (job(within).e2e_s if whole else 0.0) + (job(rest).e2e_s if rest else 0.0)


# Times of a loop

ENGINE_CPU_TERM = "scheduling and sampling"


class TpotTerm(NamedTuple):
    """A part of the mean time between two tokens of a request."""

    what: str
    time_s: float


class LoopStep(NamedTuple):
    """A kind of steps, which decode `decoding` sequences or none and run prefill chunks; `share` is their
    number per token.

    `time_s` is the mean time of one step in seconds.
    """

    decoding: int
    chunks: tuple[ChunkSteps, ...]
    share: float
    time_s: float


class LoopState(NamedTuple):
    """The steady state of a loop: the mean number of decoding requests, and the kinds of steps per token.

    The time per token is the sum of the times of the steps, weighted by their shares. If requests have no
    second token, there are no steps.
    """

    decoding: float
    ttft_s: float
    turns: tuple[LoopStep, ...]

    @property
    def tpot_s(self) -> float:
        """Seconds between two tokens of a request."""
        return sum(turn.share * turn.time_s for turn in self.turns)


# Answers as benchmark clients draw them, or all equal. InferenceX draws lengths uniformly from 0.8 to 1.0 of
# the stated one: `--random-range-ratio 0.8` in benchmarks/benchmark_lib.sh of SemiAnalysisAI/InferenceX.
LENGTHS = ("spread", "fixed")
SHORTEST = 0.8


def least_answer(tokens: int) -> int:
    """Number of tokens of the shortest output, if outputs of at most `tokens` tokens vary.

    >>> least_answer(1024), least_answer(2), least_answer(1)
    (819, 2, 1)
    """
    return max(min(tokens, 2), int(SHORTEST * tokens))


class LoopFigures(NamedTuple):
    """The latencies that the users of a closed loop see: means of the steady state, in seconds.

    `tpot_s` is None if all outputs have one token. `decoding` is the mean number of sequences in a step with
    decodes. `requests` were simulated, of which the first `warm_up` are excluded; both are 0 for the closed
    form. `burst_ttft_s` is the mean TTFT of all requests, including the initial burst of users who start
    together; None if unknown. `notes` are the assumptions of the simulation.
    """

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    output_tokens_per_s: float
    decoding: float
    requests: int = 0
    warm_up: int = 0
    burst_ttft_s: float | None = None
    notes: tuple[str, ...] = ()


# Simulates a number of users of a workload with `LENGTHS`; None if the engine's scheduler is not known.
LoopSimulator = Callable[[Workload, int, str], "LoopFigures | None"]


@dataclass(frozen=True, eq=False)
class ClosedLoop(Record):
    """A closed loop: `concurrency` users with the prompts and outputs of a workload.

    The workload's own batch is ignored. Without `simulate`, or without a known scheduler, the results come
    from the closed form, with equal output lengths.
    """

    job: Workload
    concurrency: int
    lengths: str = LENGTHS[0]
    simulate: LoopSimulator | None = None

    @cached_property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler; if it is not known, one with mixed steps."""
        runs = self.job.prefill.plan.model.runs
        return (runs and runs.section(Scheduler)) or Scheduler()

    @property
    def chunk(self) -> int | None:
        """Tokens of a step on each data-parallel rank; None for no limit."""
        return self.job.budget

    @cached_property
    def max_in_flight(self) -> int:
        """The number of requests that fit in memory. They have any number of generated tokens, or all the
        same number for an engine with static batches.
        """
        return fitting_requests(self.job) if self.whole else in_flight(self.job, self.chunk)

    @property
    def limit(self) -> str:
        """The reason why no more requests are in flight."""
        if self.whole:
            return "that fit"
        full = self.max_in_flight == concurrent_sequences(self.job)
        return "that the engine runs" if full else "that fit, of mean length"

    @property
    def whole(self) -> bool:
        """Whether the engine runs static batches, in which all requests have equal numbers of tokens."""
        return self.chunk is None and not self.scheduler.mixes

    @property
    def in_flight(self) -> int:
        """The number of requests in prefill or decode at once; the others wait outside."""
        return min(self.concurrency, self.max_in_flight)

    @property
    def decoding(self) -> int:
        """The mean number of requests that decode in a step, rounded down so that all lanes have equally
        many.
        """
        return max(1, int(self.figures.decoding / self.lanes)) * self.lanes

    @cached_property
    def figures(self) -> LoopFigures:
        """The mean results of users, simulated or from the closed form."""
        found = self.simulate(self.job, self.concurrency, self.lengths) if self.simulate else None
        return found or self._closed_form

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest output; the longest is the workload's."""
        spread = self.figures.requests and self.lengths != LENGTHS[-1]
        return least_answer(self.job.generate) if spread else self.job.generate

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        return self.figures.tpot_s

    @property
    def ttft_s(self) -> float:
        """Mean TTFT, including the wait of requests that do not fit in memory."""
        return self.figures.ttft_s

    @property
    def e2e_s(self) -> float:
        """Mean time to the last token."""
        return self.figures.e2e_s

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of all requests."""
        return self.figures.output_tokens_per_s

    @property
    def _closed_form(self) -> LoopFigures:
        """The results from Little's law and the steady state; users that do not fit in memory wait."""
        state, generate = self.state, self.job.generate
        tpot_s = state.tpot_s if generate > 1 else None
        answer_s = state.ttft_s + (generate - 1) * (tpot_s or 0.0)
        rounds = self.concurrency / self.in_flight
        rate = self.in_flight * generate / answer_s if answer_s else float("inf")
        ttft_s = state.ttft_s + (rounds - 1) * answer_s
        return LoopFigures(ttft_s, tpot_s, rounds * answer_s, rate, state.decoding)

    @property
    def _decode_step(self) -> tuple[Report, float]:
        """The step with the mean number of decodes, and its share of TPOT in seconds."""
        tpot_s, figures = self.tpot_s or 0.0, self.figures
        if not figures.requests:
            decode = self.state.turns[0]
            return self.step(decode.decoding), decode.time_s
        step = self.step(max(1, round(figures.decoding)))
        return step, tpot_s if self.concurrency == 1 else min(float(step.period_s), tpot_s)

    @property
    def error(self) -> float | None:
        """The known mean relative error of these times."""
        if not self.tpot_s:
            return self.job.prefill.error
        step, decode_s = self._decode_step
        reads_s = self.tpot_s - decode_s
        read_error = self.job.prefill.error if reads_s else 0.0
        if step.error is None or read_error is None:
            return None
        return float(decode_s * step.error + reads_s * read_error) / self.tpot_s

    @property
    def ttft_error(self) -> float | None:
        """The mean relative error of TTFT: of its prefill step, and of its other parts."""
        read_error = self.job.prefill.error
        return None if read_error is None else math.hypot(float(read_error), SERVER_TTFT_ERROR)

    @property
    def terms(self) -> tuple[TpotTerm, ...]:
        """The terms that add up to TPOT."""
        if not self.tpot_s:
            return ()
        step, decode_s = self._decode_step
        host, reads_s = min(float(step.overhead["host_s"]), decode_s), self.tpot_s - decode_s
        beside = self.scheduler.mixes
        what = "prefill chunks of other requests" if beside else "separate prefill steps of other requests"
        terms = [TpotTerm(f"decode step, batch {int(step.batch):,}", decode_s - host)]
        terms += [TpotTerm(ENGINE_CPU_TERM, host)] if host else []
        return (*terms, TpotTerm(what, reads_s)) if reads_s else tuple(terms)

    def most(self, tpot_s: float) -> int:
        """The largest number of users with a TPOT of at most `tpot_s` that fit in memory; 0 if none."""
        low, high = 0, self._unit * (self.max_in_flight // self._unit) + self._unit
        while high - low > self._unit:
            middle = (low + high) // 2 // self._unit * self._unit
            seconds = replace(self, concurrency=middle).tpot_s or 0.0
            low, high = (middle, high) if seconds <= tpot_s else (low, middle)
        return low

    @property
    def _unit(self) -> int:
        """The number of requests is a multiple of the micro-batches."""
        return self.job.program.micro_batches

    def bound_s(self, requests: int) -> float:
        """Lower bound of TPOT in seconds with `requests` decoding requests, from the workload's cost model.

        It is the larger of the work of the slowest stage and the latency through all stages.
        """
        alone = self.step(min(requests, self.job.program.parallelism.dp * self._unit))
        return max(float(self.step(requests).interval_s), float(alone.period_s))

    @cached_property
    def lanes(self) -> int:
        """Data-parallel ranks times micro-batches, each with separate requests."""
        return min(self.in_flight, self.job.program.parallelism.dp * self._unit)

    @cached_property
    def coupled(self) -> int:
        """The number of ranks that wait for each other's prefill in each step because they share experts."""
        parallel = self.job.program.parallelism
        return min(parallel.dp, self.in_flight) if parallel.ep > 1 else 1

    def step(self, batch: Any, chunk: ChunkSteps | None = None) -> Report:
        """A step that decodes `batch` sequences halfway through their outputs, with an optional prefill
        chunk.
        """
        middle = self.job.length + max(self.job.generate - 2, 0) // 2
        beside = [{"batch": chunk.prompts, "new": chunk.new, "context": chunk.cached}] if chunk else []
        at: dict[str, Any] = {"batch": batch, "new": 1, "context": middle, "beside": beside}
        return Report(self.job.program, self.job.device, **at, model=self.job.model)

    def read(self, decoding: int, chunk: ChunkSteps) -> Report:
        """A step with a prefill chunk and `decoding` decodes, possibly none."""
        if decoding:
            return self.step(decoding, chunk)
        at: dict[str, Any] = {"batch": chunk.prompts, "new": chunk.new, "context": chunk.cached}
        return Report(self.job.program, self.job.device, **at, model=self.job.model)

    @cached_property
    def state(self) -> LoopState:
        """The steady state with the requests in flight."""
        users = self.in_flight / self.lanes
        together = replace(self.job, batch=self.in_flight)
        if self.job.generate == 1:
            return LoopState(0.0, together.ttft_s, ())
        if users <= 1 and self.coupled == 1:
            assert together.tpot_s is not None
            return LoopState(
                self.in_flight, together.ttft_s, (LoopStep(self.in_flight, (), 1.0, together.tpot_s),)
            )
        return self._mixed(users) if self.scheduler.mixes else self._waves(together)

    def _waves(self, together: Workload) -> LoopState:
        """The state for an engine that runs prefill first: requests with equal outputs end together, and the
        next wave begins.

        The groups of a wave get their first tokens one after another, and each group waits for the prefill of
        the later groups.
        """
        job, steps = self.job, together.chunks
        decode = float(self.step(self.in_flight).period_s)
        whole, first = together.ttft_s, together.ttft_mean_s
        turns = [LoopStep(self.in_flight, (), 1.0, decode)]
        if (count := sum(chunk.steps for chunk in steps)) > 1:
            share = (1 - first / whole) * count / (job.generate - 1)
            turns.append(LoopStep(0, steps, share, whole / count))
        return LoopState(self.in_flight, first, tuple(turns))

    def _mixed(self, users: float) -> LoopState:
        """The state for an engine that mixes prefill chunks with decodes.

        A token waits for the prompts of a loop with one user fewer, and for those of all other ranks.
        """
        later, new = self.job.generate - 1, self.job.length - self.job.cached
        own = lane_state(users, later, new, self.chunk)
        others = lane_state(users - 1, later, new, self.chunk).share if users > 1 else 0.0
        part = 1 - (1 - others) * (1 - own.share) ** (self.coupled - 1)
        whole = min(max(1, round(own.decoding)) * self.lanes, self.in_flight)
        decode = float(self.step(whole).period_s)
        reads = [LoopStep(whole, *read, self._mean(whole, read[0])) for read in self._reads(own, new)]
        read = sum(turn.share * turn.time_s for turn in reads)
        turns = LoopStep(whole, (), 1 - part, decode), *(t._replace(share=part * t.share) for t in reads)
        ttft = sum(turn.share * turn.time_s for turn in turns) + own.reading * read
        return LoopState(own.decoding * self.lanes, ttft, turns)

    def _reads(self, own: LoopLane, new: int) -> Iterator[tuple[tuple[ChunkSteps, ...], float]]:
        """The kinds of prefill chunks, each with its share of the steps with prefill.

        A step contains a number of whole prompts, or one more. Or it contains a chunk of one prompt; the last
        chunk is short, or the next prompt fills it.
        """
        lanes, cached = self._unit if self.coupled > 1 else self.lanes, self.job.cached
        if own.service <= 1:
            few, more = divmod(max(1.0, own.prompts), 1)
            yield (ChunkSteps(int(few) * lanes, new, cached),), 1 - more
            if more:
                yield (ChunkSteps(int(few + 1) * lanes, new, cached),), more
            return
        budget = max(1, int(new / own.service))
        steps = -(-new // budget)
        alone = (1 - own.busy) * steps / ((1 - own.busy) * steps + own.busy * own.service)
        yield prefill_chunks(lanes, new, cached, budget, lanes), alone
        at = cached + np.linspace(0, new - budget, steps).astype(int)
        yield (ChunkSteps(lanes, budget, at),), 1 - alone

    def _mean(self, decoding: int, steps: tuple[ChunkSteps, ...]) -> float:
        """The mean time in seconds of a step with one of these chunks and with decodes."""
        seconds = sum(c.times * float(np.sum(self.step(decoding, c).period_s)) for c in steps)
        return seconds / sum(chunk.steps for chunk in steps)


# A batch with a loop


def closed_loop_workload(
    job: Workload,
    concurrency: int | None,
    max_tpot_s: float | None,
    simulate: LoopSimulator,
    lengths: str = LENGTHS[0],
) -> ClosedLoopWorkload:
    """A workload with users instead of a batch; InputError for both, or for a limit without users."""
    if concurrency is None:
        raise InputError(f"max_tpot_s: {show_value(max_tpot_s)}; it requires concurrency")
    if job.batch != 1:
        raise InputError(f"concurrency: {show_value(concurrency)} requests; leave batch out")
    own = {f.name: getattr(job, f.name) for f in fields(Workload)}
    own["batch"] = integer("concurrency", concurrency, 1, REQUESTS)
    return ClosedLoopWorkload(**own, max_tpot_s=max_tpot_s, lengths=lengths, simulate=simulate)


@dataclass(frozen=True, eq=False)
class ClosedLoopWorkload(Workload):
    """A batch of requests, and `loop`, the closed loop with an equal number of users.

    With `max_tpot_s`, `most` is the loop with the most users within this limit.
    """

    max_tpot_s: float | None = field(default=None, metadata={"least": 0.0, "above": True})
    lengths: str = field(default=LENGTHS[0], metadata={"choices": LENGTHS})
    simulate: LoopSimulator | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.program.name
        if self.program.patches or self.program.image_tokens or "prompt" in self.program.facts:
            read = "images" if "prompt" not in self.program.facts else "prompts that layers see in part"
            raise InputError(f"concurrency: {self.batch:,}; a loop over {read} of {name} is not modelled")
        if self.max_tpot_s is not None and self.generate == 1:
            raise InputError(
                f"max_tpot_s: {self.max_tpot_s:g}; with 1 token to generate there is no later one"
            )

    @cached_property
    def loop(self) -> ClosedLoop:
        """The closed loop with one user for each request of the batch."""
        own = {f.name: getattr(self, f.name) for f in fields(Workload)}
        job = Workload(**own | {"batch": self.program.micro_batches})
        return ClosedLoop(job, self.batch, self.lengths, self.simulate)

    @cached_property
    def most(self) -> ClosedLoop | None:
        """The loop with the most users within `max_tpot_s`; None if one user already exceeds it."""
        if self.max_tpot_s is None or not (users := self.loop.most(self.max_tpot_s)):
            return None
        return replace(self.loop, concurrency=users)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the batch, and the assumptions of the loop's simulation."""
        return (*super().notes, *self.loop.figures.notes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, with `serving`."""
        loop, most = self.loop, self.most
        limit = None
        if self.max_tpot_s is not None:
            users = most.concurrency if most else 0
            limit = {
                "max_tpot_s": self.max_tpot_s,
                "concurrency": users,
                "output_tokens_per_s": most.output_tokens_per_s if most else 0.0,
            }
        return super().to_dict() | {
            "serving": {
                "concurrency": loop.concurrency,
                "ttft_s": loop.ttft_s,
                "tpot_s": loop.tpot_s,
                "e2e_s": loop.e2e_s,
                "output_tokens_per_s": loop.output_tokens_per_s,
                "max_in_flight": loop.max_in_flight,
                "in_flight": loop.in_flight,
                "decoding": loop.figures.decoding,
                "lengths": loop.lengths if loop.figures.requests else LENGTHS[-1],
                "requests": loop.figures.requests,
                "warm_up": loop.figures.warm_up,
                "burst_ttft_s": loop.figures.burst_ttft_s,
                "chunk": loop.chunk,
                "mixes": loop.scheduler.mixes,
                "terms": [term._asdict() for term in loop.terms],
                "within": limit,
            }
        }
