"""Routers: choose the replica that serves a request.

`Router` is the interface. `PrefixHistory` tracks the prefixes that were sent to a replica. The routers are
`RoundRobin`, `Random`, `LeastLoaded` and `PrefixAware` (SGLang's `cache_aware.rs`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from llmir.base.arguments import choice
from llmir.base.errors import InputError
from llmir.base.registry import Kind

from .load import Load
from .server import Capacity

# Interface

ROUTERS: Kind[type[Router]] = Kind("router", "llmir.backends.simulate.router")

FIRST = "round-robin"  # the default


class Router(ABC):
    """Sends each request of a load to one of `replicas`, each with a `capacity`, when the request arrives.

    It knows its earlier choices, and the number of unfinished requests of each replica.
    """

    name: ClassVar[str]
    blind: ClassVar[bool] = (
        False  # ignores the loads of replicas, so that each replica can be simulated separately
    )

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        self.replicas = replicas

    @abstractmethod
    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The replica for a request, from 0; `unanswered` contains the number of unfinished requests of each
        replica.
        """


def check_router(name: object, replicas: int) -> str:
    """The name of a router, after a check; InputError for an unknown name, and for any name if there is only
    one replica.
    """
    known: str = choice("router", FIRST if name is None else name, tuple(ROUTERS))
    if name is not None and replicas == 1:
        raise InputError(f"router: {known} distributes requests over several replicas, but there is only 1")
    return known


# Prefixes of a replica


class PrefixHistory:
    """The hashes that were sent most recently, each of `each` tokens, up to the size of a cache of `tokens`
    tokens.

    >>> prefixes = PrefixHistory([(1, 2), (1, 3), (1, 2)], each=512, tokens=3 * 512)
    >>> for request in range(3):
    ...     print(prefixes.kept(request))
    ...     prefixes.use(request)
    0
    512
    1024
    """

    def __init__(self, hashes: Sequence[Sequence[int]], each: int, tokens: int) -> None:
        self.hashes, self.each, self._most = hashes, each, tokens // each
        self._recent: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def kept(self, request: int) -> int:
        """The number of leading tokens of a prompt that were sent before, up to the first hash that was
        not.
        """
        found = 0
        for known in self.hashes[request]:
            if known not in self._recent:
                break
            found += self.each
        return found

    def use(self, request: int) -> None:
        """Record a prompt: its hashes become the most recent, and the oldest hashes are removed."""
        for known in self.hashes[request]:
            self._recent[known] = None
            self._recent.move_to_end(known)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)


# Routers

# Defaults of SGLang's router (docs/advanced_features/sgl_model_gateway.md). A replica is chosen by prefix if
# it received more than the share MATCH of the prompt. Loads alone count if the most loaded replica has
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
    """A random replica, by the seed of the load."""

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
    """The replica with the fewest unfinished requests; the first one if several are equal."""

    name: ClassVar[str] = "least-loaded"

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """The least loaded replica; running requests count, too."""
        return min(range(self.replicas), key=unanswered.__getitem__)


@ROUTERS.register("prefix-aware")
class PrefixAware(LeastLoaded):
    """The replica that received the longest prefix of the prompt: `cache_aware.rs` of SGLang's router.

    If that is a small share of the prompt, the replica that recently received the fewest tokens; if loads are
    too unequal, the least loaded one.
    """

    name: ClassVar[str] = "prefix-aware"

    def __init__(self, replicas: int, load: Load, capacity: Capacity) -> None:
        """Raise InputError if no hashes identify the prefixes of prompts."""
        super().__init__(replicas, load, capacity)
        if not load.shares:
            raise InputError(
                "router: prefix-aware needs prompts with hashes: a trace with hash_ids, or turns"
            )
        known, _, each = load.hashed(capacity.block)
        hashes = [own[: -(-prompt // each)] for own, prompt in zip(known, load.prompt.tolist(), strict=True)]
        self.sent = [PrefixHistory(hashes, each, capacity.blocks * capacity.block) for _ in range(replicas)]
        self.hashed = [each * len(own) for own in hashes]

    def choose(self, request: int, unanswered: Sequence[int]) -> int:
        """Assign by load, by prefix, or by the number of tokens."""
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
