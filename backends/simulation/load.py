"""What comes to a server: requests with their tokens, and when they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmir.dataclass import dataclass
from llmir.errors import InputError
from llmir.frozen import Figures, figure

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Load(Figures):
    """Requests in the order of their arrival: `prompt` tokens in, of which `cached` are kept, `generate` out.

    They come at `arrival_s`, or as `users` are answered, each of whom asks for the next one then. `hashes`
    are those of the first tokens of each prompt, where they are known (`prefixes`).
    """

    prompt: Array
    generate: Array
    cached: Array
    arrival_s: Array
    users: int | None = None
    hashes: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt)

    @figure
    def written(self) -> Array:
        """Tokens in the cache when a request ends: the last one that it generates is never read."""
        return np.asarray(self.prompt + self.generate - 1)

    @property
    def rate(self) -> float | None:
        """Requests a second, as they come; None of users, and of those that come together."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span else None

    def hit(self, share: float) -> Load:
        """The same with a share of each prompt cached, but its last token, which is always read.

        InputError where hashes say what is cached.
        """
        if share and self.hashes:
            raise InputError(f"prefix_hits: {share:g}; the trace has hashes, which say what is in the cache")
        cached = np.minimum(np.floor(share * self.prompt).astype(np.int64), self.prompt - 1)
        return replace(self, cached=cached) if share else self

    def only(self, kept: Array) -> Load:
        """The requests of a mask, or of these numbers."""
        prompt, generate, cached = (x[kept] for x in (self.prompt, self.generate, self.cached))
        hashes = tuple(self.hashes[i] for i in np.arange(len(self))[kept]) if self.hashes else ()
        return Load(prompt, generate, cached, self.arrival_s[kept], self.users, hashes)


def poisson(rate: float, requests: int, rng: np.random.Generator) -> Array:
    """Arrivals at random, so many a second on average."""
    return np.cumsum(rng.exponential(1 / rate, requests))
