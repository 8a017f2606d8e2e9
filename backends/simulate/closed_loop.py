"""Closed loops of `analyze --concurrency`: the steady state, simulated as in `serve-sim --closed`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from llmir.backends.cost.op_time import DeviceCostModel
from llmir.backends.request.closed_loop import LoopFigures, in_flight
from llmir.backends.request.workload import ALL, LONGEST, Workload
from llmir.ir.core.program import Program
from llmir.ir.tools.ranks import independent_ranks

from .engine import Profile, cost_model_of, engine_policy, has_policy
from .load import closed_loop_requests, sample_load, spread_lengths
from .result import Simulation
from .step_times import ProgramEstimator, StepTimes

FULL = 2  # multiple of the concurrent requests beyond which users only wait


def simulate_loop(job: Workload, users: int, lengths: str) -> LoopFigures | None:
    """Simulate users who start together; None if the engine's policy is not known.

    If there are more users than `FULL` times the requests that fit in memory, the others do not change the
    behavior of the server: each of them waits for one more response. Little's law accounts for them.
    """
    if not has_policy(job):
        return None
    count = min(users, FULL * in_flight(job, job.budget))
    requests_per_s, found = _figures(job, count, lengths)
    waits_s = (users - count) / requests_per_s
    if not waits_s:
        return found
    return found._replace(ttft_s=found.ttft_s + waits_s, e2e_s=found.e2e_s + waits_s, burst_ttft_s=None)


@lru_cache(maxsize=8)
def _figures(job: Workload, users: int, lengths: str) -> tuple[float, LoopFigures]:
    """Requests per second, and the figures of the simulated users."""
    found = loop_simulation(job, users, lengths)
    ttft, tpot, e2e = (found.latencies[name] for name in ("ttft", "tpot", "e2e"))
    assert ttft and e2e
    return found.requests_per_s, LoopFigures(
        ttft.mean,
        tpot and tpot.mean,
        e2e.mean,
        found.output_tokens_per_s,
        min(found.decodes * found.profile.ranks, users),
        len(found.load),
        found.warm_up,
        float(found.ttft_s.mean()),
        _notes(job, found),
    )


def loop_simulation(job: Workload, users: int, lengths: str) -> Simulation:
    """The simulation of users whose prompts, outputs and limits are those of a workload."""
    generate = spread_lengths(job.generate) if lengths == "spread" else job.generate
    load = sample_load(closed_loop_requests(users), job.length, generate, users=users)
    load = replace(load, cached=np.full(len(load), job.cached))
    idle = replace(job, batch=job.program.micro_batches, prompt=1, generate=1, cached=0)
    idle = replace(idle, max_model_len=max(load.longest, job.max_model_len or 0))
    if job.chunk == ALL and job.pool:
        together = -(-users // job.program.parallelism.dp) * (job.length - job.cached)
        tokens = min(max(together, job.pool.tokens), LONGEST)
        idle = replace(idle, chunk=None, max_batched_tokens=tokens)
    chunked = True if _splits(job) else None
    _, (program,) = independent_ranks(job.program)
    return Profile(idle, chunked, priced=loop_step_times(program, cost_model_of(job))).run(load)


def _splits(job: Workload) -> bool:
    """Whether prompts are longer than a step, for an engine that prefills whole prompts by default."""
    return not engine_policy(job).chunked and job.length - job.cached > (job.budget or LONGEST)


def _notes(job: Workload, found: Simulation) -> tuple[str, ...]:
    if not _splits(job):
        return ()
    name, tokens = found.policy.name, job.length - job.cached
    default = f"{name} refuses them unless chunked prefill is on"
    return (f"prompts of {tokens:,} tokens are read in chunks of {job.budget:,}: {default}",)


@lru_cache(maxsize=32)
def loop_step_times(program: Program, model: DeviceCostModel) -> StepTimes:
    """The step times of a program, cached between loops."""
    return StepTimes(ProgramEstimator(program, model))
