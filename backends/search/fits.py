"""Whether requests fit, for many batches and lengths together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from llmir.backends.analysis.caches import policy
from llmir.backends.analysis.liveness import reserved
from llmir.backends.analysis.workload import Workload
from llmir.backends.cost import Model
from llmir.dim import Binding, Size, falls
from llmir.frozen import Array
from llmir.graph import Program


def fits(program: Program, model: Model, batch: Array, length: Array) -> Array:
    """Whether so many requests of a length have room at once: `Workload.fits`, by the engine's rule."""
    at_once = program.micro_batches * program.parallelism.dp

    def job(length: int) -> Workload:
        return Workload(program, model.device, batch=at_once, prompt=length, generate=1, model=model)

    jobs = [job(int(end)) for end in (np.min(length), np.max(length))]
    pools = [each.pool for each in jobs]
    alike = all(pools) and len({pool.tokens for pool in pools if pool}) == 1
    sizes = _held(pools[0], program) if alike else ()
    if not sizes or any(map(falls, sizes)):
        lengths, places = np.unique(length, return_inverse=True)
        return batch <= np.array([job(int(n)).max_batch for n in lengths])[places]
    return _short(jobs[0], sizes, batch, length) <= 0


def _held(pool: Any, program: Program) -> tuple[Size, ...]:
    """What requests keep on each stage."""
    by = "paged" if pool.cache_policy == "exact" else pool.cache_policy
    return reserved(program.phase("decode"), policy(by, pool.rule.block))


def _short(job: Workload, sizes: Sequence[Size], batch: Array, length: Array) -> Array:
    """`Workload.peak_bytes` less what may be used, where a step takes as many tokens for all lengths."""
    pool, program = job.pool, job.program
    assert pool is not None, "an engine's rule has a pool"
    parts, dp = program.micro_batches, program.parallelism.dp
    sequences = batch // parts
    at = Binding(B=sequences, T=1, C=length - 1)
    each = np.maximum(pool.sequences, -(-sequences * parts // dp))
    if np.max(each) == pool.sequences:
        rooms: list[Any] = [room.caches for room in pool.rooms(pool.sequences)]
    else:
        counts, places = np.unique(each, return_inverse=True)
        stages = zip(*(pool.rooms(int(n)) for n in counts), strict=True)
        rooms = [np.array([room.caches for room in stage])[places] for stage in stages]
    lacks = [at(size) - room for size, room in zip(sizes, rooms, strict=True)]
    usable = job.capacity_bytes
    most: Array = np.ceil(usable + reduce(np.maximum, lacks))
    return most - usable
