"""What comes to a server: requests with their tokens, and when they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmir.dataclass import dataclass
from llmir.errors import InputError
from llmir.frozen import Figures, figure

from .yields import Yields

TOKENS = 512  # of a prompt that a hash stands for, in Mooncake's traces and by AIPerf's default
FAR = 1 << 32  # blocks that no session has
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Load(Figures):
    """Requests in the order of their arrival: `prompt` tokens in, of which `cached` are kept, `generate` out.

    They come at `arrival_s`, or as `users` are answered, each of whom asks for the next one then; what they
    ask goes through one front, which takes `apart_s` for each. `hashes` are those of the first tokens of each
    prompt, where they are known (`sharing`). `asked` is how many tokens each asks for at most, where some
    are cancelled before; all are given up after `timeout_s`, and each after its `leave_s`. `sessions` says
    which each is of: all turns but the first come `think_s` after the answer before, and begin with all that
    was said. `drafts` are how many tokens a step verifies of each, and the chance that one is right; what a
    step yields is drawn by `seed`.
    """

    prompt: Array
    generate: Array
    cached: Array
    arrival_s: Array
    users: int | None = None
    hashes: tuple[tuple[int, ...], ...] = ()
    apart_s: float = 0.0
    asked: Array | None = None
    timeout_s: float | None = None
    leave_s: Array | None = None
    sessions: Array | None = None
    think_s: Array | None = None
    seed: int = 0
    drafts: tuple[int, float] | None = None

    def __len__(self) -> int:
        return len(self.prompt)

    @figure
    def written(self) -> Array:
        """Tokens in the cache when a request ends: the last one that it generates is never read."""
        return np.asarray(self.prompt + self.generate - 1)

    @figure
    def reserved(self) -> Array:
        """The same if each gets all tokens that it asks for."""
        return self.written if self.asked is None else np.asarray(self.prompt + self.asked - 1)

    @figure
    def stays_s(self) -> Array | None:
        """How long the client of each waits for its answer; None where all wait as long as it takes."""
        if self.leave_s is None:
            return None if self.timeout_s is None else np.full(len(self), self.timeout_s)
        return np.minimum(self.leave_s, np.inf if self.timeout_s is None else self.timeout_s)

    @figure
    def yields(self) -> Yields | None:
        """Tokens that each step yields of each request; None where that is one."""
        return self.drafts and Yields(*self.drafts, self.seed, self.generate - 1)

    @property
    def shares(self) -> bool:
        """Whether it is known which prompts begin alike."""
        return bool(self.hashes) or self.sessions is not None

    @figure
    def after(self) -> Array:
        """Of each request the turn before it; -1 where there is none."""
        found = np.full(len(self), -1)
        if self.sessions is not None:
            order = np.argsort(self.sessions, kind="stable")
            goes_on = np.diff(self.sessions[order]) == 0
            found[order[1:][goes_on]] = order[:-1][goes_on]
        return found

    def hashed(self, block: int) -> tuple[Sequence[Sequence[int]], Array, int]:
        """Hashes of each request's first tokens, how many tokens they stand for, and how many one does."""
        if self.sessions is None:
            return self.hashes, self.prompt, TOKENS
        many = zip((self.sessions * FAR).tolist(), (-(-self.written // block)).tolist(), strict=True)
        return [range(first, first + n) for first, n in many], self.written, block

    @property
    def longest(self) -> int:
        """Tokens of the longest request, with its answer."""
        return int(self.reserved.max()) + 1

    @property
    def rate(self) -> float | None:
        """Requests a second, as they come; None of users, and of those that come together.

        Of sessions all turns count, in the time in which sessions begin: so many come in the long run.
        """
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span else None

    @property
    def talks(self) -> int | None:
        """How many sessions there are; None where requests are no turns of any."""
        return None if self.sessions is None else int((self.after < 0).sum())

    @property
    def sessions_per_s(self) -> float | None:
        """How many sessions begin in a second; None without sessions."""
        if self.sessions is None:
            return None
        begin = self.arrival_s[self.after < 0]
        span = float(begin.max() - begin.min())
        return (len(begin) - 1) / span if span else None

    def hit(self, share: float) -> Load:
        """The same with a share of each prompt cached, but its last token, which is always read.

        InputError where hashes say what is cached.
        """
        if share and self.shares:
            raise InputError(f"prefix_hits: {share:g}; hashes or sessions say what is in the cache")
        cached = np.minimum(np.floor(share * self.prompt).astype(np.int64), self.prompt - 1)
        return replace(self, cached=cached) if share else self

    def only(self, kept: Array) -> Load:
        """The requests of a mask, or of these numbers."""
        columns = ("prompt", "generate", "cached", "arrival_s", "asked", "leave_s", "sessions", "think_s")
        some = {name: x[kept] for name in columns if (x := getattr(self, name)) is not None}
        hashes = tuple(self.hashes[i] for i in np.arange(len(self))[kept]) if self.hashes else ()
        return replace(self, hashes=hashes, **some)

    def cancelled(self, share: float, rng: np.random.Generator) -> Load:
        """The same, of which a share is cancelled after a random part of the answer."""
        stops = rng.integers(1, self.generate + 1)
        chosen = rng.random(len(self)) < share
        return replace(self, generate=np.where(chosen, stops, self.generate), asked=self.generate)


def arrivals(rate: float, requests: int, burstiness: float, rng: np.random.Generator) -> Array:
    """Arrivals at random, so many a second on average, by gaps of a gamma law with the shape `burstiness`.

    1 is Poisson's law, and n what one of n servers gets that are dealt such requests in turn.
    """
    return np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), requests))
