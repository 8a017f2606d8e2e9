"""Traffic of a plan: random requests at a rate, and the latency limits to meet.

`latency_limit` reads limits such as `1s`, `p50:30ms` or `mean:30ms`; `Traffic` has rate, lengths and
limits, and samples loads.
"""

from __future__ import annotations

import re
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from llmir.backends.simulate.load import Load, sample_load
from llmir.backends.simulate.router import FIRST
from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.values import Array, Record

# Latency limits

DEFAULT_STATISTIC = "p99"  # of requests, where a limit does not say of what it is
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LIMIT = re.compile(r"(?:(mean|p\d{1,2}(?:\.\d{1,3})?):)?(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII)


class LatencyLimit(NamedTuple):
    """At most so many seconds, of the mean over requests or of a percentile of them, such as `p99`."""

    seconds: float
    of: str = DEFAULT_STATISTIC

    def figure(self, seconds: Array) -> float:
        """What is limited, of the seconds of requests; NaN is none."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return 0.0
        return float(known.mean() if self.of == "mean" else np.percentile(known, float(self.of[1:])))


def latency_limit(name: str, said: object) -> LatencyLimit:
    """A limit as it is said, or seconds as a number; InputError for what is none.

    >>> latency_limit("max_tpot", "30ms"), latency_limit("max_ttft", 1)
    (LatencyLimit(seconds=0.03, of='p99'), LatencyLimit(seconds=1.0, of='p99'))
    >>> latency_limit("max_tpot", "mean:0.03s")
    LatencyLimit(seconds=0.03, of='mean')
    """
    if isinstance(said, LatencyLimit):
        return said
    if not isinstance(said, str):
        return LatencyLimit(arguments.number(name, said, above=True))
    found = _LIMIT.fullmatch(said.strip())
    if not found:
        expected = "a time such as 30ms, or of a statistic, such as p50:30ms or mean:0.5s"
        arguments.refuse(name, said, expected)
    of, digits, unit = found.groups()
    if unit not in _UNITS:
        raise InputError(f"{name}: {said.strip()[:40]} has no unit; say {digits}ms or {digits}s")
    return LatencyLimit(
        arguments.number(name, float(digits) * _UNITS[unit], above=True), of or DEFAULT_STATISTIC
    )


# Traffic

MEASURED = 4000  # requests whose mean lengths are those of a law
SEEDS, BUDGET = 5, 40  # runs of a plan that is shown, at least and at most
SECONDS = 3600  # of the hour that is simulated of the first plan
# Requests of that which are simulated, which takes a second or two: events of several servers cost more.
MOST, MAX_REQUESTS_OF_SERVERS = 100_000, 20_000


@dataclass(frozen=True, eq=False)
class Traffic(Record):
    """Requests that come by Poisson's law, `rate` a second, with lengths in words (`simulate/load.py`).

    A run has so many `requests`, or more where so few end before the server is full. The first and the last
    tenth do not count: the server fills and empties. Requests that are longer than the `positions` of the
    model are refused. A share `prefix_hits` of each prompt is cached. A `router` deals them out to servers of
    a kind. Runs are by up to `BUDGET` seeds from `seed` on, and the hour of the first plan is by the one
    after them.

    Plans are for times that are a `margin` longer than estimated, as a share. Of the rate that servers answer
    at most, a share `headroom` is left.
    """

    rate: float
    prompt: int | str
    generate: int | str
    requests: int
    ttft: LatencyLimit | None = None
    tpot: LatencyLimit | None = None
    positions: int | None = None
    prefix_hits: float = 0.0
    router: str = FIRST
    seed: int = 0
    margin: float = 0.0
    headroom: float = 0.0

    @property
    def limits(self) -> tuple[LatencyLimit | None, LatencyLimit | None]:
        """Of the first token, and of later ones."""
        return self.ttft, self.tpot

    def steady(self, seconds: Array) -> Array:
        """The values of requests that come while the server is neither filling nor emptying."""
        tenth = len(seconds) // 10
        return seconds[tenth : len(seconds) - tenth]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs."""
        return tuple(range(self.seed, self.seed + BUDGET))

    @property
    def stretch(self) -> float:
        """How many times longer a step takes than estimated."""
        return 1 + self.margin

    @property
    def stable_rate(self) -> float:
        """Requests a second that all servers have to be able to answer: the rate, and the headroom."""
        return self.rate / (1 - self.headroom)

    def load(self, share: float, seed: int, servers: int = 1, burstiness: float = 1.0) -> Load:
        """The load of so many `servers`, which get one of `share` equal parts of the rate.

        A random part of what comes by Poisson's law does so too. Steps are simulated as estimated. Where they
        take longer by the stretch, requests come faster by it: then all latencies are shorter by it.
        """
        rate, many = self.rate * self.stretch / share, self.requests * servers
        load = sample_load(many, self.prompt, self.generate, rate=rate, burstiness=burstiness, seed=seed)
        return load.hit(self.prefix_hits)

    def alone(self, units: float, seed: int) -> Load:
        """What comes to one of so many units that are alike: every nth request, where they take turns."""
        return self.load(units, seed, burstiness=units if self.router == FIRST else 1.0)

    @cached_property
    def _lengths(self) -> tuple[int, int]:
        load = sample_load(MEASURED, self.prompt, self.generate)
        return round(float(load.prompt.mean())), max(1, round(float(load.generate.mean())))

    @property
    def read(self) -> int:
        """Tokens of a prompt, on average."""
        return self._lengths[0]

    @property
    def cached(self) -> int:
        """Tokens of it that are cached already: all but the last one at most."""
        return min(int(self.read * self.prefix_hits), self.read - 1)

    @property
    def answer(self) -> int:
        """Tokens that are generated for a request, on average."""
        return self._lengths[1]

    @property
    def longest(self) -> int:
        """Tokens of the longest request of those that are not refused."""
        return self.every.longest

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Of a prompt, of an answer, and of the longest request."""
        return self.read, self.answer, self.longest

    @property
    def refused(self) -> float:
        """The share of requests that are longer than the model's positions."""
        return 1 - len(self.every) / len(self._drawn)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of it."""
        if not self.refused:
            return ()
        longer = f"more than the {self.positions:,} positions of the model"
        return (f"{100 * self.refused:.3g}% of requests have {longer}: they are refused, and not counted",)

    @cached_property
    def every(self) -> Load:
        """All requests of runs and of the hour that are not refused: a plan has to have room for each."""
        load, most = self._drawn, self.positions
        kept = load.prompt + load.generate <= (inf if most is None else most)
        return load if kept.all() else load.only(kept)

    def spread(self, count: int) -> Load:
        """So many requests, with prompts and answers evenly spread over those of all, in random order.

        Their mean lengths vary less than those of as many random requests. None is longer than the longest.
        """
        load, draw = self.every, np.random.default_rng(self.seed)
        places = ((np.arange(count) + 0.5) * len(load) / count).astype(int)
        tokens, answers = (draw.permutation(np.sort(n)[places]) for n in (load.prompt, load.generate))
        found = Load(tokens, answers, np.zeros_like(tokens), np.zeros(count)).hit(self.prefix_hits)
        return found.only(tokens + answers <= load.longest)

    @cached_property
    def _drawn(self) -> Load:
        hour = max(1, min(round(self.rate * SECONDS), MOST))
        counts = [*[self.requests] * BUDGET, hour]
        some = [
            sample_load(count, self.prompt, self.generate, seed=seed)
            for seed, count in enumerate(counts, self.seed)
        ]
        tokens, answers = (
            np.concatenate(column)
            for column in zip(*((each.prompt, each.generate) for each in some), strict=True)
        )
        load = Load(tokens, answers, np.zeros_like(tokens), np.zeros(len(tokens)), limit=some[0].limit)
        return load.hit(self.prefix_hits)
