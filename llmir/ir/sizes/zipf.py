"""Experts of unequal popularity, which follows Zipf's law: the r-th most popular has the weight r^-skew.

A token draws its k experts one after another without replacement, each in proportion to its weight, which is
what the largest k of logits under Gumbel noise are (Kool, van Hoof & Welling 2019, arXiv:1903.06059): the k
first of E exponential clocks of these rates to ring. Expert e is then among them with probability
1 − exp(−λ·w_e), where λ is the time at which k of them are expected to have rung (order sampling: Rosén
1997). Tokens choose independently of each other, and experts lie on ranks without regard to their popularity.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.values import read_only

from .maximum import excess
from .routing_laws import Array, Law, fullest, levels, parameter, whole

STEEPEST = 10.0  # past this, all tokens choose the same experts


@dataclass(frozen=True)
class Zipf(Law):
    """Popularity falls as rank^-skew; work is that of the rank that has most.

    >>> [Zipf(s).busiest(8, 8, 4096, 128) for s in (0.1, 0.5, 1.0)], 8 * 4096 // 8
    ([4272, 5187, 6975], 4096)
    """

    word: ClassVar[str] = "zipf"

    skew: float

    def __post_init__(self) -> None:
        parameter(self, "skew", self.skew, STEEPEST)
        object.__setattr__(self, "skew", float(self.skew))

    @property
    def about(self) -> str:
        """As a report says it."""
        return f"experts' popularity falls as rank^-{self.skew:g}"

    def popularity(self, chosen: int, experts: int) -> Array:
        """The most popular first."""
        return popularity(experts, chosen, self.skew)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """How many rows the busiest of `ranks` is expected to have, of tokens·chosen in all; rounded up.

        A rank's rows are the sum over its experts of how many tokens chose each. Second and third cumulants
        of that sum, over what tokens choose and where experts lie, give the expected maximum (`excess`); it
        is at least what the rank of the most popular expert expects.
        """
        if ranks == 1:
            return tokens * chosen
        p = popularity(experts, chosen, self.skew)
        held = fullest(experts, ranks)
        share = held / experts
        off, noise = p - chosen / experts, p * (1 - p)
        n, xp = 1.0 * tokens, namespace(tokens)
        spread, skew, mixed = (float(x.sum()) for x in (noise, noise * (1 - 2 * p), noise * off))
        second = n * spread + n**2 * float((off**2).sum())
        third = n * skew + 3 * n**2 * mixed + n**3 * float((off**3).sum())
        first = float(p[0])
        hottest = first + (chosen - first) * (held - 1) / max(experts - 1, 1)
        rows = n * chosen * share + excess(second * share, third * share, ranks)
        rows = xp.minimum(xp.maximum(rows, n * hottest), n * min(chosen, held))
        return whole(xp.maximum(rows, n * chosen * share))

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """Its rows are those of the most popular expert, a token each, and chances of a token for others."""
        others, xp = min(chosen, fullest(experts, ranks)) - 1, namespace(tokens)
        if ranks == 1 or others == 0:
            return whole(xp.minimum(self.busiest(ranks, chosen, tokens, experts), tokens))
        share = self.busiest(ranks, chosen, tokens, experts) / xp.maximum(tokens, 1)
        first = xp.minimum(float(popularity(experts, chosen, self.skew)[0]), share)
        missed = (1 - first) * (1 - xp.minimum((share - first) / others, 1)) ** others
        return whole(tokens * (1 - missed))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """What the rank that touches most is expected to touch; of all experts, Σ 1−(1−p)^n.

        Experts that are touched are spread over ranks as if drawn without replacement, and the expected
        maximum is that of `excess`.

        >>> [round(Zipf(1.0).distinct(128, 8, n, 128), 1) for n in (1, 8, 32, 128, 512)]
        [8.0, 38.1, 82.4, 121.8, 128.0]
        """
        touched: Number = 0.0
        xp = namespace(tokens)
        for p, count in _levels(experts, chosen, self.skew):
            touched = touched + count * self.touched(p, tokens)
        mean = touched * held / experts
        if held < experts:
            share = touched / experts
            variance = held * share * (1 - share)
            mean = mean + excess(variance, variance * (1 - 2 * share), fullest(experts, held))
            mean = xp.minimum(mean, xp.minimum(held, tokens * min(chosen, held)))
        return mean


@lru_cache(maxsize=256)
def popularity(experts: int, chosen: int, skew: float) -> Array:
    """The probability that a token chooses each expert, the most popular first; they sum to `chosen`.

    >>> popularity(4, 2, 0.0).tolist(), popularity(4, 2, 1.0).round(2).tolist()
    ([0.5, 0.5, 0.5, 0.5], [0.77, 0.52, 0.39, 0.31])
    """
    if skew == 0 or chosen >= experts:
        return read_only(np.full(experts, min(chosen / experts, 1.0)))
    weights = -skew * np.log(np.arange(1, experts + 1))

    def chosen_by(log_time: float) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(-np.expm1(-np.exp(log_time + weights)))

    low, high = -50.0, 50.0 - float(weights[-1])
    for _ in range(80):  # halves: to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if chosen_by(middle).sum() < chosen else (low, middle)
    return read_only(chosen_by(high))


@lru_cache(maxsize=256)
def _levels(experts: int, chosen: int, skew: float) -> tuple[tuple[float, int], ...]:
    return levels(popularity(experts, chosen, skew))
