"""Experts that lie in more places than there are of them, as EPLB lays them out.

The expert whose copies have most load gets the next copy, until all places are taken; then copies go, the
heaviest first, to the rank of least load that has room (`replicate_experts` and `balanced_packing` of
deepseek-ai/EPLB, `rebalance_experts_global`; vLLM, SGLang and TensorRT-LLM have both from there). Loads are
those of many steps: what chance does in one is not balanced. Each row goes to a copy at random, as in vLLM's
`eplb_map_to_physical_and_record` and SGLang's dynamic dispatch.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.values import read_only

from .maximum import excess
from .routing_laws import Array, Law, between, fullest, levels, whole


def copies(loads: Sequence[float], places: int) -> list[int]:
    """In how many of the places each expert lies.

    >>> copies([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], 16)
    [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1]
    """
    found = [1] * len(loads)
    heaviest = [(-load, expert) for expert, load in enumerate(loads)]
    heapq.heapify(heaviest)
    for _ in range(places - len(loads)):
        _, expert = heaviest[0]
        found[expert] += 1
        heapq.heapreplace(heaviest, (-loads[expert] / found[expert], expert))
    return found


def packed(loads: Sequence[float], ranks: int) -> list[list[float]]:
    """Loads on ranks that each have room for as many of them, by rank.

    >>> packed([9, 7, 6, 5, 4, 3], 3)
    [[9, 3], [7, 4], [6, 5]]
    """
    room = -(-len(loads) // ranks)
    found: list[list[float]] = [[] for _ in range(ranks)]
    idlest = [(0.0, rank) for rank in range(ranks)]
    for load in sorted(loads, reverse=True):
        least, rank = heapq.heappop(idlest)
        found[rank].append(load)
        if len(found[rank]) < room:
            heapq.heappush(idlest, (least + load, rank))
    return found


@dataclass(frozen=True)
class Replicas(Law):
    """Another law's experts in `count` places; work is that of the rank that has most.

    >>> from .law import law
    >>> laws = law("zipf:0.5"), law("replicas(288, zipf(0.5))"), law("chance")
    >>> [by.busiest(32, 8, 4096, 256) for by in laws]
    [1839, 1090, 1090]
    """

    word: ClassVar[str] = "replicas"

    count: int
    law: Law

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise VerifyError(f"{self.word}: count is {self.count}, expected an integer from 1 up")
        if not isinstance(self.law, Law):
            raise VerifyError(f"{self.word}: expected a law for all experts, got {self.law}")
        self.law.popularity(1, 1)

    @property
    def about(self) -> str:
        """As a report says it."""
        return f"{self.law.about}, in {self.count} places"

    def places(self, experts: int) -> int:
        """All of them."""
        if self.count < experts:
            raise VerifyError(f"{self.word}: {experts} experts do not lie in {self.count} places")
        return self.count

    def instead(self, by: Law) -> Law:
        """The same places by another law."""
        return Replicas(self.count, by)

    def short(self, lengths: dict[int, int]) -> Law:
        """As many places as that says."""
        return Replicas(lengths.get(self.count, self.count), self.law)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The most of any number of ranks that have most by load, with what chance adds among so many.

        Each is at most what is expected of all ranks, and the one of the heaviest is that where tokens are
        many, that of all where ranks are alike.
        """
        if ranks == 1:
            return tokens * chosen
        chances = _laid(self.law, ranks, chosen, experts, self.places(experts))
        noise = self.law.noise(chances)
        moments = [m.sum(1) for m in (chances, noise, noise * (1 - 2 * chances))]
        n, xp = 1.0 * tokens, namespace(tokens)
        rows: Number = xp.minimum(n, 1)
        for count in (*(1 << i for i in range(ranks.bit_length()) if 1 << i < ranks), ranks):
            mean, second, third = (float(m[:count].mean()) for m in moments)
            rows = xp.maximum(rows, n * mean + excess(n * second, n * third, count))
        return whole(xp.minimum(rows, n * min(chosen, chances.shape[1])))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """What the rank that touches most is expected to touch; where one has all places, all that are."""
        count = self.places(experts)
        ranks = fullest(count, held)
        touched: Number = 0.0
        for chance, times in levels(_laid(self.law, ranks, chosen, experts, count)):
            touched = touched + times * self.law.touched(chance, tokens)
        mean = touched * held / count
        if ranks > 1:
            share = touched / count
            variance = held * share * (1 - share)
            mean = mean + excess(variance, variance * (1 - 2 * share), ranks)
            xp = namespace(tokens)
            mean = between(xp.minimum(tokens, 1), mean, xp.minimum(held, tokens * min(chosen, held)))
        return mean


@lru_cache(maxsize=256)
def _laid(by: Law, ranks: int, chosen: int, experts: int, places: int) -> Array:
    """The probability that a token chooses a copy, by rank and place there; ranks of most load first."""
    loads = by.popularity(chosen, experts)
    each = [
        load / count
        for load, count in zip(loads.tolist(), copies(loads.tolist(), places), strict=True)
        for _ in range(count)
    ]
    room = -(-places // ranks)
    found = np.array([rank + [0.0] * (room - len(rank)) for rank in packed(each, ranks)])
    return read_only(found[np.argsort(-found.sum(1), kind="stable")])
