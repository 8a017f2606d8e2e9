"""How many requests memory holds: of a batch, which else goes in waves, and of a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmir.base.errors import InputError

from .workload import REQUESTS, Workload


def in_flight(job: Workload, chunk: int | None) -> int:
    """How many requests of a closed loop memory holds at once, and the engine runs: of all ages.

    They are counted at their mean length; prompts are read one by one, or in chunks beside the others'
    caches. InputError if not even one fits.
    """
    return min(fitting(mean_aged(job, chunk)), run_at_once(job))


def mean_aged(job: Workload, chunk: int | None) -> Workload:
    """A request that is half way through its answer, whose memory is the mean of those of all ages."""
    how = chunk or (job.chunk if job.pool else job.length)
    return replace(job, batch=1, generate=job.generate // 2 + 1, chunk=how)


def run_at_once(job: Workload) -> int:
    """How many sequences the engine runs at once, as many in each micro-batch."""
    most = job.pool.sequences * job.program.parallelism.dp if job.pool else REQUESTS
    return most - most % job.program.micro_batches


def fitting(one: Workload, batch: int = 0) -> int:
    """How many of `batch` requests (0: of any number) like `one` memory holds at once.

    InputError if not even one fits.
    """
    if not one.max_batch:
        where = f"{one.program.devices} × {one.device.name}"
        raise InputError(f"does not fit: not even one request of {one.program.name} on {where}")
    return min(batch or one.max_batch, one.max_batch)


def waves(job: Callable[[int], Workload], batch: int, within: int) -> float:
    """Seconds until a static batch is done: `within` at once, one wave after another, then the rest."""
    whole, rest = divmod(batch, within)
    return whole * (job(within).e2e_s if whole else 0.0) + (job(rest).e2e_s if rest else 0.0)
