"""Routing laws: how tokens choose experts, and thus the rows and experts of a rank.

- `Chance`, the default: each token chooses experts uniformly at random. Routers that were trained for balance
  approach this law, not even shares.
- `Even`, `GroupLimitedRouting`, `LocalRouting`: evenly distributed loads, directly or behind a router or an
  exchange.
- `PowerLaw`: the loads of experts have a density ∝ load^-exponent on [1, 0.8·tokens]. They are scaled to a
  sum of tokens·chosen and rounded. AIConfigurator's benchmarks do the same (ai-dynamo/aiconfigurator,
  collector/helper.py), and time the busiest rank.
- `Zipf`: the r-th most popular expert has the weight r^-skew. Drawing k experts without replacement is taking
  the first k of E exponential clocks (Kool, van Hoof & Welling 2019, arXiv:1903.06059). Expert e is therefore
  chosen with probability 1 − exp(−λ·w_e), where λ is the time at which k clocks are expected to have rung
  (order sampling: Rosén 1997). Experts are assigned to ranks without regard to their popularity.
- `Replicas`: another law with redundant copies, placed as by EPLB (`replicate_experts` and `balanced_packing`
  of deepseek-ai/EPLB, which vLLM, SGLang and TensorRT-LLM use). The expert whose copies have the highest load
  gets the next copy. Copies are then assigned, heaviest first, to the least loaded rank with a free place.
  Loads are means over many steps, and a row is sent to a random copy (vLLM's
  `eplb_map_to_physical_and_record`).

`excess` estimates the largest of several similar sums from their cumulants.
"""

from __future__ import annotations

import ast
import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from llmir.base.array_namespace import Number, namespace
from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.base.names import bounded
from llmir.base.readers import expression
from llmir.base.values import read_only

# --- Base class and text form ---

Array = np.ndarray[Any, np.dtype[np.float64]]

LAWS: dict[str, type[Law]] = {}
_LONGEST = 80  # characters of a law's text; the longest that means something has some 30
_TINY = 1e-12
_STEP = 0.05  # probabilities that differ by less are merged; the error of the sum is below 0.1%


@dataclass(frozen=True)
class Law(ABC):
    """The way in which the tokens of a step choose `chosen` of `experts` experts each.

    A rank has consecutive experts. If the ranks do not divide the experts, each counts as the fullest. The
    fields are the parameters, and `word(parameters)` is the text that `law` parses.
    """

    word: ClassVar[str] = ""
    alone: ClassVar[bool] = False  # it describes one rank, so experts cannot be sharded over several

    def __init_subclass__(cls) -> None:
        LAWS[cls.word] = cls

    @property
    @abstractmethod
    def about(self) -> str:
        """The description in a report."""

    def popularity(self, chosen: int, experts: int) -> Array:
        """The probability that a token chooses each expert; VerifyError if the law does not define it."""
        fact = "states the load of ranks, but not of experts; expected chance, even or zipf:skew"
        raise VerifyError(f"copies of experts: {self.word} {fact}")

    def noise(self, chances: Array) -> Array:
        """The variance of the rows that a token gives to experts with these probabilities."""
        return chances * (1 - chances)

    def touched(self, chance: float, tokens: Number) -> Number:
        """The probability that at least one of `tokens` tokens chooses an expert with this probability."""
        return -namespace(tokens).expm1(tokens * math.log1p(-min(chance, 1 - _TINY)))

    def places(self, experts: int) -> int:
        """The number of places for experts, redundant copies included."""
        return experts

    def instead(self, by: Law) -> Law:
        """Another routing law for the same placement of experts."""
        return by

    def short(self, lengths: dict[int, int]) -> Law:
        """The law for a model with shortened axes."""
        return self

    @abstractmethod
    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The rows of the busiest of `ranks`, out of tokens·chosen; an integer."""

    @abstractmethod
    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected number of `held` experts on the busiest rank that these rows touch."""

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The number of tokens that have an expert on the busiest of `ranks`; an integer.

        Rows are assumed to be distributed over tokens as if each had as many chances as it can have rows
        there.
        """
        chances = min(chosen, fullest(self.places(experts), ranks))
        xp = namespace(tokens)
        share = self.busiest(ranks, chosen, tokens, experts) / xp.maximum(tokens * chances, 1)
        return whole(tokens * (1 - (1 - xp.minimum(share, 1)) ** chances))

    def __str__(self) -> str:
        given = ", ".join(_text(getattr(self, f.name)) for f in fields(self))
        return f"{self.word}({given})" if given else self.word


def fullest(experts: int, ranks: int) -> int:
    """The experts of the rank with the most: if the ranks do not divide the experts, some have one less."""
    return -(-experts // ranks)


def parameter(law: Law, name: str, value: object, most: float) -> None:
    """VerifyError unless a parameter is a number from 0 to `most`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value <= most):  # type: ignore[operator]
        shown = f"{value:g}" if number else repr(value)
        raise VerifyError(f"{law.word}: {name} is {shown}, expected {bounded('a number', 0, most)}")


def whole(rows: Number) -> Number:
    """Round up, except for rounding errors; a number gives an integer."""
    return namespace(rows).ceil(rows * (1 - _TINY))


def between(least: Number, rows: Number, most: Number) -> Number:
    """`rows`, limited to the range from `least` to `most`."""
    xp = namespace(least, rows, most)
    return xp.minimum(xp.maximum(rows, least), most)


def alike(chosen: int, experts: int) -> Array:
    """The probability that a token chooses each of equally popular experts."""
    return np.full(experts, min(chosen / experts, 1.0))


def levels(chances: Array) -> tuple[tuple[float, int], ...]:
    """Distinct probabilities with their number of experts; nearly equal ones are merged."""
    p = chances[chances > 0]
    _, which, counts = np.unique(np.round(np.log(p) / _STEP), return_inverse=True, return_counts=True)
    means = np.bincount(which, p) / counts
    return tuple((float(mean), int(count)) for mean, count in zip(means, counts, strict=True))


@lru_cache(maxsize=256)
def law(text: str) -> Law:
    """The law that prints as `text`; its one parameter may follow a colon. VerifyError for an unknown law.

    >>> law("zipf(0.5)") == law("zipf:0.5"), str(law("arrived(8, even)"))
    (True, 'arrived(8, even)')
    """
    try:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise TypeError(text)
        word, colon, one = text.partition(":")
        return _build(expression(f"{word}({one})" if colon else text))
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        known = ", ".join(_form(known) for known in LAWS.values())
        raise VerifyError(f"routing {str(text)[:_LONGEST]!r}: expected one of {known}") from None


def _build(node: ast.expr) -> Law:
    match node:
        case ast.Name(id=word):
            return LAWS[word]()
        case ast.Call(func=ast.Name(id=word), args=[_, *_] as arguments, keywords=[]):
            return LAWS[word](*map(_argument, arguments))
    raise ValueError(ast.dump(node))


def _argument(node: ast.expr) -> Law | int | float:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else _build(node)


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _form(kind: type[Law]) -> str:
    """The text form of a law, such as `zipf:skew`."""
    names = [f.name for f in fields(kind)]
    if len(names) == 1:
        return f"{kind.word}:{names[0]}"
    return f"{kind.word}({', '.join(names)})" if names else kind.word


# --- Chance ---


@dataclass(frozen=True)
class Chance(Law):
    """Each token chooses k of E experts uniformly without replacement; work is that of the busiest rank.

    n tokens miss a given expert with probability (1 − k/E)^n.

    >>> [round(Chance().busiest(64, 8, n, 256) / (n / 8), 2) for n in (64, 256, 4096)]
    [2.0, 1.44, 1.11]
    """

    word: ClassVar[str] = "chance"

    @property
    def about(self) -> str:
        return "tokens choose experts at random"

    def popularity(self, chosen: int, experts: int) -> Array:
        return alike(chosen, experts)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected rows of the busiest of `ranks`, out of tokens·chosen; rounded up.

        The rows of a token on a rank are hypergeometric. The shares have a fixed total: their correlation of
        −1/(R − 1) makes the largest exceed the mean like independent shares of R/(R − 1) times the variance.
        The error against simulation is 1% from 16 tokens on, 10% from 2, and 20% for one token.
        """
        if ranks == 1:
            return tokens * chosen
        held = fullest(experts, ranks)
        share, n, xp = held / experts, 1.0 * tokens, namespace(tokens)
        spread = n * chosen * share * (experts - chosen) / max(experts - 1, 1)  # for independent ranks
        lean = (1 - 2 * share) * (experts - 2 * chosen) / max(experts - 2, 1) / math.sqrt(1 - share)
        rows = n * chosen * share + excess(spread, spread * lean, ranks)
        return whole(between(xp.minimum(n, 1), rows, n * min(chosen, held)))

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected number of tokens with an expert on the busiest rank, each counted once; rounded up.

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
        apart = spread - (neither - none**2)  # for independent ranks
        lean = (2 * none - 1) * math.sqrt(apart / spread) if spread else 0.0
        most = n * (1 - none) + excess(n * apart, n * apart * lean, ranks)
        return whole(between(namespace(n).minimum(n, 1), most, n))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """held·(1 − (1 − k/E)^n) for all experts; for a part of them, the value of the rank that touches
        most.

        Touched experts are distributed over ranks as if drawn without replacement, and `excess` gives the
        expected maximum.

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


# --- Even loads ---

HALVES = 40  # enough to isolate one integer below the largest number of tokens on all ranks


@dataclass(frozen=True)
class Even(Law):
    """Rows are distributed evenly: all experts have equal numbers, and few rows touch as many experts.

    >>> Even().busiest(8, 8, 4096, 128), Even().distinct(16, 8, 4, 128)
    (4096, 4)
    """

    word: ClassVar[str] = "even"

    @property
    def about(self) -> str:
        return "rows are dealt out evenly to experts"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """An equal share of each expert, rounded up."""
        held = fullest(experts, ranks)
        return namespace(tokens).ceildiv(tokens * chosen * held, experts)

    def popularity(self, chosen: int, experts: int) -> Array:
        return alike(chosen, experts)

    def noise(self, chances: Array) -> Array:
        """None."""
        return 0 * chances

    def touched(self, chance: float, tokens: Number) -> Number:
        """1 once the expert has a row."""
        return namespace(tokens).minimum(tokens * chance, 1.0)

    def reached(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The copies of a token are distributed over as many ranks as there are copies, or over all ranks."""
        return namespace(tokens).ceildiv(tokens * min(chosen, ranks), ranks)

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """An expert for each row, as long as experts remain."""
        xp = namespace(tokens)
        return xp.minimum(xp.ceildiv(tokens * chosen * held, experts), held)


@dataclass(frozen=True)
class GroupLimitedRouting(Law):
    """Evenly distributed scores, before a router that is limited to the better half of the groups of experts.

    All groups then have equal scores, so the router takes the first half. Each token finds half of its
    experts there. The other half have no positive score, so all tokens take the first experts.

    >>> [GroupLimitedRouting().busiest(ranks, 8, 4096, 256) for ranks in (8, 1)]
    [20480, 32768]
    >>> [GroupLimitedRouting().distinct(held, 8, 4096, 256) for held in (32, 256)]
    [32, 128.0]
    """

    word: ClassVar[str] = "groups"

    @property
    def about(self) -> str:
        return "half of the groups of experts get all rows, the first experts most"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The rows of the first rank: its share of the found experts, plus those that all tokens take."""
        held = min(fullest(experts, ranks), experts / 2)
        rows = tokens * chosen * held / experts + tokens * min(chosen / 2, held)
        return whole(namespace(tokens).minimum(rows, tokens * min(chosen, held)))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The number of touched experts if each row touches another expert."""
        most = min(held, experts / 2)
        found = tokens * chosen * most / experts + min(chosen / 2, most)
        return namespace(tokens).minimum(found, most) * (tokens > 0)


@dataclass(frozen=True)
class LocalRouting(Law):
    """The law on one of `ranks`, which receives the tokens that have an expert there, with all of their
    copies.

    The first expert of the rank processes copies for experts of other ranks. The number of received tokens
    equals the rank's rows under `law`, but each token arrives once.

    >>> law = LocalRouting(32, Even())
    >>> law.busiest(1, 8, 1024, 4), law.distinct(4, 8, 2, 4)
    (8192, 2)
    """

    word: ClassVar[str] = "arrived"
    alone: ClassVar[bool] = True

    ranks: int
    law: Law

    def __post_init__(self) -> None:
        if isinstance(self.ranks, bool) or not isinstance(self.ranks, int) or self.ranks < 1:
            raise VerifyError(f"{self.word}: ranks is {self.ranks}, expected an integer from 1 up")
        if not isinstance(self.law, Law):
            raise VerifyError(f"{self.word}: expected a law for all ranks, got {self.law}")

    @property
    def about(self) -> str:
        return "copies for experts of other ranks go to the first of this one"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """All copies."""
        return tokens * chosen

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The experts that all tokens touch here: computed for the fewest tokens that give this many
        arrivals.
        """
        experts, xp = experts * self.ranks, namespace(tokens)
        below, enough = 1.0 * tokens - 1, 1.0 * tokens * self.ranks
        for _ in range(HALVES):
            middle = xp.ceil((below + enough) / 2)
            arrive = self.law.busiest(self.ranks, chosen, middle, experts) >= tokens
            below, enough = xp.where(arrive, below, middle), xp.where(arrive, middle, enough)
        return self.law.distinct(held, chosen, enough, experts)


# --- Expected maximum ---


def excess(second: Number, third: Number, ranks: int) -> Number:
    """The expected excess of the largest of `ranks` similar sums over their mean, from their cumulants.

    The sums are treated as gamma variables with this variance and skewness g. Their largest value is
    (2/g)·((1 − g²/36 + g·z/6)³ − 1) standard deviations above the mean, where a normal variable is z above it
    (Wilson & Hilferty 1931). The fixed total lowers the variance of each sum and makes the sums differ more;
    both effects cancel.
    """
    xp = namespace(second, third)
    deviation = xp.sqrt(xp.maximum(second, _TINY))
    skewness = third / deviation**3
    g = xp.where(abs(skewness) < 1e-4, 1e-4, skewness)
    z1, z2, z3 = _of_normals(ranks)
    a, b = 1 - g**2 / 36, g / 6
    cube = a**3 + 3 * a**2 * b * z1 + 3 * a * b**2 * z2 + b**3 * z3
    return xp.maximum(deviation * 2 / g * (cube - 1), 0)


@lru_cache(maxsize=256)
def _of_normals(count: int) -> tuple[float, float, float]:
    """The first three moments of the largest of `count` standard normal variables, by quadrature."""
    z, step = np.linspace(-10, 10, 20001, retstep=True)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    below = np.clip(np.cumsum(density) * step, 0, 1)
    weights = count * density * below ** (count - 1) * step
    first, second, third = (float((z**i * weights).sum()) for i in (1, 2, 3))
    return first, second, third


# --- Power law ---

MAX_EXPONENT = 10.0  # beyond this value all loads are minimal and equal
MAX_SKEW = 10.0  # beyond this, all tokens choose the same experts
NARROWEST = 200.0  # ratio of the busiest expert's load to the idlest one's with less than one row per expert
WIDEST = 0.8  # share of the tokens that the busiest expert may receive


@dataclass(frozen=True)
class PowerLaw(Law):
    """Loads of density ∝ load^-exponent; work is that of the busiest rank.

    The ratio of the largest to the smallest load is 0.8·tokens, or 200 if there is less than one row per
    expert, as in the published generators. For the busiest rank it is at least 200, so that its rows never
    decrease with more tokens. The loads of the experts of a rank add up to nearly a gamma distribution. Its
    expected maximum uses Wilson and Hilferty (1931) at Blom's score (1958). A rank has at most one row per
    token and expert. Loads below half a row are rounded to 0, and the lost rows are assigned to experts
    without rows.

    >>> law = PowerLaw(1.01)  # of 60 draws 6828 and 16 on average
    >>> law.busiest(8, 8, 4096, 128), int(law.distinct(16, 8, 4096, 128))
    (6914, 16)
    """

    word: ClassVar[str] = "power_law"

    exponent: float

    def __post_init__(self) -> None:
        parameter(self, "exponent", self.exponent, MAX_EXPONENT)
        object.__setattr__(self, "exponent", float(self.exponent))

    @property
    def about(self) -> str:
        return f"loads of experts have a density that falls as load^-{self.exponent:g}"

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        return whole(self._rows(ranks, chosen, tokens, experts))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The experts with half a row or more, plus those that receive the rows lost by rounding."""
        xp = namespace(tokens)
        rows = self._rows(fullest(experts, held), chosen, tokens, experts)
        widest = xp.where(tokens * chosen > experts, xp.maximum(WIDEST * tokens, 1 + 1e-6), NARROWEST)
        mean = self._moment(widest, 1) / self._moment(widest, 0)
        half = between(1, 0.5 * held * mean / xp.maximum(rows, 1), widest)  # relative to the smallest load
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
        """The variance of a load between 1 and `most`, in squares of its mean."""
        zeroth, first, second = (self._moment(most, n) for n in range(3))
        return zeroth * second / (first * first) - 1

    def _moment(self, most: Number, n: int) -> Number:
        """∫ load^(n - exponent) from 1 to `most`."""
        power = n + 1 - self.exponent
        power = power if abs(power) >= 1e-6 else 1e-6
        return (most**power - 1) / power


def _score(ranks: int) -> float:
    """The expected excess of the largest of `ranks` normal values over the mean, in standard deviations.

    Blom's (n - 3/8)/(n + 1/4) with Tukey's approximation of the normal quantile.
    """
    below = (ranks - 0.375) / (ranks + 0.25)
    return float((below**0.135 - (1 - below) ** 0.135) / 0.1975)


# --- Redundant experts ---


def copies(loads: Sequence[float], places: int) -> list[int]:
    """The number of places of each expert.

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
    """Distribute loads over ranks with equal numbers of places, by rank.

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
    """The experts of another law in `count` places; work is that of the busiest rank.

    >>> from llmir.ir.sizes.routing_laws import law
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
        return f"{self.law.about}, in {self.count} places"

    def places(self, experts: int) -> int:
        """The number of places, which is that of all experts with their copies."""
        if self.count < experts:
            raise VerifyError(f"{self.word}: {experts} experts do not fit in {self.count} places")
        return self.count

    def instead(self, by: Law) -> Law:
        """The placement with another law."""
        return Replicas(self.count, by)

    def short(self, lengths: dict[int, int]) -> Law:
        return Replicas(lengths.get(self.count, self.count), self.law)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The largest expected load over any number of the most loaded ranks, plus the random excess.

        Each of these values is a lower bound for the maximum over all ranks. The heaviest rank alone decides
        with many tokens, and all ranks together decide if they have equal loads.
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
        """The expected number of experts that the rank with the most touched experts touches."""
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


# --- Zipf's law ---


@dataclass(frozen=True)
class Zipf(Law):
    """Popularity falls as rank^-skew; work is that of the busiest rank.

    >>> [Zipf(s).busiest(8, 8, 4096, 128) for s in (0.1, 0.5, 1.0)], 8 * 4096 // 8
    ([4272, 5187, 6975], 4096)
    """

    word: ClassVar[str] = "zipf"

    skew: float

    def __post_init__(self) -> None:
        parameter(self, "skew", self.skew, MAX_SKEW)
        object.__setattr__(self, "skew", float(self.skew))

    @property
    def about(self) -> str:
        return f"experts' popularity falls as rank^-{self.skew:g}"

    def popularity(self, chosen: int, experts: int) -> Array:
        """The most popular first."""
        return popularity(experts, chosen, self.skew)

    def busiest(self, ranks: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected rows of the busiest of `ranks`, out of tokens·chosen; rounded up.

        The rows of a rank are the sum over its experts of the tokens that chose each. The second and third
        cumulants of this sum, over choices of tokens and placements of experts, give the expected maximum
        (`excess`). The result is at least the expectation for the rank of the most popular expert.
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
        """The rows of the most popular expert, one token each, plus the chance of each token for another
        expert.
        """
        others, xp = min(chosen, fullest(experts, ranks)) - 1, namespace(tokens)
        if ranks == 1 or others == 0:
            return whole(xp.minimum(self.busiest(ranks, chosen, tokens, experts), tokens))
        share = self.busiest(ranks, chosen, tokens, experts) / xp.maximum(tokens, 1)
        first = xp.minimum(float(popularity(experts, chosen, self.skew)[0]), share)
        missed = (1 - first) * (1 - xp.minimum((share - first) / others, 1)) ** others
        return whole(tokens * (1 - missed))

    def distinct(self, held: int, chosen: int, tokens: Number, experts: int) -> Number:
        """The expected number for the rank that touches most; for all experts, Σ 1−(1−p)^n.

        Touched experts are distributed over ranks as if drawn without replacement, and `excess` gives the
        expected maximum.

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


# --- Default law ---

CHANCE = Chance()  # the default law of a program
