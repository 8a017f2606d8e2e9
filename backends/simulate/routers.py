"""Routers: in turn, at random, by load, and by prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from llmir.base.errors import InputError

from .capacity import Capacity
from .load import Load
from .router import ROUTERS, Router
from .sent_prefixes import SentPrefixes

# Defaults of SGLang's router (docs/advanced_features/sgl_model_gateway.md). A replica is chosen by prefix if
# it was sent more than the share MATCH of the prompt. Loads alone count where the most loaded replica has
# more than LEAD requests more than the least loaded one, and more than TIMES as many.
MATCH, LEAD, TIMES = 0.3, 64, 1.5


@ROUTERS.register("round-robin")
class RoundRobin(Router):
    """Replicas in turn."""

    name: ClassVar[str] = "round-robin"
    blind: ClassVar[bool] = True
    _next = -1

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The next replica."""
        self._next = (self._next + 1) % self.replicas
        return self._next


@ROUTERS.register("random")
class Random(Router):
    """Any replica, drawn by the seed of the load."""

    name: ClassVar[str] = "random"
    blind: ClassVar[bool] = True

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        super().__init__(replicas, load, capacity)
        rng = np.random.default_rng((load.seed, 3))
        self._drawn: list[int] = rng.integers(replicas, size=len(load)).tolist()

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The replica drawn for the request."""
        return self._drawn[request]


@ROUTERS.register("least-loaded")
class LeastLoaded(Router):
    """The replica with the fewest unanswered requests; of equals the first."""

    name: ClassVar[str] = "least-loaded"

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The least loaded replica; running requests count too."""
        return min(range(self.replicas), key=unanswered.__getitem__)


@ROUTERS.register("prefix-aware")
class PrefixAware(LeastLoaded):
    """The replica that was sent the longest prefix of the prompt: `cache_aware.rs` of SGLang's router.

    Where that is a small share of the prompt, the replica that was sent the fewest tokens lately; where loads
    are too unequal, the least loaded one.
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
        """By load, by prefix, or by tokens sent."""
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
