"""Whether requests fit, for many batches and lengths together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from llmir.backends.cost.op_time import Model
from llmir.backends.memory.caches import policy
from llmir.backends.memory.liveness import reserved
from llmir.backends.request.workload import LONGEST, Workload
from llmir.base.errors import InputError
from llmir.base.values import Array
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, falls

KEPT = 64  # lengths, whose pools are


class Fits:
    """Whether so many requests of a length have room at once: `Workload.fits`, by the engine's rule."""

    def __init__(self, program: Program, model: Model) -> None:
        self.program, self.model = program, model
        self._jobs: dict[int, Workload] = {}
        self._batches: dict[int, int] = {}  # that have room, by length

    def __call__(self, batch: Array, length: Array) -> Array:
        """Of each batch and length; they broadcast together, as do the answers."""
        jobs = [self._job(int(end)) for end in (np.min(length), np.max(length))]
        pools = [each.pool for each in jobs]
        alike = all(pools) and len({pool.tokens for pool in pools if pool}) == 1
        sizes = _held(pools[0], self.program) if alike else ()
        if not sizes or any(map(falls, sizes)):
            lengths, places = np.unique(length, return_inverse=True)
            most = np.array([self._most(int(n)) for n in lengths])
            return batch <= most[places].reshape(np.shape(length))
        return _short(jobs[0], sizes, batch, length) <= 0

    def _most(self, length: int) -> int:
        if length not in self._batches:
            self._batches[length] = self._job(length).max_batch
        return self._batches[length]

    def _job(self, length: int) -> Workload:
        if length > LONGEST:
            raise InputError(f"requests of {length:,} tokens; {LONGEST:,} are the most")
        job = self._jobs.get(length)
        if job is None:
            if len(self._jobs) >= KEPT:
                self._jobs.clear()
            at_once = self.program.micro_batches * self.program.parallelism.dp
            job = self._jobs[length] = Workload(
                self.program, self.model.device, batch=at_once, prompt=length, generate=1, model=self.model
            )
        return job


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
        rooms = [np.array([room.caches for room in stage])[places].reshape(each.shape) for stage in stages]
    lacks = [at(size) - room for size, room in zip(sizes, rooms, strict=True)]
    usable = job.capacity_bytes
    most: Array = np.ceil(usable + reduce(np.maximum, lacks))
    return most - usable
