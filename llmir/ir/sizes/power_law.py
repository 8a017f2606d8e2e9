"""Loads of experts that follow a power law, as AIConfigurator's benchmarks deal them out.

Not tokens choose here: the loads themselves are drawn, of density ∝ load^-exponent from 1 to 0.8·tokens,
scaled to tokens·chosen and rounded (ai-dynamo/aiconfigurator, collector/helper.py). The rank that is timed is
the busiest.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass

from .routing_laws import Law, between, fullest, parameter, whole

STEEPEST = 10.0  # past this, loads are alike: the least that there is
NARROWEST = 200.0  # the busiest expert's load to the idlest's where there is less than a row for each
WIDEST = 0.8  # share of the tokens that the busiest expert may get


@dataclass(frozen=True)
class PowerLaw(Law):
    """Loads of density ∝ load^-exponent, of the busiest rank.

    The widest loads are 0.8·tokens of the least, 200 where there is less than a row for each expert, as in
    the published generators; for the busiest rank 200 at least, so that its rows never fall with more
    tokens. Loads of the experts of a rank add up to nearly a gamma distribution, whose largest of so many is
    by Wilson and Hilferty (1931) at Blom's score (1958); no rank has more than a row of each token and
    expert. Less than half a row is none, and rows that are lost by that go to experts without any.

    >>> law = PowerLaw(1.01)  # of 60 draws 6828 and 16 on average
    >>> law.busiest(8, 8, 4096, 128), int(law.distinct(16, 8, 4096, 128))
    (6914, 16)
    """

    word: ClassVar[str] = "power_law"

    exponent: float

    def __post_init__(self) -> None:
        parameter(self, "exponent", self.exponent, STEEPEST)
        object.__setattr__(self, "exponent", float(self.exponent))

    @property
    def about(self) -> str:
        """As a report says it."""
        return f"loads of experts have a density that falls as load^-{self.exponent:g}"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected largest of so many sums of loads."""
        return whole(self._rows(ranks, chosen, tokens, experts))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """Those whose load is half a row or more, and others that get what was rounded away."""
        xp = namespace(tokens)
        rows = self._rows(fullest(experts, held), chosen, tokens, experts)
        widest = xp.where(tokens * chosen > experts, xp.maximum(WIDEST * tokens, 1 + 1e-6), NARROWEST)
        mean = self._moment(widest, 1) / self._moment(widest, 0)
        half = between(1, 0.5 * held * mean / xp.maximum(rows, 1), widest)  # in loads of the least
        few, lost = (self._moment(half, n) / self._moment(widest, n) for n in (0, 1))
        return between(xp.minimum(rows, 1), (1 - few) * held + lost * rows, rows)

    def _rows(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        held = fullest(experts, ranks)
        share, xp = tokens * chosen * held / experts, namespace(tokens)
        if ranks == 1:
            return share
        variance = self._variance(xp.maximum(WIDEST * tokens, NARROWEST))
        part = xp.minimum(variance / held / 9, (_score(ranks) / 2) ** 2)  # beyond, their formula falls again
        above = xp.maximum(1 - part + _score(ranks) * xp.sqrt(part), 0)
        rows = xp.minimum(above**3 * share, tokens * min(chosen, held))
        return xp.maximum(rows, xp.minimum(tokens, 1))

    def _variance(self, most: Number) -> Number:
        """Of a load between 1 and `most`, in squares of its mean."""
        zeroth, first, second = (self._moment(most, n) for n in range(3))
        return zeroth * second / (first * first) - 1

    def _moment(self, most: Number, n: int) -> Number:
        """∫ load^(n - exponent) from 1 to `most`."""
        power = n + 1 - self.exponent
        power = power if abs(power) >= 1e-6 else 1e-6
        return (most**power - 1) / power


def _score(ranks: int) -> float:
    """Standard deviations by which the largest of so many normal values exceeds their mean, on average.

    Blom's (n - 3/8)/(n + 1/4) by Tukey's approximation of the normal distribution's quantile.
    """
    below = (ranks - 0.375) / (ranks + 0.25)
    return float((below**0.135 - (1 - below) ** 0.135) / 0.1975)
