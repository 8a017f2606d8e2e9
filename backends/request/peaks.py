"""The steps of a workload in which most is held, where no engine's rule says how much."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from llmir.backends.memory.kv_capacity import CHUNK
from llmir.backends.memory.liveness import Memory, memories
from llmir.backends.step.sizes import step_phase
from llmir.base.array_namespace import Number
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import falls

from .chunks import largest

if TYPE_CHECKING:
    from .workload import Workload


def peak(job: Workload, sequences: int) -> int:
    """The most bytes that a rank of any stage holds, of so many sequences in each micro-batch."""
    return int(max(_peak(job, memory, at, sequences) for of, at in fullest(job, sequences) for memory in of))


def _peak(job: Workload, memory: Memory, at: Binding, sequences: int) -> Number:
    """The peak of a stage in a step, beside the caches of sequences that are not in it."""
    others = sequences - at.symbols["B"]
    last = job.length + max(job.generate - 2, 0)
    more = Binding(B=others, T=1, C=last)(memory.caches) if others > 0 else 0
    return memory.peak(at) + more


def fullest(job: Workload, sequences: int) -> list[tuple[tuple[Memory, ...], Binding]]:
    """The steps in which most may be held, of so many sequences in each micro-batch."""
    parts = job.program.micro_batches
    chunk = largest(job.chunks_of(sequences * parts))
    ends = [(step_phase(job.program, [chunk.new]), chunk.prompts // parts, chunk.new, chunk.last)]
    ends += [("decode", sequences, 1, context) for context in _contexts(job)]
    if job.images:
        ends.append(("encode", sequences * job.images, 1, 0))
    return [
        (memories(job.program.phase(phase), job.cache_policy), Binding(B=count, T=new, C=context))
        for phase, count, new, context in ends
    ]


@lru_cache(maxsize=256)
def _contexts(job: Workload) -> frozenset[int]:
    """The contexts of the decode steps that may hold most.

    That is the last one, for caches grow; but those of chunks are full before a chunk is over.
    """
    if job.generate == 1:
        return frozenset()
    last = job.length + job.generate - 2
    found = {last}
    for memory in memories(job.program.phase("decode"), job.cache_policy):
        if falls(memory.caches):
            contexts = np.arange(max(job.length, last - CHUNK), last + 1)
            found.add(int(contexts[np.argmax(memory.peak(Binding(B=1, T=1, C=contexts)))]))
    return frozenset(found)
