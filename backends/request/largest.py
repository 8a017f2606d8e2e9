"""The largest batch, context and number of users of a deployment, and the limit that decides each.

`largest_load` is the entry point. For each limit alone, bisection finds the largest number that it allows;
this is exact if the limited value never decreases as the number grows. A second bisection over all limits
together computes the answer: it meets all limits, and the next number does not (`CapacityAnswer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Result
from llmir.base.values import Figures
from llmir.hw.prices import OperatingCost, operating_cost

from .closed_loop import LENGTHS, ClosedLoop, LoopSimulator
from .workload import LONGEST, Workload

MANY = 1 << 20  # requests: no limit that allows more is one
LARGE = 1e30  # bytes: more than any device has
PREFILL, DECODE, BOTH = "prefill", "decode", "both"


class CapacityLimit(NamedTuple):
    """The largest number that one limit allows, and how much of the limit is used at the answer.

    `most` is the largest answer under this limit alone; None if it is unbounded. At the answer (or at the
    smallest number, if there is no answer), `used` of `allowed` is used, where None means no limit; the next
    number adds `more`. If a limit is not `hard`, a larger number only costs time, because prefill takes more
    steps.
    """

    name: str
    phase: str
    unit: str
    most: int | None
    used: float
    allowed: float | None
    more: float | None
    hard: bool = True


class CapacityMeasure(NamedTuple):
    """A quantity as a function of the number, and the limit of this quantity."""

    name: str
    phase: str
    unit: str
    figure: Callable[[int], float]
    allowed: Callable[[int], float | None]
    hard: bool = True

    def meets(self, n: int) -> bool:
        """Whether the figure is within the limit."""
        allowed = self.allowed(n)
        return allowed is None or self.figure(n) <= allowed


@dataclass(frozen=True, eq=False)
class CapacityAnswer(Figures):
    """The largest number `most` of one kind that meets all limits (0 if none does); numbers are multiples of
    `step`.

    The uses of limits, times and rates are those at the number `at`: the answer, or the smallest number if
    there is no answer.
    """

    what: str
    most: int
    at: int
    step: int
    limits: tuple[CapacityLimit, ...]
    ttft_s: float
    tpot_s: float | None
    output_tokens_per_s: float
    spent: OperatingCost

    @property
    def binding(self) -> CapacityLimit | None:
        """The limit that allows the smallest answer; None without a limit."""
        return _nearest_limit(self.limits)

    def of(self, phase: str) -> CapacityLimit | None:
        """The limit of a phase that allows the smallest number."""
        return _nearest_limit(tuple(limit for limit in self.limits if limit.phase in (phase, BOTH)))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-compatible values."""
        by = {"binds": self.binding, PREFILL: self.of(PREFILL), DECODE: self.of(DECODE)}
        return {
            "most": self.most,
            **{name: limit and limit.name for name, limit in by.items()},
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "cost_usd_per_mtok": self.spent.usd_per_mtok,
            "energy_j_per_token": self.spent.joules_per_token,
            "limits": [limit._asdict() for limit in self.limits],
        }


def _nearest_limit(limits: tuple[CapacityLimit, ...]) -> CapacityLimit | None:
    """The limit that decides; among equal ones, the nearest one, or the one that is exceeded most."""
    known = [limit for limit in limits if limit.hard and limit.most is not None]
    return min(known, key=lambda limit: (limit.most or 0, -limit.used / (limit.allowed or 1)), default=None)


@dataclass(frozen=True, eq=False)
class LargestLoad(Figures, Result):
    """The largest load of a deployment, for requests like those of `job`.

    `batch` is the number of requests that start together. `context` is the number of tokens, prompt plus
    output, of each of the requests of `job`. `requests` is the number of concurrent requests of users in a
    closed loop, with output `lengths`.
    """

    job: Workload
    max_ttft_s: float | None
    max_tpot_s: float | None
    batch: CapacityAnswer
    context: CapacityAnswer
    requests: CapacityAnswer
    lengths: str = LENGTHS[0]

    @property
    def answers(self) -> Mapping[str, CapacityAnswer]:
        """The three answers by name."""
        return {"batch": self.batch, "context": self.context, "requests": self.requests}

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user."""
        return self.job.notes

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        job = self.job
        return {
            "model": job.program.name,
            "hardware": job.device.name,
            "devices": job.program.devices,
            "batch": job.batch,
            "prompt": job.prompt,
            "generate": job.generate,
            "engine": job.memory.engine,
            "max_ttft_s": self.max_ttft_s,
            "max_tpot_s": self.max_tpot_s,
            "lengths": self.lengths,
            **{name: answer.to_dict() for name, answer in self.answers.items()},
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {answer.most:,}" for name, answer in self.answers.items())
        return f"<Largest {self.job.program.name} on {self.job.device.name}: {found}>"


def largest_load(
    job: Workload,
    max_ttft_s: float | None = None,
    max_tpot_s: float | None = None,
    simulate: LoopSimulator | None = None,
    lengths: str = LENGTHS[0],
) -> LargestLoad:
    """Find the largest batch, context and number of concurrent requests within memory, engine and latency
    limits.

    Concurrent requests come from users in a closed loop, which `simulate` simulates with output `lengths`.
    InputError for models without text tokens or with fixed prompt lengths, and for a TPOT limit without a
    second output token.
    """
    if job.program.patches or job.program.image_tokens or "prompt" in job.program.facts:
        raise InputError(
            f"largest: {job.program.name} does not read text alone; only text models are supported"
        )
    if max_tpot_s is not None and job.generate == 1:
        raise InputError(f"max_tpot: {max_tpot_s:g} s; with 1 token to generate there is no later one")
    limits = max_ttft_s, max_tpot_s
    requests = _requests(job, *limits, simulate, lengths)
    return LargestLoad(job, *limits, _batch(job, *limits), _context(job, *limits), requests, lengths)


def largest_meeting(meets: Callable[[int], bool], cap: int) -> int:
    """Find the largest number from 0 (none) to `cap` that meets a condition, by bisection.

    The search doubles and then bisects. If all smaller numbers also meet the condition, the result is the
    largest one.

    >>> largest_meeting(lambda n: n * n <= 50, 1000)
    7
    >>> largest_meeting(lambda n: False, 1000), largest_meeting(lambda n: True, 1000)
    (0, 1000)
    """
    low, high = 0, 1
    while high < cap and meets(high):
        low, high = high, 2 * high
    if high >= cap:
        if cap and meets(cap):
            return cap
        high = cap
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def _limits(
    measures: list[CapacityMeasure], cap: int, step: int, first: int
) -> tuple[int, tuple[CapacityLimit, ...]]:
    """The largest number `first` + n · `step`, with n from 1 to `cap`, within the hard limits, or 0; and all
    limits.
    """

    def number(n: int) -> int:
        return first + n * step if n else 0

    def meets(measure: CapacityMeasure) -> Callable[[int], bool]:
        return lambda n: measure.meets(number(n))

    hard = [measure for measure in measures if measure.hard]
    # Memory and the engine's limits are evaluated first and are fast: if they are exceeded, no time is
    # estimated.
    found = largest_meeting(lambda n: all(measure.meets(number(n)) for measure in reversed(hard)), cap)
    here, more = number(max(found, 1)), number(max(found, 1) + 1)
    limits = []
    for measure in measures:
        allowed, used = measure.allowed(here), measure.figure(here)
        alone = None if allowed is None else largest_meeting(meets(measure), cap)
        limits.append(
            CapacityLimit(
                *measure[:3],
                None if alone is None or alone >= cap else number(alone),
                used,
                allowed,
                max(measure.figure(more) - used, 0.0) if found < cap else None,  # simulated means may fall
                measure.hard,
            )
        )
    return number(found), tuple(limits)


def _times(
    job: Workload,
    ttft: Callable[[int], float],
    tpot: Callable[[int], float | None],
    max_ttft_s: float | None,
    max_tpot_s: float | None,
) -> list[CapacityMeasure]:
    """The latencies to limit: TTFT, and TPOT if there are later tokens."""
    first = CapacityMeasure("ttft", PREFILL, "s", ttft, lambda n: max_ttft_s)
    later = CapacityMeasure("tpot", DECODE, "s", lambda n: tpot(n) or 0.0, lambda n: max_tpot_s)
    return [first, later] if job.generate > 1 else [first]


def _batch(job: Workload, max_ttft_s: float | None, max_tpot_s: float | None) -> CapacityAnswer:
    """Requests that start together: their prefill steps run in sequence, and then all requests decode
    together.
    """
    step = job.program.micro_batches

    @cache
    def of(n: int) -> Workload:
        return replace(job, batch=n)

    measures = [
        *_times(job, lambda n: of(n).ttft_s, lambda n: of(n).tpot_s, max_ttft_s, max_tpot_s),
        CapacityMeasure("memory", BOTH, "bytes", job.peak_bytes, lambda n: job.capacity_bytes),
        *_engine(job),
        *_one_step(job, lambda n: n * (job.length - job.cached)),
    ]
    found, limits = _limits(measures, MANY, step, 0)
    return _answer("batch", found, found or step, step, limits, of(found or step))


def _engine(job: Workload) -> list[CapacityMeasure]:
    """The limits on concurrent sequences of an engine, if there is one."""
    pool, ranks = job.pool, job.program.parallelism.dp
    if not pool:
        return []
    return [
        CapacityMeasure("max_num_seqs", DECODE, "requests", float, lambda n: float(pool.sequences * ranks)),
        CapacityMeasure("max_batched_tokens", DECODE, "tokens", float, lambda n: float(pool.tokens * ranks)),
    ]


def _one_step(job: Workload, tokens: Callable[[int], int]) -> list[CapacityMeasure]:
    """The limit of prefill tokens per step; more tokens take more steps and thus time."""
    if job.budget is None:
        return []
    budget = float(job.budget * job.program.parallelism.dp)
    return [
        CapacityMeasure(
            "one step reads", PREFILL, "tokens", lambda n: float(tokens(n)), lambda n: budget, False
        )
    ]


def _context(job: Workload, max_ttft_s: float | None, max_tpot_s: float | None) -> CapacityAnswer:
    """The largest number of tokens of a request, output included."""
    first = job.generate + job.cached

    @cache
    def of(n: int) -> Workload | None:
        try:
            longest = job.max_model_len and max(job.max_model_len, n)
            return replace(job, prompt=n - job.generate, max_model_len=longest, chunked_prefill=None)
        except InputError:  # these prompts leave no memory for a step
            return None

    def figure(of_job: Callable[[Workload], float | None]) -> Callable[[int], float]:
        return lambda n: (of_job(at) or 0.0) if (at := of(n)) else float("inf")

    ttft, tpot = figure(lambda at: at.ttft_s), figure(lambda at: at.tpot_s)
    peak, usable = figure(lambda at: at.peak_bytes(job.batch)), figure(lambda at: at.capacity_bytes)
    measures = _times(job, ttft, tpot, max_ttft_s, max_tpot_s)
    measures.append(CapacityMeasure("memory", BOTH, "bytes", peak, lambda n: min(usable(n), LARGE)))
    positions = job.program.facts.get("positions")
    longest = job.max_model_len or (positions if isinstance(positions, int) else None)
    if longest is not None:
        limit = float(longest)
        measures.append(CapacityMeasure("max_model_len", BOTH, "tokens", float, lambda n: limit))
    measures += _one_step(job, lambda n: job.batch * (n - first))
    if job.budget is not None and not job.reads_chunks:
        step = float(job.budget)  # one step prefills a prompt
        whole = CapacityMeasure(
            "max_batched_tokens", PREFILL, "tokens", lambda n: float(n - first), lambda n: step
        )
        measures.append(whole)
    found, limits = _limits(measures, LONGEST - first, 1, first)
    at = found or first + 1
    return _answer("context", found, at, 1, limits, replace(job, prompt=at - job.generate))


def _requests(
    job: Workload,
    max_ttft_s: float | None,
    max_tpot_s: float | None,
    simulate: LoopSimulator | None,
    lengths: str,
) -> CapacityAnswer:
    """Users in a closed loop; the prefill of a prompt runs while other requests decode.

    Memory covers all requests at full length, so that none is preempted.
    """
    step = job.program.micro_batches
    alone = ClosedLoop(replace(job, batch=step), step, lengths, simulate)
    memory = CapacityMeasure("memory", BOTH, "bytes", job.peak_bytes, lambda n: job.capacity_bytes)
    if not job.max_batch:  # no request runs, so there are no times
        _, limits = _limits([memory], MANY, step, 0)
        return _answer("requests", 0, step, step, limits, alone.job)

    @cache
    def of(n: int) -> ClosedLoop:
        return replace(alone, concurrency=n)

    measures = _times(job, lambda n: of(n).ttft_s, lambda n: of(n).tpot_s, max_ttft_s, max_tpot_s)
    measures.append(memory)
    if not alone.whole:
        measures += _engine(job)
    found, limits = _limits(measures, MANY, step, 0)
    return _answer("requests", found, found or step, step, limits, of(found or step))


def _answer(
    what: str, found: int, at: int, step: int, limits: tuple[CapacityLimit, ...], of: Workload | ClosedLoop
) -> CapacityAnswer:
    """The capacity answer, with the latencies and the output rate of a batch or of a closed loop."""
    rate = of.busy_output_tokens_per_s if isinstance(of, Workload) else of.output_tokens_per_s
    job = of if isinstance(of, Workload) else of.job
    used = operating_cost(job.device, job.program.devices, rate)
    return CapacityAnswer(what, found, at, step, limits, of.ttft_s, of.tpot_s, rate, used)
