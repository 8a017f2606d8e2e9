"""From what is asked for to a simulation: lengths and arrivals drawn, and served by an engine's profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmir.backends.analysis.workload import Workload
from llmir.errors import InputError

from .lengths import lengths
from .load import Load, poisson
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
    seed: int = 0,
) -> Load:
    """Requests of random lengths that come at random, or as users are answered; the same for a seed."""
    streams = [np.random.default_rng(seq) for seq in np.random.SeedSequence(seed).spawn(3)]
    tokens = lengths("prompt", prompt)(streams[0], requests)
    answers = lengths("generate", generate)(streams[1], requests)
    comes = np.zeros(requests) if rate is None else poisson(rate, requests, streams[2])
    return Load(tokens, answers, np.zeros_like(tokens), comes, users)


def simulate(job: Workload, load: Load, chunked: bool | None = None, **counted: Any) -> Simulation:
    """A load on the engine that `job` is priced for, with its limits.

    Requests beyond its `max_model_len`, by default the positions of the model, are refused and counted.
    `counted` says what `Simulation` counts: its `warm_up`, `max_ttft_s` and `max_tpot_s`.
    """
    positions = job.program.facts.get("positions")
    limit = job.max_model_len or (positions if isinstance(positions, int) else None)
    total = len(load)
    if limit is not None:
        load = load.only(load.written + 1 <= limit)
    if not len(load):
        raise InputError(f"max_model_len: {limit:,} tokens, all {total:,} requests have more")
    if counted.get("warm_up", 0) >= len(load):
        raise InputError(f"warm_up: {counted['warm_up']:,} requests, there are {len(load):,}")
    job = replace(job, max_model_len=max(int(load.written.max()) + 1, 2))
    room, fills = capacity(job), policy(job, chunked)
    step = PricedStep(job.program, job.prefill.plan.model, room.tokens)
    check(load, room, fills)
    server = serve(Prices(step), fills, room, load)
    return Simulation.of(job, server, load, refused=total - len(load), **counted)
