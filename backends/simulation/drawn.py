"""Requests drawn at random: their lengths by laws, and arrivals by a rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .lengths import lengths
from .load import Load, arrivals


def drawn(
    requests: int,
    prompt: object,
    generate: object,
    *,
    rate: float | None = None,
    burstiness: float = 1.0,
    users: int | None = None,
    seed: int = 0,
    cancel: float = 0.0,
) -> Load:
    """Requests of random lengths that come at random, or as users are answered; the same for a seed.

    A share `cancel` is cancelled after a random part of the answer.
    """
    streams = [np.random.default_rng(seq) for seq in np.random.SeedSequence(seed).spawn(4)]
    tokens = lengths("prompt", prompt)(streams[0], requests)
    answers = lengths("generate", generate)(streams[1], requests)
    comes = np.zeros(requests) if rate is None else arrivals(rate, requests, burstiness, streams[2])
    load = Load(tokens, answers, np.zeros_like(tokens), comes, users, seed=seed)
    return load.cancelled(cancel, streams[3]) if cancel else load


def turned(load: Load, turns: object, think_s: float, seed: int) -> Load:
    """The same requests as turns of sessions: each with all that was said before, and its own new tokens.

    A session starts as requests came, has so many turns, and thinks before each other one for an exponential
    time of such a mean. `cached` is what was said, should it be kept.
    """
    one, two = (np.random.default_rng(seq) for seq in np.random.SeedSequence((seed, 1)).spawn(2))
    ends = np.cumsum(lengths("turns", turns)(one, len(load)))
    sessions = np.searchsorted(ends, np.arange(len(load)), side="right")
    first = np.concatenate([[0], ends])[sessions]
    until = np.concatenate([[0], np.cumsum(load.prompt + load.generate)])
    before = until[:-1] - until[first]
    return replace(
        load,
        prompt=load.prompt + before,
        cached=np.maximum(before - 1, 0),
        arrival_s=load.arrival_s[sessions],
        sessions=sessions,
        think_s=two.exponential(think_s, len(load)),
    )
