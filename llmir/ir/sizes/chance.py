"""Tokens choose at random, independently of each other, with every expert as likely: of a program that says
nothing. Routers that were trained to be balanced come to that, and no closer to even shares.
"""

from __future__ import annotations

import math
from typing import ClassVar

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass

from .maximum import excess
from .routing_laws import Array, Law, alike, between, fullest, whole


@dataclass(frozen=True)
class Chance(Law):
    """Each token draws k of E experts without replacement; work is that of the rank that has most by chance.

    A given expert is missed by n tokens with probability (1 − k/E)^n.

    >>> [round(Chance().busiest(64, 8, n, 256) / (n / 8), 2) for n in (64, 256, 4096)]
    [2.0, 1.44, 1.11]
    """

    word: ClassVar[str] = "chance"

    @property
    def about(self) -> str:
        """As a report says it."""
        return "tokens choose experts at random"

    def popularity(self, chosen: int, experts: int) -> Array:
        """All alike."""
        return alike(chosen, experts)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many rows the busiest of `ranks` is expected to have, of tokens·chosen in all; rounded up.

        What a token brings a rank is hypergeometric. The shares have one total: their correlation of
        −1/(R − 1) makes the largest exceed the mean as that of independent ones of R/(R − 1) times the
        variance does. Against simulation 1% from 16 tokens, 10% from 2, and 20% of a single one.
        """
        if ranks == 1:
            return tokens * chosen
        held = fullest(experts, ranks)
        share, n, xp = held / experts, 1.0 * tokens, namespace(tokens)
        spread = n * chosen * share * (experts - chosen) / max(experts - 1, 1)  # of independent ranks
        lean = (1 - 2 * share) * (experts - 2 * chosen) / max(experts - 2, 1) / math.sqrt(1 - share)
        rows = n * chosen * share + excess(spread, spread * lean, ranks)
        return whole(between(xp.minimum(n, 1), rows, n * min(chosen, held)))

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many tokens have an expert on the rank that most have one on, each once; rounded up.

        A token has none of the h experts of a rank with probability C(E−h, k)/C(E, k).

        >>> Chance().reached(8, 8, 4096, 256) / 4096, Chance().reached(64, 8, 4096, 256) / 4096
        (0.6728515625, 0.132080078125)
        """
        if ranks == 1:
            return tokens
        held, ways = fullest(experts, ranks), math.comb(experts, chosen)
        none, neither = (math.comb(max(experts - n * held, 0), chosen) / ways for n in (1, 2))
        n = 1.0 * tokens
        spread = none * (1 - none)
        apart = spread - (neither - none**2)  # of independent ranks
        lean = (2 * none - 1) * math.sqrt(apart / spread) if spread else 0.0
        most = n * (1 - none) + excess(n * apart, n * apart * lean, ranks)
        return whole(between(namespace(n).minimum(n, 1), most, n))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """held·(1 − (1 − k/E)^n) of all experts; of a part of them, what the rank that touches most does.

        Those touched lie on ranks as if drawn without replacement, and the expected maximum is that of
        `excess`.

        >>> [round(Chance().distinct(128, 8, n, 128), 1) for n in (1, 8, 32, 128, 512)]
        [8.0, 51.6, 111.8, 128.0, 128.0]
        >>> [round(Chance().distinct(16, 8, n, 128), 1) for n in (1, 8, 32, 128, 512)]
        [2.6, 9.3, 15.7, 16, 16]
        """
        if chosen >= experts:
            return held * (tokens > 0)
        miss, xp = math.log1p(-chosen / experts), namespace(tokens)
        if held == experts:
            return -held * xp.expm1(tokens * miss)
        share = -xp.expm1(tokens * miss)
        variance = held * share * (1 - share)
        touched = held * share + excess(variance, variance * (1 - 2 * share), fullest(experts, held))
        return between(xp.minimum(tokens, 1), touched, xp.minimum(held, tokens * min(chosen, held)))
