"""Random requests: lengths by a law, and arrivals at a rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .lengths import lengths
from .load import Array, Load


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
    """Requests of random lengths, at random times or as `users` are answered; a seed gives the same again.

    A share `cancel` of them is cancelled after a random part of the answer.
    """
    streams = [np.random.default_rng(seq) for seq in np.random.SeedSequence(seed).spawn(4)]
    tokens = lengths("prompt", prompt)(streams[0], requests)
    answers = lengths("generate", generate)(streams[1], requests)
    comes = np.zeros(requests) if rate is None else arrivals(rate, requests, burstiness, streams[2])
    load = Load(tokens, answers, np.zeros_like(tokens), comes, users, seed=seed)
    return load.cancelled(cancel, streams[3]) if cancel else load


def arrivals(rate: float, requests: int, burstiness: float, rng: np.random.Generator) -> Array:
    """Random arrival times, `rate` a second on average; gaps have a gamma law with the shape `burstiness`.

    1 is a Poisson process; n is what each of n servers gets of one, if they are sent requests in turn.
    """
    return np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), requests))


def turned(load: Load, turns: object, think_s: float, seed: int) -> Load:
    """The same requests as turns of sessions: prompts begin with all earlier prompts and answers.

    `turns` is the law of how many a session has. Sessions begin when requests came; before each later turn
    the user thinks for an exponential time with the mean `think_s`. `cached` has the earlier tokens, which a
    server finds if it still has them.
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
