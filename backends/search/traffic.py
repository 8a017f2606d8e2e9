"""Traffic of a plan: random requests at a rate, and the latency limits that plans have to meet.

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

DEFAULT_STATISTIC = "p99"  # the statistic over requests of a limit without one
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_LIMIT = re.compile(r"(?:(mean|p\d{1,2}(?:\.\d{1,3})?):)?(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)", re.ASCII)


class LatencyLimit(NamedTuple):
    """A limit in seconds on the mean over requests or on a percentile, such as `p99`."""

    seconds: float
    of: str = DEFAULT_STATISTIC

    def figure(self, seconds: Array) -> float:
        """The limited statistic of an array of seconds; NaN is ignored."""
        known = seconds[~np.isnan(seconds)]
        if not known.size:
            return 0.0
        return float(known.mean() if self.of == "mean" else np.percentile(known, float(self.of[1:])))


def latency_limit(name: str, said: object) -> LatencyLimit:
    """Parse a limit, a text or a number of seconds; InputError if it is invalid.

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
        expected = "a time such as 30ms or 1s, or of a statistic, such as p50:30ms or mean:0.5s"
        arguments.refuse(name, said, expected)
    of, digits, unit = found.groups()
    if unit not in _UNITS:
        raise InputError(f"{name}: {said.strip()[:40]} has no unit; say {digits}ms or {digits}s")
    return LatencyLimit(
        arguments.number(name, float(digits) * _UNITS[unit], above=True), of or DEFAULT_STATISTIC
    )


# Traffic

MEASURED = 4000  # requests that estimate the mean lengths of a distribution
SEEDS, BUDGET = 5, 40  # smallest and largest number of runs of a plan in the table
SECONDS = 3600  # simulated seconds of the first plan's hour
# Largest number of simulated requests, which takes a second or two; events of several servers cost more.
MOST, MAX_REQUESTS_OF_SERVERS = 100_000, 20_000


@dataclass(frozen=True, eq=False)
class Traffic(Record):
    """Requests with Poisson arrivals, `rate` per second; lengths are given as text (`simulate/load.py`).

    A run has `requests` requests, or more if too few of them end before the server is full. The first and
    last tenth are excluded, because the server fills and empties. Requests longer than the `positions` of the
    model are refused. A share `prefix_hits` of each prompt is cached. A `router` distributes requests over
    the servers of a kind. Runs use up to `BUDGET` seeds, starting with `seed`; the simulated hour of the
    first plan uses the next seed.

    Plans are computed with times that are longer than estimated by the share `margin`. A share `headroom` of
    the stable rate of the servers stays unused.
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
        """The limits of TTFT and TPOT."""
        return self.ttft, self.tpot

    def steady(self, seconds: Array) -> Array:
        """The part of `seconds` for requests that arrive while the server is neither filling nor emptying."""
        tenth = len(seconds) // 10
        return seconds[tenth : len(seconds) - tenth]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(range(self.seed, self.seed + BUDGET))

    @property
    def stretch(self) -> float:
        """The factor by which step times are longer than the estimates."""
        return 1 + self.margin

    @property
    def stable_rate(self) -> float:
        """The request rate per second that all servers must sustain: the rate plus the headroom."""
        return self.rate / (1 - self.headroom)

    def load(self, share: float, seed: int, servers: int = 1, burstiness: float = 1.0) -> Load:
        """The load of `servers` servers that together receive one of `share` equal parts of the rate.

        A random part of a Poisson process is again a Poisson process. The simulation runs with step times as
        estimated. To account for longer times, arrivals are faster by the same factor; the resulting
        latencies are then longer by it.
        """
        rate, many = self.rate * self.stretch / share, self.requests * servers
        load = sample_load(many, self.prompt, self.generate, rate=rate, burstiness=burstiness, seed=seed)
        return load.hit(self.prefix_hits)

    def alone(self, units: float, seed: int) -> Load:
        """The load of one of `units` equal units; with a round-robin router, every n-th request."""
        return self.load(units, seed, burstiness=units if self.router == FIRST else 1.0)

    @cached_property
    def _lengths(self) -> tuple[int, int]:
        load = sample_load(MEASURED, self.prompt, self.generate)
        return round(float(load.prompt.mean())), max(1, round(float(load.generate.mean())))

    @property
    def read(self) -> int:
        """Mean number of tokens of a prompt."""
        return self._lengths[0]

    @property
    def cached(self) -> int:
        """The cached tokens of a prompt of mean length; at least its last token is not cached."""
        return min(int(self.read * self.prefix_hits), self.read - 1)

    @property
    def answer(self) -> int:
        """Mean number of tokens that are generated for a request."""
        return self._lengths[1]

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is not rejected."""
        return self.every.longest

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Tokens of the mean prompt and of the mean output, and of the longest request."""
        return self.read, self.answer, self.longest

    @property
    def refused(self) -> float:
        """The share of requests that are longer than the model's positions."""
        return 1 - len(self.every) / len(self._drawn)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        if not self.refused:
            return ()
        longer = f"more than the {self.positions:,} positions of the model"
        return (f"{100 * self.refused:.3g}% of requests have {longer}: they are refused, and not counted",)

    @cached_property
    def every(self) -> Load:
        """The requests of all runs and of the simulated hour that are not refused; each must fit in
        memory.
        """
        load, most = self._drawn, self.positions
        kept = load.prompt + load.generate <= (inf if most is None else most)
        return load if kept.all() else load.only(kept)

    def spread(self, count: int) -> Load:
        """`count` requests whose lengths are spread evenly over the lengths of all requests, in random order.

        Their mean lengths vary less than those of random requests. None is longer than the longest request.
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
