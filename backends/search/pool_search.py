"""The search for plans of prefill servers and decode servers, with caches sent over a link.

A prefill server answers 1 / r requests a second, where r is the time of prompts that are read at once, over
their number. A decode server answers B / ((G − 1) · d(B)). Of each there are as many as answer the rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, gcd, inf
from typing import NamedTuple

import numpy as np

from llmir.backends.simulate.limits import saturated
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.pools import Pools
from llmir.backends.simulate.profile import Profile
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.simulate.routers import Random
from llmir.base.errors import LlmirError

from .plan import PooledCandidate
from .refusal import Refusal, too_many
from .search import SLACK, Search
from .tandem import tandem
from .traffic import Traffic
from .trial import UNIT, Run, Trial

LONE = 100  # more servers than the closed form's by this factor do not help: each request is alone
PAIRS = 3  # pairs of structures that are simulated at most, until one meets the limits
NAMED = 20  # pairs with too many devices whose refusal is kept


class Side(NamedTuple):
    """A structure that only prefills, or only decodes.

    Its setting, `seconds` of a prompt or of a token, and the requests a second that it answers.
    """

    number: int
    chunk: int
    batch: int
    seconds: float
    rate: float


class PoolPlan(NamedTuple):
    """A prefill and a decode structure, and how many servers of each answer the rate by closed form."""

    prefill: Side
    decode: Side
    servers: tuple[int, int]


class PoolSearch:
    """The search for pools among the structures of a `search`."""

    def __init__(self, search: Search, link: str) -> None:
        self.search, self.link = search, link
        self.refused: dict[str, Refusal] = {}
        self._profiles: dict[Side, Profile] = {}

    def candidates(self) -> list[PooledCandidate]:
        """Simulated plans: the cheapest by closed form, and where it misses a limit the next ones."""
        found: list[PooledCandidate] = []
        for plan in sorted(self._pool_plans(), key=self._cost):
            if len(found) == PAIRS:
                break
            most = self.search.most
            if most is not None and (devices := self._devices(plan, plan.servers)) > most:
                if len(self.refused) < NAMED:
                    self.refused.setdefault(self._name(plan), too_many(devices, most, devices / most))
                continue
            try:
                found.append(self._fewest_that_meet(plan, self.pools(plan)))
            except LlmirError as error:  # the engine refuses it, or a request has no room
                self.refused[self._name(plan)] = Refusal(str(error))
                continue
            if found[-1].meets:
                break
        return found

    def pools(self, plan: PoolPlan) -> Pools:
        """The pools of a plan; InputError for what the engine refuses."""
        return Pools(self._profile(plan.prefill), self._profile(plan.decode), self.link)

    def _profile(self, side: Side) -> Profile:
        if side not in self._profiles:
            structure = self.search.structures[side.number]
            self._profiles[side] = Profile(
                structure.job(1, 1, None, side.chunk, side.batch), None, structure.drafts
            )
        return self._profiles[side]

    def _pool_plans(self) -> Iterator[PoolPlan]:
        """All pairs of one device and type of weights, with the servers that the rate needs."""
        rate = self.search.traffic.rate
        prefills, decodes = self.sides()
        for one in prefills:
            least = ceil(rate / (one.rate * self._largest_busy_share(one)))
            for two in decodes:
                first, second = (self.search.structures[side.number] for side in (one, two))
                if first.model is second.model and first.weights == second.weights:
                    yield PoolPlan(one, two, (least, ceil(rate / two.rate)))

    def sides(self) -> tuple[list[Side], list[Side]]:
        """Each structure's fastest setting to prefill, and to decode, within the limits by closed form."""
        search, traffic = self.search, self.search.traffic
        prefills: list[Side] = []
        decodes: list[Side] = []
        for number, times in enumerate(search.times):
            drafts = search.structures[number].drafts
            yielded = drafts.yielded if drafts else 1.0
            reads = [
                Side(number, chunk, max(times.decodes), latency, times.alone[chunk])
                for chunk, (latency, *_) in times.reads.items()
                if not traffic.ttft or latency <= traffic.ttft.seconds
            ]
            steps = [
                Side(number, max(times.reads), batch, token_s, batch / ((traffic.answer - 1) * token_s))
                for batch, token_s in ((n, step_s / yielded) for n, step_s in times.decodes.items())
                if not traffic.tpot or token_s <= traffic.tpot.seconds
            ]
            prefills += [max(reads, key=lambda side: side.rate)] if reads else []
            decodes += [max(steps, key=lambda side: side.rate)] if steps else []
        return prefills, decodes

    def _largest_busy_share(self, side: Side) -> float:
        """The share of the time that a prefill server may be busy, for TTFT to be within its limit.

        Of an M/D/1 queue waits have an exponential tail: P(W > t) ≈ ρ · exp(−2 (1 − ρ) t / (ρ s)), exact as ρ
        goes to 1 (Kingman 1962).
        """
        limit = self.search.traffic.ttft
        if limit is None:
            return 1.0
        late = 0.5 if limit.of == "mean" else 1 - float(limit.of[1:]) / 100
        shares = np.linspace(0.01, 0.99, 99)
        wait = shares / (2 * (1 - shares) * side.rate) * np.maximum(np.log(shares / max(late, 1e-9)), 0)
        fits = shares[side.seconds + wait <= limit.seconds]
        return float(fits.max(initial=0.01))

    def _devices(self, plan: PoolPlan, servers: Sequence[int]) -> int:
        each = (self.search.structures[side.number].split.devices for side in plan[:2])
        return sum(n * of for n, of in zip(servers, each, strict=True))

    def _cost(self, plan: PoolPlan) -> tuple[float, int]:
        devices = self._devices(plan, plan.servers)
        price = self.search.structures[plan.decode.number].device.price_per_hour_usd or 0.0
        return (devices * price if self.search.priced else devices, devices)

    def _name(self, plan: PoolPlan) -> str:
        one, two = (self.search.structures[side.number] for side in plan[:2])
        return f"pools {one.name} → {two.split}"

    def _fewest_that_meet(self, plan: PoolPlan, pools: Pools) -> PooledCandidate:
        """The plan with the fewest servers that meet the limits, from those of the closed form on."""
        tried: dict[tuple[int, int], PooledCandidate] = {}

        def at(servers: tuple[int, int]) -> PooledCandidate:
            if servers not in tried:
                tried[servers] = self._simulated(plan, pools, servers)
            return tried[servers]

        def more(candidate: PooledCandidate) -> tuple[int, int] | None:
            """A twentieth more servers of the side that is late; None where they do not help, or too many."""
            trial, limits = candidate.trial, self.search.traffic.limits
            used = [trial.expected(i) / of.seconds if of else 0.0 for i, of in enumerate(limits)]
            late = [share > 1 for share in used] if max(used) > 1 else [True, True]  # it is not stable
            first, second = (n + here * max(1, n // 20) for n, here in zip(now, late, strict=True))
            most = self.search.most
            alone = max(first, second) > LONE * max(plan.servers)
            short = most is not None and self._devices(plan, (first, second)) > most
            return None if alone or short else (first, second)

        now, least = plan.servers, self._stable_servers(plan, pools)
        while not (found := at(now)).meets:
            if (next_ := more(found)) is None:
                return found
            now = next_
        for side in (0, 1):
            while now[side] > least[side]:
                fewer = now[0] - (side == 0), now[1] - (side == 1)
                if not at(fewer).meets:
                    break
                now = fewer
        while True:
            found = replace(at(now), largest_rate=self._total_rate(plan, pools, now))
            if found.carried or found.trial.over(found.traffic) > 1 or (next_ := more(found)) is None:
                return found
            now = next_

    def _stable_servers(self, plan: PoolPlan, pools: Pools) -> tuple[int, int]:
        """The fewest servers of each kind that may answer the rate, if they are faster by `SLACK`.

        A transfer takes a link at both ends, so that links are as many as servers of the rarer kind.
        """
        rate = self.search.traffic.rate
        links = ceil(rate * float(pools.seconds(np.array([self.search.traffic.read]))[0]))
        sides = (plan.prefill, plan.decode)
        first, second = (max(links, ceil(rate / (side.rate * SLACK)), 1) for side in sides)
        return first, second

    def _simulated(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> PooledCandidate:
        """The plan with so many prefill and decode servers, by all seeds if the first meets the limits.

        Of many servers a unit is simulated, with its share of the requests: up to `UNIT` servers of a kind,
        and fewer with a random router, where the number of units divides both.
        """
        search = self.search
        units = gcd(*servers) if search.traffic.router == Random.name else 1
        units = max(units, ceil(max(servers) / UNIT))
        unit = -(-servers[0] // units), -(-servers[1] // units)
        traffic = self._traffic(plan, units)
        runs: list[Run] = []
        for seed in traffic.seeds:
            search.tell(self._name(plan))
            runs.append(self._run(pools, unit, traffic.alone(units, seed)))
            if Trial((runs[-1],)).over(traffic) > 1:
                break
        one, two = (search.structures[side.number] for side in plan[:2])
        means = self._closed_form(plan, pools, servers)
        return PooledCandidate(
            *(
                two,
                plan.prefill.chunk,
                plan.decode.batch,
                units,
                *means,
                search.traffic,
                Trial(tuple(runs)),
            ),
            prefill=one,
            servers=unit,
            link=self.link,
            pools=pools,
        )

    def _traffic(self, plan: PoolPlan, units: int) -> Traffic:
        """The traffic with so many requests that a tenth of them takes as long to come as one is there."""
        traffic = self.search.traffic
        lasts = plan.prefill.seconds + (traffic.answer - 1) * plan.decode.seconds
        return replace(traffic, requests=max(traffic.requests, ceil(10 * lasts * traffic.rate / units)))

    def _run(self, pools: Pools, unit: tuple[int, int], load: Load) -> Run:
        router = self.search.traffic.router
        if ROUTERS[router].blind:
            ttft_s, tpot_s = tandem(pools, load, unit, router)
        else:
            many = {"prefill_replicas": unit[0], "decode_replicas": unit[1]}
            found = pools.run(load, **many, router=router if max(unit) > 1 else None)
            ttft_s, tpot_s = found.ttft_s, found.tpot_s
        first = len(ttft_s) // 10
        return Run.of(ttft_s[first:], tpot_s[first:], self.search.traffic)

    def _total_rate(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> float:
        """Requests a second at most: the least of prefill servers, links and decode servers."""
        traffic = self.search.traffic
        load = pools.decode.short(traffic.load(1, traffic.seed))
        rates = []
        for profile, of in zip((pools.prefill, pools.decode), pools.halves(load), strict=True):
            room = profile.capacity(of.longest)
            rates.append(saturated(profile.prices(), profile.policy, room, of))
        sent = float(pools.seconds(load.prompt).mean())
        return min(servers[0] * rates[0], servers[1] * rates[1], min(servers) / sent if sent else inf)

    def _closed_form(self, plan: PoolPlan, pools: Pools, servers: tuple[int, int]) -> tuple[float, float]:
        """Mean TTFT with the wait of an M/D/1 queue, and TPOT with a part of the cache's transfer."""
        traffic, one = self.search.traffic, plan.prefill
        busy = traffic.rate / (servers[0] * one.rate)
        wait = busy / (2 * (1 - busy) * one.rate) if busy < 1 else inf
        sent = float(pools.seconds(np.array([traffic.read]))[0])
        return one.seconds + wait, plan.decode.seconds + sent / (traffic.answer - 1)
