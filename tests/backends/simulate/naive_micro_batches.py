"""A pipeline simulated plainly: an event a micro-batch, of whoever is in none at that time.

A micro-batch takes a token of each request that decodes, and chunks of prompts up to a budget; as many are in
flight as there are stages, each of which takes them in their order. Blocks never run short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Stages = Callable[[list[int], list[tuple[int, int]]], Sequence[float]]  # contexts of decodes, and chunks


@dataclass
class Job:
    arrival: float
    prompt: int
    generate: int
    stored: int = 0
    ready: float = 0.0  # when it is in no micro-batch; while it is read the next chunk need not wait
    times: list[float] = field(default_factory=list)


def run(jobs: list[Job], stages: Stages, tokens: int, in_flight: int, depth: int) -> None:
    free, done = [0.0] * depth, [0.0] * in_flight
    while active := [job for job in jobs if len(job.times) < job.generate]:
        now = max(free[0], done[-in_flight])
        now = max(now, min(job.ready if job.times else job.arrival for job in active if job.ready < 1e30))
        decoding = [job for job in active if job.times and job.ready <= now]
        left, chunks = tokens - len(decoding), []
        for job in active:
            if not job.times and job.stored < job.prompt and job.arrival <= now and left:
                new = min(left, job.prompt - job.stored)
                chunks.append((job, new))
                left -= new
        time = now
        seconds = stages([job.stored for job in decoding], [(new, job.stored) for job, new in chunks])
        for i, each in enumerate(seconds):
            time = free[i] = max(time, free[i]) + each
        done.append(time)
        for job, new in chunks:
            job.stored += new
        last = [job for job, _ in chunks if job.stored == job.prompt]
        for job in decoding:
            job.stored += 1
        for job in (*decoding, *last):
            job.times.append(time)
            job.ready = time
