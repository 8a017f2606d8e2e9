"""Simulated runs of a plan: percentiles of latencies, and the share of requests within limits.

`SeedRun` is one run, `Trial` contains the runs of one plan with their verdict, and `decide` adds runs until
there is a verdict. `Replica` simulates a structure, and estimates its steps once for all runs.
`pool_latencies` simulates prefill and decode servers one by one, if the router does not consider their loads.
This is possible because a prefill server depends on no other server, and a decode server only on the arrival
of caches. The result therefore equals that of all servers together (`simulate.engine.Pools`) and takes a
fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp, expm1, inf, isnan, log, nan, sqrt
from typing import NamedTuple

import numpy as np

from llmir.backends.simulate.cluster import run_replicas, serve
from llmir.backends.simulate.engine import Pools, Profile, check_load, step_times
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.result import (
    LatencySpread,
    ReplicaSimulation,
    Simulation,
    latency_spread,
    saturation_rate,
    within_limits,
)
from llmir.backends.simulate.router import FIRST, ROUTERS, Router
from llmir.backends.simulate.server import Capacity, RequestTimeline, Server
from llmir.backends.simulate.server_kinds import LATER, decode_server_of, server_of
from llmir.backends.simulate.step_times import StepTimes
from llmir.base.dataclass import dataclass
from llmir.base.values import Array, Record

from .structures import Structure
from .traffic import BUDGET, SEEDS, LatencyLimit, Traffic

# Replicas

UNIT = 8  # largest number of servers of a kind that are simulated together
KEPT = 20_000  # largest number of requests of a run that is kept for other searches, for memory
NONE = LatencySpread(*[float("nan")] * len(LatencySpread._fields))


class Latencies(NamedTuple):
    """TTFT and TPOT in seconds of each counted request of a run, with step times as estimated.

    `most` is the largest number of concurrent requests, infinite (unknown) if blocks may have run short.
    """

    ttft_s: Array
    tpot_s: Array
    most: float = inf


class SeedRun(NamedTuple):
    """A run with one seed: the distributions of TTFT and TPOT, and the share of requests within the limits.

    `limited` contains the statistics of the limits of TTFT and TPOT, such as a p99. `seconds` are the TTFT
    and TPOT of each counted request; `most` is that of its `Latencies`.
    """

    ttft_s: LatencySpread
    tpot_s: LatencySpread
    limited: tuple[float, float]
    within: float
    seconds: tuple[Array, Array]
    most: float = inf

    @classmethod
    def of(cls, run: Latencies, traffic: Traffic) -> SeedRun:
        """A run with the limits of the traffic, and with times longer by its stretch."""
        ttft_s, tpot_s = run.ttft_s * traffic.stretch, run.tpot_s * traffic.stretch
        good = within_limits(ttft_s, tpot_s, *(each and each.seconds for each in traffic.limits))
        limited = tuple(map(_limited, traffic.limits, (ttft_s, tpot_s)))
        figures = latency_spread(ttft_s) or NONE, latency_spread(tpot_s) or NONE
        return cls(*figures, (limited[0], limited[1]), float(good.mean()), (ttft_s, tpot_s), run.most)


# Relative error of a simulated largest rate: two standard deviations over seeds (docs/dev/checks.md).
RATE_ERROR = 0.02
SATURATION = 3000  # lengths of requests that saturate a server, spread over all that are drawn

# Verdicts

MEETS, MISSES, UNDECIDED = "meets", "misses", "undecided"
ERROR = 0.01  # largest probability of a wrong verdict on a limit, over all tests together
PARTS = 16  # parts into which the error is divided among the tests
FIRST_PARTS = 1  # parts of the error that the test after the fewest runs spends
# The tests of the verdict, by the length of the runs in multiples of the first runs: after how many runs each
# test is made, and how many parts of the error it spends. The tests of one length and the test of the first
# runs spend the whole error together. The last test has the whole budget of seeds.
LOOKS = {
    1: ((10, 2), (20, 3), (BUDGET, 10)),
    2: ((SEEDS, 1), (10, 3), (20, 11)),
    4: ((SEEDS, 2), (10, 13)),
}
# Student's t at 1 - ERROR * parts / PARTS, by the number of runs and parts.
QUANTILES_OF_T = {
    (5, 1): 8.1216,
    (5, 2): 6.7583,
    (10, 2): 4.1458,
    (10, 3): 3.8767,
    (10, 13): 2.9489,
    (20, 3): 3.3018,
    (20, 11): 2.7146,
    (40, 10): 2.6189,
}
SPANS = 50  # a run with a latency near its limit has at least so many correlation lengths of latencies
BATCHES = 20  # number of parts of a run whose means estimate the correlation


@dataclass(frozen=True, eq=False)
class Trial(Record):
    """Runs of one plan with different seeds, and the verdict on its `limits`.

    The verdict is a group sequential test by repeated confidence intervals (Jennison and Turnbull, Journal of
    the Royal Statistical Society B 51, 1989, 305). The requests of one run wait for one another, so only runs
    with different seeds are independent observations. At each of `LOOKS`, Student's t gives bounds for each
    limited statistic. A limit above the upper bound is met, and a limit below the lower bound is missed. Each
    test uses `parts` of `ERROR`. Early tests use the smallest parts, because bounds from few, skewed values
    need more room. By Bonferroni's inequality, the probability that any test is wrong is at most the sum of
    the parts, even if the tests depend on each other.

    A statistic is computed over all runs together, and its spread is the spread of the single runs around it
    (sectioning: Asmussen and Glynn, Stochastic Simulation, 2007, III.5a). The bias of a quantile is then the
    same as in one run with the length of all runs. The spread is computed from logarithms, which are less
    skewed. The bounds assume normal values, which long runs approach by the central limit theorem for means
    and quantiles.
    """

    runs: tuple[SeedRun, ...]
    limits: tuple[LatencyLimit | None, LatencyLimit | None] = (None, None)
    parts: int = FIRST_PARTS

    @cached_property
    def _seconds(self) -> tuple[Array, Array]:
        ttft_s, tpot_s = zip(*(run.seconds for run in self.runs), strict=True)
        return np.concatenate(ttft_s), np.concatenate(tpot_s)

    @cached_property
    def ttft_s(self) -> LatencySpread:
        """The spread of TTFT over the requests of all runs."""
        return latency_spread(self._seconds[0]) or NONE

    @cached_property
    def tpot_s(self) -> LatencySpread:
        """The spread of TPOT over the requests of all runs."""
        return latency_spread(self._seconds[1]) or NONE

    @cached_property
    def half_widths(self) -> tuple[LatencySpread, LatencySpread]:
        """Half the width of the confidence interval of each statistic of TTFT and TPOT; NaN for one run."""
        each = (
            ([run.ttft_s for run in self.runs], self.ttft_s),
            ([run.tpot_s for run in self.runs], self.tpot_s),
        )
        ttft, tpot = (
            LatencySpread(*map(self._half_width, zip(*spreads, strict=True), whole))
            for spreads, whole in each
        )
        return ttft, tpot

    def _half_width(self, values: Sequence[float], whole: float) -> float:
        """The distance from a value over all runs to its upper bound."""
        return whole * expm1(self._spread(values, whole))

    def _spread(self, values: Sequence[float], whole: float) -> float:
        """Half the width of the interval of the value's logarithm; NaN for one run."""
        count = len(values)
        if count == 1 or not whole > 0 or not min(values) > 0:
            return nan
        spread = sqrt(sum(log(value / whole) ** 2 for value in values) / (count - 1))
        return QUANTILES_OF_T[count, self.parts] * spread / sqrt(count)

    @cached_property
    def within(self) -> float:
        """The share of requests within all limits, averaged over runs."""
        return float(np.mean([run.within for run in self.runs]))

    def limited(self, which: int) -> float:
        """The statistic of the limit of TTFT (0) or TPOT (1), over the requests of all runs."""
        return _limited(self.limits[which], self._seconds[which])

    def half_width(self, which: int) -> float:
        """The distance from this statistic to its upper bound; 0 for one run."""
        return self.upper(which) - self.limited(which)

    def bounds(self, which: int) -> tuple[float, float]:
        """The lower and upper bound of this statistic, with the certainty of a verdict."""
        value, limit = self.limited(which), self.limits[which]
        spread = self._spread([_limited(limit, run.seconds[which]) for run in self.runs], value)
        return (value, value) if isnan(spread) else (value * exp(-spread), value * exp(spread))

    def upper(self, which: int) -> float:
        """The upper bound of this statistic, with the certainty of a verdict."""
        return self.bounds(which)[1]

    @cached_property
    def correlation(self) -> float:
        """The number of requests over which a limited latency is correlated, by batch means (Law, 2015,
        9.5.3).

        The variance of a mean of n values is larger by this factor than for n independent values.
        """
        found = [1.0]
        for which, limit in enumerate(self.limits):
            for run in self.runs if limit else ():
                values = run.seconds[which][~np.isnan(run.seconds[which])]
                means = [part.mean() for part in np.array_split(values, BATCHES) if part.size]
                if len(means) == BATCHES and values.var() > 0:
                    found.append(len(values) / BATCHES * float(np.var(means, ddof=1) / values.var()))
        return float(np.mean(found[1:])) if len(found) > 1 else 1.0

    def usage(self, which: int) -> float:
        """The share of the limit of TTFT (0) or TPOT (1) that is used, at the upper bound; 0 without a
        limit.
        """
        limit = self.limits[which]
        return self.upper(which) / limit.seconds if limit else 0.0

    @cached_property
    def over(self) -> float:
        """The largest used share of a limit; above 1, the limit is not met with certainty."""
        return max(map(self.usage, range(len(self.limits))))

    def verdict_on(self, which: int) -> str:
        """Whether a limit is met, missed, or undecided; one run is never conclusive."""
        limit = self.limits[which]
        if limit is None:
            return MEETS
        lower, upper = self.bounds(which)
        if len(self.runs) == 1 or lower <= limit.seconds < upper:
            return UNDECIDED
        return MEETS if upper <= limit.seconds else MISSES

    @cached_property
    def verdict(self) -> str:
        """Whether all limits are met; missed if one is missed."""
        return worst(*(self.verdict_on(which) for which in range(len(self.limits))))


def worst(*verdicts: str) -> str:
    """The verdict on all limits together: missed if any limit is missed, and met if all are met."""
    return next(verdict for verdict in (MISSES, UNDECIDED, MEETS) if verdict in verdicts)


def rate_verdict(largest: float | None, traffic: Traffic) -> str:
    """Whether a plan with a stable rate of `largest` requests/s can serve the rate with its headroom.

    Whether the limit is met; None if the value is too close to it. Without headroom, a rate within the error
    of the largest one is undecided.
    """
    error = 0.0 if traffic.headroom else RATE_ERROR
    if largest is None or largest >= traffic.stable_rate * (1 + error):
        return MEETS
    return MISSES if largest * (1 + error) < traffic.stable_rate else UNDECIDED


def decide(
    run: Callable[[int, int], SeedRun], first: SeedRun, traffic: Traffic, requests: int, *, patient: bool
) -> Trial:
    """Simulate seeds of the traffic until a test of the runs so far gives a verdict.

    The first `SEEDS` seeds always run; more run only if `patient`, up to the largest number in `LOOKS`. `run`
    simulates a seed with a number of requests. If the first runs do not decide a limit, the value is close to
    it, and later runs are as long as the correlation of latencies requires.
    """
    seeds = traffic.seeds
    runs = [first, *(run(seed, requests) for seed in seeds[1:SEEDS])]
    trial = Trial(tuple(runs), traffic.limits)
    if trial.verdict != UNDECIDED or not patient:
        return trial
    longer = next((n for n in LOOKS if n * requests >= SPANS * trial.correlation), max(LOOKS))
    if longer > 1:
        runs = []
    for count, parts in LOOKS[longer]:
        runs += [run(seed, longer * requests) for seed in seeds[len(runs) : count]]
        trial = Trial(tuple(runs), traffic.limits, parts)
        if trial.verdict != UNDECIDED:
            break
    return trial


Room = Callable[[Capacity], Capacity]


def as_it_is(room: Capacity) -> Capacity:
    """The capacity with the engine's settings."""
    return room


class Replica:
    """A simulated replica of a structure; `steps` are step times that are estimated once for all runs and
    settings.

    `room` increases the capacity of the engine. Limits and headroom of the traffic do not change runs, so
    searches that differ only in these share the replica.
    """

    def __init__(
        self,
        structure: Structure,
        traffic: Traffic,
        steps: StepTimes | None = None,
        room: Room = as_it_is,
    ) -> None:
        self.structure, self.traffic, self.room = structure, traffic, room
        self.steps = steps or step_times(structure.program, structure.model, structure.drafts)
        self._profiles: dict[tuple[int, int], Profile] = {}
        self._runs: dict[tuple[int, int, float, int, int], Latencies] = {}

    def run(self, chunk: int, batch: int, replicas: float, seed: int, requests: int) -> Latencies:
        """Simulate requests on one of the replicas, or on several if the router considers loads.

        A fractional replica gets its part of the requests if the router does not consider loads. InputError
        if a request does not fit.
        """
        key = chunk, batch, replicas, seed, requests
        if key in self._runs:
            return self._runs[key]
        traffic = replace(self.traffic, requests=requests)
        run = self._run(self.profile(chunk, batch), traffic, replicas, seed)
        if requests <= KEPT:
            self._runs[key] = run
        return run

    def _run(self, profile: Profile, traffic: Traffic, replicas: float, seed: int) -> Latencies:
        if not ROUTERS[traffic.router].blind and replicas > 1:
            return self._together(profile, traffic, replicas, seed)
        load = self._load(profile, traffic.alone(replicas, seed))
        server = serve(self.steps, profile.policy, self.room(profile.capacity(load.longest)), load)
        found = Simulation.of(profile, server, load)
        return Latencies(traffic.steady(found.ttft_s), traffic.steady(found.tpot_s), _at_once(server))

    def _together(self, profile: Profile, traffic: Traffic, replicas: float, seed: int) -> Latencies:
        """A run of several replicas, up to `UNIT` of them, with their share of the traffic."""
        many = min(int(replicas), UNIT)
        load = self._load(profile, traffic.load(replicas / many, seed, many))
        room = self.room(profile.capacity(load.longest))
        one = server_of(self.steps, profile.policy, room, load, RequestTimeline(load.arrival_s.tolist()))
        dealt = run_replicas(one, ROUTERS[traffic.router](many, load, room), load)
        found = ReplicaSimulation.of_run(profile, dealt, load)
        return Latencies(traffic.steady(found.ttft_s), traffic.steady(found.tpot_s))

    def _load(self, profile: Profile, load: Load) -> Load:
        """The requests that are not longer than the longest request of the plan.

        In a long run, a distribution without a largest value eventually gives longer requests.
        """
        of = self.traffic.every
        fits = (load.prompt <= of.prompt.max()) & (load.prompt + load.generate <= of.longest)
        return profile.admitted(load if fits.all() else load.only(fits))

    def largest_rate(self, chunk: int, batch: int) -> float:
        """The largest stable rate of a replica in requests per second, with step times as estimated."""
        profile = self.profile(chunk, batch)
        load = profile.admitted(self.traffic.spread(SATURATION))
        room = self.room(profile.capacity(load.longest))
        return saturation_rate(self.steps, profile.policy, room, load)

    def profile(self, chunk: int, batch: int) -> Profile:
        """The replica with a setting, as a server that runs loads."""
        if (chunk, batch) not in self._profiles:
            job = self.structure.job(1, 1, None, chunk, batch)
            chunked, drafts = self.structure.chunked, self.structure.drafts
            self._profiles[chunk, batch] = Profile(job, chunked, drafts, self.steps)
        return self._profiles[chunk, batch]


def _at_once(server: Server) -> float:
    """The largest number of concurrent requests; infinite if blocks may have run short."""
    starts, ends = np.sort(server.course.start_s), np.sort(server.course.end_s)
    most = int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max())
    spare = server.policy.roomy(server.capacity)
    demand = most * max(server.final) + server.ahead
    room = spare is not None and demand + spare <= server.blocks.total
    return most if room else inf


def _limited(limit: LatencyLimit | None, seconds: Array) -> float:
    return limit.figure(seconds) if limit else 0.0


# Prefill and decode servers


def pool_latencies(
    pools: Pools, load: Load, servers: tuple[int, int], router: str = FIRST
) -> tuple[Array, Array]:
    """TTFT and TPOT of each request that is short enough, in seconds; NaN for the TPOT of a single token.

    `servers` contains the numbers of prefill and decode servers, to which a `blind` router (which ignores
    loads) sends prompts and caches. InputError for a request that does not fit on a server.
    """
    load = pools.decode.short(pools.prefill.short(load))
    (read, rest), goes_on = pools.halves(load), load.generate > 1
    routers = pools.routers(router, servers, (read, rest))
    sender = np.array([routers[0].choose(request, ()) for request in range(len(load))])
    first_s = _first_tokens(pools, read, sender)
    arrivals, place = _sent(pools, load, routers, sender, first_s)
    end_s = np.full(len(load), np.nan)
    room = pools.decode.capacity(rest.only(goes_on).longest)
    check_load(rest.only(goes_on), room, pools.decode.policy)
    for number in range(servers[1]):
        some = np.flatnonzero(place == number)
        some = some[np.argsort(arrivals[some], kind="stable")]
        if some.size:
            course = RequestTimeline(arrivals[some].tolist())
            prices = pools.decode.prices()
            own = replace(rest.only(some), seed=rest.seed + number * LATER)
            server = decode_server_of(prices, pools.decode.policy, room, own, course)
            for request, time_s in enumerate(course.arrival_s):
                server.advance(time_s)
                server.come(request, time_s)
            server.advance()
            end_s[some] = course.end_s
    return first_s - load.arrival_s, (end_s - first_s) / np.maximum(load.generate - 1, 1)


def _first_tokens(pools: Pools, read: Load, sender: Array) -> Array:
    """The time of each request's first token, from its prefill server."""
    room, first_s = pools.prefill.capacity(read.longest), np.empty(len(read))
    check_load(read, room, pools.prefill.policy)
    for number in np.unique(sender):
        some = np.flatnonzero(sender == number)
        server = serve(pools.prefill.prices(), pools.prefill.policy, room, read.only(some))
        first_s[some] = server.course.end_s
    return first_s


def _sent(
    pools: Pools, load: Load, routers: tuple[Router, Router], sender: Array, first_s: Array
) -> tuple[Array, Array]:
    """For each request, the time at which its cache reaches a decode server, and the server; -1 for requests
    with a single token.

    Caches are routed and sent in the order of first tokens; each occupies the links of its sender and
    receiver.
    """
    sends, receives = ([0.0] * router.replicas for router in routers)
    arrivals, place = np.full(len(load), np.nan), np.full(len(load), -1)
    order = np.argsort(first_s, kind="stable")
    seconds, senders = pools.seconds(load.prompt).tolist(), sender.tolist()
    for request in order[load.generate[order] > 1].tolist():
        one, two = senders[request], routers[1].choose(request, ())
        end = max(float(first_s[request]), sends[one], receives[two]) + seconds[request]
        arrivals[request] = sends[one] = receives[two] = end
        place[request] = two
    return arrivals, place
