"""Routers: by chance, in turn, by load, and by what replicas have in their prefix caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from llmir.errors import InputError

from .capacity import Capacity
from .load import Load
from .router import ROUTERS, Router
from .sent_prefixes import SentPrefixes

# Defaults of SGLang's router, docs/advanced_features/sgl_model_gateway.md: the share of a prompt from which
# a replica that has it is chosen; and by how many requests, and how many times, the most loaded replica may
# be ahead of the least before loads alone count.
MATCH, LEAD, TIMES = 0.3, 64, 1.5


@ROUTERS.register("round-robin")
class RoundRobin(Router):
    """One after another."""

    name: ClassVar[str] = "round-robin"
    blind: ClassVar[bool] = True
    _next = -1

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The next one."""
        self._next = (self._next + 1) % self.replicas
        return self._next


@ROUTERS.register("random")
class Random(Router):
    """Any of them by chance, as the seed of the load has it."""

    name: ClassVar[str] = "random"
    blind: ClassVar[bool] = True

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        super().__init__(replicas, load, capacity)
        rng = np.random.default_rng((load.seed, 3))
        self._drawn: list[int] = rng.integers(replicas, size=len(load)).tolist()

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """What was drawn of the request."""
        return self._drawn[request]


@ROUTERS.register("least-loaded")
class LeastLoaded(Router):
    """The replica with the fewest requests that are not answered; of equals the first."""

    name: ClassVar[str] = "least-loaded"

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The shortest queue, with what runs."""
        return min(range(self.replicas), key=unanswered.__getitem__)


@ROUTERS.register("prefix-aware")
class PrefixAware(LeastLoaded):
    """The replica that was sent the longest prefix of the prompt: `cache_aware.rs` of SGLang's router.

    Where that is a small share of the prompt, the one that was sent the fewest tokens that a cache still
    holds; where loads are too unequal, the least loaded.
    """

    name: ClassVar[str] = "prefix-aware"

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        """InputError where no hashes say which prefixes prompts have."""
        super().__init__(replicas, load, capacity)
        if not load.shares:
            raise InputError(
                "router: prefix-aware needs prompts with hashes: a trace with hash_ids, or turns"
            )
        known, _, each = load.hashed(capacity.block)
        hashes = [own[: -(-prompt // each)] for own, prompt in zip(known, load.prompt.tolist(), strict=True)]
        self.sent = [SentPrefixes(hashes, each, capacity.blocks * capacity.block) for _ in range(replicas)]
        self.hashed = [each * len(own) for own in hashes]

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """By prefix, by room, or by load."""
        most, least = max(unanswered), min(unanswered)
        if most - least > LEAD and most > TIMES * least:
            chosen = super().choose(request, unanswered)
        else:
            kept = [prefixes.kept(request) for prefixes in self.sent]
            chosen = max(range(self.replicas), key=kept.__getitem__)
            if kept[chosen] <= MATCH * self.hashed[request]:
                chosen = min(range(self.replicas), key=lambda replica: len(self.sent[replica]))
        self.sent[chosen].use(request)
        return chosen
