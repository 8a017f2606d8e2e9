"""From what is asked for to a simulation: lengths and arrivals drawn, and served by an engine's profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.analysis.workload import Workload
from llmir.errors import InputError

from .lengths import lengths
from .load import Load, hits, poisson
from .prices import Prices
from .profile import capacity, check, policy
from .serve import serve
from .simulation import Simulation
from .steps import PricedStep


def drawn(
    requests: int,
    prompt: object,
    generate: object,
    *,
    rate: float | None = None,
    users: int | None = None,
    prefix_hits: float = 0.0,
    seed: int = 0,
) -> Load:
    """Requests of random lengths that come at random, or as users are answered; the same for a seed."""
    streams = [np.random.default_rng(seq) for seq in np.random.SeedSequence(seed).spawn(3)]
    tokens = lengths("prompt", prompt)(streams[0], requests)
    answers = lengths("generate", generate)(streams[1], requests)
    comes = np.zeros(requests) if rate is None else poisson(rate, requests, streams[2])
    return Load(tokens, answers, hits(tokens, prefix_hits), comes, users)


def simulate(job: Workload, load: Load, chunked: bool | None = None) -> Simulation:
    """A load on the engine that `job` is priced for, with its limits.

    Requests beyond its `max_model_len`, by default the positions of the model, are refused and counted.
    """
    positions = job.program.facts.get("positions")
    limit = job.max_model_len or (positions if isinstance(positions, int) else None)
    total = len(load)
    if limit is not None:
        load = load.only(load.written + 1 <= limit)
    if not len(load):
        raise InputError(f"max_model_len: {limit:,} tokens, all {total:,} requests have more")
    job = replace(job, max_model_len=max(int(load.written.max()) + 1, 2))
    step = PricedStep(job.program, job.prefill.plan.model)
    room, fills = capacity(job), policy(job, chunked)
    check(load, room, fills)
    return Simulation.of(job, serve(Prices(step), fills, room, load), load, total - len(load))
