"""Simulated runs of a plan: percentiles of latencies, and the share of requests within limits.

`SeedRun` is one run and `Trial` the runs of one plan; `Replica` simulates a structure and estimates its
steps once for all runs. `pool_latencies` simulates prefill and decode servers one by one if the router does
not look at loads: a prefill server depends on no other server and a decode server only on when caches
arrive, so the result equals that of all servers together (`simulate.engine.Pools`) and takes a fraction of
the time.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from llmir.backends.simulate.cluster import run_replicas, serve
from llmir.backends.simulate.engine import Pools, Profile, check_load, step_times
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.replications import STUDENT
from llmir.backends.simulate.result import (
    LatencySpread,
    ReplicaSimulation,
    Simulation,
    latency_spread,
    saturation_rate,
    within_limits,
)
from llmir.backends.simulate.router import FIRST, ROUTERS, Router
from llmir.backends.simulate.server import RequestTimeline, Server
from llmir.backends.simulate.server_kinds import LATER, decode_server_of, server_of
from llmir.base.values import Array

from .structures import Structure
from .traffic import LatencyLimit, Traffic

# Replicas

UNIT = 8  # servers of a kind that are simulated together, at most
NONE = LatencySpread(*[float("nan")] * len(LatencySpread._fields))


class SeedRun(NamedTuple):
    """A run by one seed: the spreads of TTFT and TPOT, and the share of requests within the limits.

    `limited` has the statistics that the limits of TTFT and TPOT are of, such as a p99. `most` is how many
    requests ran at once at most; infinite where blocks may have been short, so that it is not known.
    """

    ttft_s: LatencySpread
    tpot_s: LatencySpread
    limited: tuple[float, float]
    within: float
    most: float = inf

    @classmethod
    def of(cls, ttft_s: Array, tpot_s: Array, traffic: Traffic, most: float = inf) -> SeedRun:
        """A run, from the seconds of the requests that count."""
        good = within_limits(ttft_s, tpot_s, *(each and each.seconds for each in traffic.limits))
        limited = tuple(map(_limited, traffic.limits, (ttft_s, tpot_s)))
        figures = latency_spread(ttft_s) or NONE, latency_spread(tpot_s) or NONE
        return cls(*figures, (limited[0], limited[1]), float(good.mean()), most)


class Trial(NamedTuple):
    """Runs of one plan, by different seeds."""

    runs: tuple[SeedRun, ...]

    @property
    def ttft_s(self) -> LatencySpread:
        """The spread of TTFT, each figure averaged over runs."""
        return LatencySpread(*np.mean([run.ttft_s for run in self.runs], axis=0).tolist())

    @property
    def tpot_s(self) -> LatencySpread:
        """The spread of TPOT, each figure averaged over runs."""
        return LatencySpread(*np.mean([run.tpot_s for run in self.runs], axis=0).tolist())

    @property
    def within(self) -> float:
        """The share of requests within all limits, averaged over runs."""
        return float(np.mean([run.within for run in self.runs]))

    def limited(self, which: int) -> float:
        """The statistic that the limit of TTFT (0) or TPOT (1) is of, averaged over runs."""
        return float(np.mean([run.limited[which] for run in self.runs]))

    def expected(self, which: int) -> float:
        """What that statistic of a further run stays below, 97.5 times in 100, by Student's t."""
        values = [run.limited[which] for run in self.runs]
        count = len(values)
        if count == 1:
            return values[0]
        more = STUDENT[min(count - 2, len(STUDENT) - 1)] * float(np.std(values, ddof=1))
        return float(np.mean(values)) + more * sqrt(1 + 1 / count)

    def over(self, traffic: Traffic) -> float:
        """How much of a limit is used, of the one that is used most: above 1 it is missed."""
        parts = [self.expected(i) / each.seconds for i, each in enumerate(traffic.limits) if each]
        return max(parts, default=0.0)


class Replica:
    """A replica of a structure, simulated; its steps are priced once for all runs."""

    def __init__(self, structure: Structure, traffic: Traffic) -> None:
        self.structure, self.traffic = structure, traffic
        self._prices = step_times(structure.program, structure.model, structure.drafts)
        self._profiles: dict[tuple[int, int], Profile] = {}

    def run(self, chunk: int, batch: int, replicas: int, seed: int) -> SeedRun:
        """A run of one of so many replicas; of several, where the router looks at loads.

        InputError where a request has no room.
        """
        traffic, profile = self.traffic, self.profile(chunk, batch)
        if not ROUTERS[traffic.router].blind and replicas > 1:
            return self._together(profile, replicas, seed)
        load = profile.admitted(traffic.alone(replicas, seed))
        server = serve(self._prices, profile.policy, profile.capacity(load.longest), load)
        found = Simulation.of(profile, server, load)
        ttft_s, tpot_s = found.ttft_s[traffic.warm_up :], found.tpot_s[traffic.warm_up :]
        return SeedRun.of(ttft_s, tpot_s, traffic, _at_once(server))

    def _together(self, profile: Profile, replicas: int, seed: int) -> SeedRun:
        """A run of several replicas, up to `UNIT` of them, with their share of the traffic."""
        traffic, many = self.traffic, min(replicas, UNIT)
        load = profile.admitted(traffic.load(replicas / many, seed, many))
        room = profile.capacity(load.longest)
        one = server_of(self._prices, profile.policy, room, load, RequestTimeline(load.arrival_s.tolist()))
        dealt = run_replicas(one, ROUTERS[traffic.router](many, load, room), load)
        found, first = ReplicaSimulation.of_run(profile, dealt, load), many * traffic.warm_up
        return SeedRun.of(found.ttft_s[first:], found.tpot_s[first:], traffic)

    def largest_rate(self, chunk: int, batch: int) -> float:
        """Requests a second that it answers at most: no larger rate is stable."""
        profile = self.profile(chunk, batch)
        load = profile.admitted(self.traffic.load(1, self.traffic.seed))
        return saturation_rate(self._prices, profile.policy, profile.capacity(load.longest), load)

    def profile(self, chunk: int, batch: int) -> Profile:
        """The replica with a setting, as a server that runs loads."""
        if (chunk, batch) not in self._profiles:
            job = self.structure.job(1, 1, None, chunk, batch)
            self._profiles[chunk, batch] = Profile(job, None, self.structure.drafts, self._prices)
        return self._profiles[chunk, batch]


def _at_once(server: Server) -> float:
    """How many requests ran at once at most; infinite where blocks may have been short."""
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
    """TTFT and TPOT of each request that is short enough, in seconds; NaN of the TPOT of a single token.

    `servers` are the numbers of prefill and decode servers, to which a `blind` router sends prompts and
    caches. InputError for a request that a server has no room for.
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
    """When each request has its first token, from the prefill server that it was sent to."""
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
    """When the cache of each request is at its decode server, and which that is: -1 of a single token.

    Caches are routed and sent in the order of first tokens; each occupies the link of its sender and that of
    its receiver.
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
