"""The load of a server: requests with their tokens, and when they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import Figures, figure

from .yields import Yields

TOKENS = 512  # tokens that a hash stands for, in Mooncake's traces and by AIPerf's default
FAR = 1 << 32  # more blocks than any session has
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Load(Figures):
    """Requests in the order of arrival; arrays have an entry for each.

    `prompt` tokens come in, of which `cached` are in the cache already, and `generate` tokens go out.
    Requests arrive at `arrival_s`, or there are so many `users`, each of whom asks again when answered; these
    requests reach the server `apart_s` apart at least.

    - Prefixes: `hashes` of the leading tokens of each prompt, where they are known (`prefix_cache.py`).
    - Cancellation: `asked` is how many tokens each asks for, where some are cancelled before. A request is
      given up `timeout_s` after it came, and after its own `leave_s`.
    - Sessions: `sessions` is the session of each request. Later turns come `think_s` after the answer before.
    - Drafts: `drafts` are the tokens that a step verifies of each, and the chance that one is right; what
      steps yield is drawn by `seed`.
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
        """Cached tokens when a request ends: the last one that it generates is never read."""
        return np.asarray(self.prompt + self.generate - 1)

    @figure
    def reserved(self) -> Array:
        """Cached tokens when it ends, if it is not cancelled."""
        return self.written if self.asked is None else np.asarray(self.prompt + self.asked - 1)

    @figure
    def stays_s(self) -> Array | None:
        """How long the client of each waits for its answer; None where all wait as long as it takes."""
        if self.leave_s is None:
            return None if self.timeout_s is None else np.full(len(self), self.timeout_s)
        return np.minimum(self.leave_s, np.inf if self.timeout_s is None else self.timeout_s)

    @figure
    def yields(self) -> Yields | None:
        """Tokens that each step yields of each request; None without drafts, where it is one."""
        return self.drafts and Yields(*self.drafts, self.seed, self.generate - 1)

    @property
    def shares(self) -> bool:
        """Whether prompts share prefixes that are known."""
        return bool(self.hashes) or self.sessions is not None

    @figure
    def after(self) -> Array:
        """The turn before each request in its session; -1 where there is none."""
        found = np.full(len(self), -1)
        if self.sessions is not None:
            order = np.argsort(self.sessions, kind="stable")
            goes_on = np.diff(self.sessions[order]) == 0
            found[order[1:][goes_on]] = order[:-1][goes_on]
        return found

    def hashed(self, block: int) -> tuple[Sequence[Sequence[int]], Array, int]:
        """Hashes of the leading tokens of each request, how many tokens they cover, and how many one covers.

        Sessions have a hash for each block of so many tokens.
        """
        if self.sessions is None:
            return self.hashes, self.prompt, TOKENS
        many = zip((self.sessions * FAR).tolist(), (-(-self.written // block)).tolist(), strict=True)
        return [range(first, first + n) for first, n in many], self.written, block

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int(self.reserved.max()) + 1

    @property
    def rate(self) -> float | None:
        """Requests that arrive in a second; None of users, and where all come at once.

        Of sessions all turns count, over the time in which sessions begin: the rate in the long run.
        """
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span else None

    @property
    def talks(self) -> int | None:
        """How many sessions there are; None where requests are not turns of sessions."""
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
        """The same requests with a share of each prompt cached; its last token is always read.

        InputError where hashes or sessions say what is cached.
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
        """The same requests, a share of which is cancelled after a random part of the answer."""
        stops = rng.integers(1, self.generate + 1)
        chosen = rng.random(len(self)) < share
        return replace(self, generate=np.where(chosen, stops, self.generate), asked=self.generate)
