"""Plans that a search found: candidates, the simulated hour of the first plan, and why the others lost.

`Plans` is the result of `llmir.plan`: `ranked` candidates meet all limits, `missed` do not. `HourlyCost`
simulates one hour of traffic on the first plan. It does not affect the choice, but shows queues that the
shorter runs of the search cannot show. `binding_limit` states the limit that decides about a plan, how far
the plan is from it, and the op that takes the most time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import hypot
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from llmir.backends.simulate.engine import Pools, Profile
from llmir.backends.simulate.result import FEW, GROWTH, LatencySpread, Simulation, latency_spread, wait_growth
from llmir.backends.simulate.router import ROUTERS
from llmir.backends.step.evaluate import OVERHEAD
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import PageExport, Result
from llmir.base.values import Array, Figures
from llmir.hw.device import Device
from llmir.hw.prices import OperatingCost, operating_cost

from .front import front
from .structures import PlanPoints, Rejection, Structure, structure_capacity
from .traffic import MAX_REQUESTS_OF_SERVERS, MOST, SECONDS, SEEDS, Traffic
from .trial import ERROR, LOOKS, MEETS, MISSES, NONE, UNIT, Room, Trial, as_it_is, rate_verdict, worst

if TYPE_CHECKING:
    from llmir.backends.simulate.drafts import Drafts


# Candidates and plans

Rank = tuple[
    bool, float, float
    # sort key of plans: whether the price is missing; USD per hour, or the number of devices; the number of
    # devices
]


def plan_rank(device: Device, devices: float) -> Rank:
    """The sort key of plans: first those with a price, by cost; then those without one, by devices.

    So a device without a price does not change the order of the others.
    """
    price = device.price_per_hour_usd
    return price is None, devices * (1.0 if price is None else price), devices


def _types(structure: Structure) -> dict[str, str | None]:
    """The dtypes of a structure for JSON; null means the checkpoint's dtype."""
    return {role: name or None for role, name in structure.types._asdict().items()}


@dataclass(frozen=True, eq=False)
class Candidate(Figures):
    """A plan: `replicas` of a structure, with steps of up to `chunk` tokens and `batch` requests at once.

    `ttft_s` and `tpot_s` are means from the closed form at the requested rate; `trial` are simulated runs.
    `largest_rate` is the largest stable rate of all replicas, if it was computed.
    """

    structure: Structure
    chunk: int
    batch: int
    replicas: int
    ttft_s: float
    tpot_s: float
    traffic: Traffic
    trial: Trial
    largest_rate: float | None = None

    @property
    def reads(self) -> Structure:
        """The structure that runs prefill."""
        return self.structure

    @property
    def devices(self) -> int:
        """The number of devices of all replicas."""
        return self.replicas * self.structure.split.devices

    @property
    def spent(self) -> OperatingCost:
        """The cost and power at the requested rate."""
        traffic = self.traffic
        return operating_cost(self.structure.device, self.devices, traffic.rate * traffic.answer)

    @property
    def rank(self) -> Rank:
        """Its position among plans that meet all limits."""
        return plan_rank(self.structure.device, self.devices)

    @property
    def cost_per_hour_usd(self) -> float | None:
        """The cost per hour, if the device has a price."""
        return self.spent.usd_per_hour

    @property
    def cost_usd_per_mtok(self) -> float | None:
        """The cost per million output tokens."""
        return self.spent.usd_per_mtok

    @property
    def energy_j_per_token(self) -> float | None:
        """The largest energy per output token: all boards at their power limit all the time."""
        return self.spent.joules_per_token

    @property
    def tokens_per_s_device(self) -> float:
        """Output tokens per second and device."""
        return self.traffic.rate * self.traffic.answer / self.devices

    @property
    def tokens_per_s_user(self) -> float:
        """Output tokens per second of one request after its first token, by the mean simulated TPOT."""
        return 1 / self.trial.tpot_s.mean

    @property
    def in_flight(self) -> float:
        """Mean number of concurrent requests on a replica, by Little's law."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return self.traffic.rate / self.replicas * (self.trial.ttft_s.mean + later)

    @cached_property
    def changed_settings(self) -> Mapping[str, tuple[Any, Any]]:
        """Settings of the engine that the plan changes, by name: the default and the plan's value.

        A limit on the batch counts if you set it, if it exceeds the default, or if caches allow more
        requests.
        """
        s, traffic = self.structure, self.traffic
        default = s._replace(chunked=None, utilization=None, sequences=None, reserve=0)
        job = default.job(*traffic.tokens, None, None)
        assert job.pool is not None
        found: dict[str, tuple[Any, Any]] = {}
        if s.chunked is not None and s.chunked != job.reads_chunks:
            found["chunked_prefill"] = job.reads_chunks, s.chunked
        if self.chunk != job.pool.tokens:
            found["max_batched_tokens"] = job.pool.tokens, self.chunk
        each, sequences = -(-self.batch // s.split.dp), job.pool.sequences
        if s.sequences is not None:
            each, changes = s.sequences, s.sequences != sequences
        else:
            changes = each > sequences or self.batch < s.capacity(traffic, self.chunk).requests
        if changes:
            found["max_num_seqs"] = sequences, each
        if s.utilization is not None and s.utilization != job.pool.share:
            found["memory_utilization"] = job.pool.share, s.utilization
        return found

    @property
    def laid(self) -> str:
        """The layout of its servers on devices, such as `tp 2 × 16`."""
        return f"{self.structure.split} × {self.replicas:,}"

    @property
    def decoding(self) -> int:
        """The mean number of decoding requests on a replica, at least one."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return max(1, round(min(self.traffic.rate / self.replicas * later, self.batch)))

    @property
    def limited(self) -> dict[str, float]:
        """The limited statistics in seconds, over the requests of all runs."""
        limits = {"ttft_s": self.traffic.ttft, "tpot_s": self.traffic.tpot}
        return {name: self.trial.limited(i) for i, (name, of) in enumerate(limits.items()) if of}

    @cached_property
    def errors(self) -> tuple[float, float]:
        """Mean relative errors of the estimated times: a prefill step for TTFT, a decode step for TPOT."""
        prefill, decode = prefill_step(self).error, decode_step(self).error
        return prefill or 0.0, decode or 0.0

    def within_error(self, which: int) -> bool:
        """Whether the limit of TTFT (0) or TPOT (1) would be missed if times were longer by their error."""
        limit = self.trial.limits[which]
        longer = self.trial.limited(which) * (1 + self.errors[which])
        return limit is not None and longer > limit.seconds

    @property
    def draft_share(self) -> float | None:
        """The share of a step that generates drafts, halfway through the output; None without drafts."""
        s, traffic = self.structure, self.traffic
        half = traffic.read + traffic.answer // 2
        return s.drafts and s.drafts.share_of(s.program, s.model, self.decoding, half)

    @property
    def meets(self) -> bool:
        """Whether all limits are met with certainty, and no queue grows without bound."""
        return self.verdict == MEETS

    @property
    def verdict(self) -> str:
        """Whether all limits are met and queues are stable; undecided if the runs do not decide."""
        answers = rate_verdict(self.largest_rate, self.traffic)
        return worst(answers, self.trial.verdict)

    @property
    def overloaded(self) -> bool:
        """Whether the rate exceeds the stable rate less the headroom, if this rate was computed."""
        return rate_verdict(self.largest_rate, self.traffic) == MISSES

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible values."""
        split = self.structure.split
        return {
            "hardware": self.structure.device.name,
            **_types(self.structure),
            **split._asdict(),
            "replicas": self.replicas,
            "devices": self.devices,
            "batch": self.batch,
            "chunk": self.chunk,
            "meets": self.meets,
            "verdict": self.verdict,
            "changed_settings": {
                name: {"default": default, "plan": value}
                for name, (default, value) in self.changed_settings.items()
            },
            "errors": dict(zip(("ttft", "tpot"), self.errors, strict=True)),
            "cost_per_hour_usd": self.cost_per_hour_usd,
            "cost_usd_per_mtok": self.cost_usd_per_mtok,
            "energy_j_per_token": self.energy_j_per_token,
            "tokens_per_s_device": self.tokens_per_s_device,
            "tokens_per_s_user": self.tokens_per_s_user,
            "draft_share": self.draft_share,
            "closed_form": {"ttft_mean_s": self.ttft_s, "tpot_mean_s": self.tpot_s},
            "simulated": {
                "seeds": len(self.trial.runs),
                "ttft_s": self.trial.ttft_s._asdict(),
                "tpot_s": self.trial.tpot_s._asdict(),
                "half_widths": {
                    name: half._asdict()
                    for name, half in zip(("ttft_s", "tpot_s"), self.trial.half_widths, strict=True)
                },
                "limited": self.limited,
                "within": self.trial.within,
            },
        }


@dataclass(frozen=True, eq=False)
class PoolCandidate(Candidate):
    """A plan with pools: `replicas` of a unit of prefill and decode `servers`, joined by a link.

    `prefill` is the structure that runs prefill with steps of `chunk` tokens, and `structure` decodes `batch`
    requests at once; `pools` simulates both.
    """

    prefill: Structure | None = None
    servers: tuple[int, int] = (1, 1)
    link: str = ""
    pools: Pools | None = None

    @property
    def reads(self) -> Structure:
        return self.prefill or self.structure

    @property
    def laid(self) -> str:
        """The layout of its servers on devices, prefill servers first, such as `9 tp 2 → 6 tp 4`."""
        sides = zip(self.servers, (self.reads, self.structure), strict=True)
        return " → ".join(f"{self.replicas * n:,} {of.split}" for n, of in sides)

    @property
    def devices(self) -> int:
        each = self.reads.split.devices, self.structure.split.devices
        return self.replicas * sum(n * of for n, of in zip(self.servers, each, strict=True))

    @property
    def in_flight(self) -> float:
        """Mean number of concurrent requests on a decode server."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return self.traffic.rate / (self.replicas * self.servers[1]) * later

    @property
    def decoding(self) -> int:
        return max(1, round(min(self.in_flight, self.batch)))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible values; the split is that of decode servers."""
        each = zip(("prefill", "decode"), self.servers, (self.reads, self.structure), strict=True)
        pools = {name: {"servers": n, **of.split._asdict()} for name, n, of in each}
        return {**super().to_dict(), "pools": {**pools, "link": self.link}}


class SmallestChange(NamedTuple):
    """A change of `what` from `now` to `needed` with which a plan of `replicas` replicas wins.

    `what` is `ttft` or `tpot` (a limit, in seconds), `times` (a factor on all steps), `op` (a factor on the
    time of each `op` with this opcode), or `price` (dollars per hour of a device).
    """

    what: str
    now: float
    needed: float
    replicas: int
    op: str = ""

    def part(self, share: float) -> SmallestChange:
        """A share of the change."""
        return self._replace(needed=self.now + share * (self.needed - self.now))


class LosingReason(NamedTuple):
    """The constraint because of which a plan loses, its statistic if it is a limit, and the smallest change
    that would help.

    The change is None if no change of a single value makes the plan win.
    """

    constraint: str
    statistic: str
    change: SmallestChange | None

    def to_dict(self) -> dict[str, Any]:
        """Return the reason as JSON-compatible values."""
        return {**self._asdict(), "change": self.change and self.change._asdict()}


class PlanSearch(Protocol):
    """A search that can evaluate plans again with other traffic, other times or more space in memory
    (`search.Search`).
    """

    traffic: Traffic

    def losing_reason(self, plans: Plans, candidate: Candidate) -> LosingReason | None:
        """The reason why a plan is not the first; None for the first plan."""

    def relaxed(self, traffic: Traffic, room: Room = as_it_is) -> PlanSearch:
        """The search with other traffic and more space on each replica; all runs of the budget are used."""

    def longer(self, error: float) -> PlanSearch:
        """The search for times that are longer by a share."""

    def faster(self, number: int, opcode: str, share: float) -> PlanSearch:
        """The search with faster ops of one structure; other structures are excluded."""

    def number_of(self, candidate: Candidate) -> int:
        """The number of a plan's structure."""

    def usage(self, number: int, replicas: float) -> float:
        """The used share of the limits with `replicas` replicas, from one run with the first seed."""

    def meets(self, number: int, replicas: float) -> bool:
        """Whether `replicas` replicas meet all limits and the rate with certainty."""

    def simulated(self, number: int, replicas: int) -> Candidate:
        """The plan with `replicas` replicas of a structure, with its verdict."""


@dataclass(frozen=True, eq=False)
class Plans(Figures, Result, PageExport):
    """The result of a search: `ranked` plans meet all limits, the cheapest first; `missed` plans do not.

    - `structures`: All structures that fit; `points` contains their plans with one replica, from the closed
      form.
    - `refused`: The reasons why other structures are impossible, by name, sorted by how close each is to
      being possible.
    - `most_devices`: The largest number of devices, if set. `devices`: The requested devices.
    - `largest_rate`: The largest stable rate of the first plan in requests per second; `server` simulates it.
    - `sturdy`: The cheapest plan if all times are longer by their error, in case the first plan then misses a
      limit. Its latencies include the error.
    - `search`: The search, with which changes of plans can be evaluated.

    In `ranked`, plans with a price come before plans without one.
    """

    traffic: Traffic
    most_devices: int | None
    devices: tuple[str, ...]
    structures: tuple[Structure, ...]
    points: PlanPoints
    ranked: tuple[Candidate, ...]
    missed: tuple[Candidate, ...]
    refused: Mapping[str, Rejection]
    seeds: tuple[int, ...]
    largest_rate: float | None
    notes: tuple[str, ...] = ()
    server: Profile | Pools | None = None
    sturdy: Candidate | None = None
    search: PlanSearch | None = None

    @property
    def best(self) -> Candidate | None:
        """The cheapest plan; None if no plan meets the limits."""
        return self.ranked[0] if self.ranked else None

    @cached_property
    def close(self) -> tuple[Candidate, ...]:
        """Plans that meet the limits and whose extra cost is within the errors of both estimates.

        The rate of a server is the inverse of its times, so costs have the relative errors of times.
        """
        best = self.best
        if best is None:
            return ()

        (unpriced, cost, _), error = best.rank, max(best.errors)
        return tuple(
            each
            for each in self.ranked[1:]
            if each.rank[0] == unpriced and each.rank[1] <= cost * (1 + hypot(max(each.errors), error))
        )

    @property
    def priced(self) -> bool:
        """Whether plans are ranked by cost: the first plan has a price; or, if there is no plan, any device
        has one.
        """
        of = [self.best.structure] if self.best else self.structures
        return any(each.device.price_per_hour_usd is not None for each in of)

    def first_like(self, candidate: Candidate) -> Candidate | None:
        """The first plan that meets all limits among those with a price, or among those without one."""
        return next((each for each in self.ranked if each.rank[0] == candidate.rank[0]), None)

    @property
    def by_device(self) -> Mapping[str, Candidate | None]:
        """The first plan of each device that meets all limits; otherwise the plan that is closest; None if a
        device has no plan.
        """
        found: dict[str, Candidate | None] = dict.fromkeys(self.devices)
        for each in reversed(self.shown):
            found[each.structure.device.name] = each
        return found

    @property
    def drafts(self) -> Drafts | None:
        """The drafts of each step; None without drafts."""
        return self.structures[0].drafts if self.structures else None

    @property
    def shown(self) -> tuple[Candidate, ...]:
        """All simulated plans: first those that meet the limits, from the cheapest on, and then the others,
        from the closest on.
        """
        return (*self.ranked, *self.missed)

    @property
    def goals(self) -> Mapping[str, Candidate]:
        """The best plan by each goal among those that meet all limits, by JSON name."""
        if not self.ranked:
            return {}
        least = {"ttft": lambda c: c.trial.ttft_s.p99, "tpot": lambda c: c.trial.tpot_s.p99}
        goals = {name: min(self.ranked, key=figure) for name, figure in least.items()}
        most = max(self.ranked, key=lambda c: c.tokens_per_s_device)
        return {"cost" if self.priced else "devices": self.ranked[0], **goals, "tokens_per_s_device": most}

    def why(self, candidate: Candidate) -> BindingLimit:
        """The limit that decides about a plan: the one that is exceeded most, otherwise the additional cost;
        and the op that takes the most time.
        """

        return binding_limit(self, candidate)

    @cached_property
    def rejections(self) -> tuple[LosingReason | None, ...]:
        """For each plan that is shown, the constraint because of which it loses; None for the first plan.

        On first access, new simulations relax one constraint at a time.
        """
        search = self.search
        return tuple(search.losing_reason(self, each) if search else None for each in self.shown)

    def rejection(self, candidate: Candidate) -> LosingReason | None:
        """The constraint because of which a plan that is shown loses."""
        places = (i for i, each in enumerate(self.shown) if each is candidate)
        return self.rejections[next(places)]

    @cached_property
    def hour(self) -> HourlyCost | None:
        """One hour of traffic on the first plan, with a seed that the search did not use; None without a
        plan.

        It is simulated on first access. InputError if a request does not fit in memory.
        """

        if self.best is None or self.server is None:
            return None
        return hourly_cost(self.best, self.server, self.seeds[-1] + 1)

    @property
    def tokens_per_s_device(self) -> Array:
        """Output tokens per second and device at each point, with all its requests in flight."""
        return np.asarray(self.points.rate * self.traffic.answer / self.points.devices)

    @property
    def tokens_per_s_user(self) -> Array:
        """Output tokens per second of one request, at each point."""
        return np.asarray(1 / self.points.tpot_s)

    @cached_property
    def front(self) -> Array:
        """The indices of points on the Pareto front of their device, ties included."""
        names = np.array([structure.device.name for structure in self.structures], dtype=object)
        of = names[self.points.structure]
        found = np.zeros(len(of), dtype=bool)
        for name in dict.fromkeys(of.tolist()):
            rows = of == name
            found[rows] = front(self.tokens_per_s_user[rows], self.tokens_per_s_device[rows])
        return np.flatnonzero(found)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        limits = {"ttft": self.traffic.ttft, "tpot": self.traffic.tpot}
        users, devices = self.tokens_per_s_user, self.tokens_per_s_device
        return {
            "rate": self.traffic.rate,
            "prompt": self.traffic.prompt,
            "generate": self.traffic.generate,
            "prefix_hits": self.traffic.prefix_hits,
            "limits": {name: limit and limit._asdict() for name, limit in limits.items()},
            "most_devices": self.most_devices,
            "decides": "cost" if self.priced else "devices",
            "speculation": self.drafts and self.drafts.said(),
            "router": self.traffic.router,
            "seeds": list(self.seeds),
            "margin": self.traffic.margin,
            "headroom": self.traffic.headroom,
            "certainty": {"error": ERROR, "looks": [SEEDS, *(runs for runs, _ in LOOKS[1])]},
            "largest_rate": self.largest_rate,
            "best": self.best and self.best.to_dict(),
            "hour": self._hour(),
            "sturdy": self.sturdy and self.sturdy.to_dict(),
            "too_close_to_call": [self.shown.index(each) for each in self.close],
            "goals": {name: self.shown.index(each) for name, each in self.goals.items()},
            "plans": [
                {
                    **each.to_dict(),
                    "why": self.why(each)._asdict(),
                    "rejection": rejection and rejection.to_dict(),
                }
                for each, rejection in zip(self.shown, self.rejections, strict=True)
            ],
            "devices": {name: each and self.shown.index(each) for name, each in self.by_device.items()},
            "front": [
                {
                    "hardware": (of := self.structures[int(self.points.structure[i])]).device.name,
                    **_types(of),
                    **of.split._asdict(),
                    "chunk": int(self.points.chunk[i]),
                    "batch": int(self.points.batch[i]),
                    "tokens_per_s_user": float(users[i]),
                    "tokens_per_s_device": float(devices[i]),
                }
                for i in self.front
            ],
            "refused": {name: refusal.why for name, refusal in self.refused.items()},
        }

    def _hour(self) -> dict[str, Any] | None:
        """The simulated hour as JSON, or the reason why it could not be simulated."""
        try:
            return self.hour.to_dict() if self.hour else None
        except InputError as error:
            return {"error": str(error)}

    def __repr__(self) -> str:
        return f"<Plans {len(self.ranked)} that meet the limits, {len(self.missed)} that do not>"


# One hour of traffic

LIMITED = ("ttft", "tpot")


@dataclass(frozen=True, eq=False)
class HourlyCost(Figures):
    """One hour of a plan's traffic with a separate `seed`: servers start idle, and all requests count.

    `simulation` covers one replica with its share of the requests, or `replicas` replicas if the router
    considers loads; for pools, one unit of prefill and decode servers. `drawn` is the number of its requests.
    Only a part of the hour is simulated if it has more requests than `MOST`, or than
    `MAX_REQUESTS_OF_SERVERS` for several servers.
    """

    candidate: Candidate
    seed: int
    replicas: int
    drawn: int
    simulation: Simulation

    @property
    def requests(self) -> int:
        """The number of requests that arrive in the hour at all replicas."""
        return max(1, round(self.candidate.traffic.rate * SECONDS))

    @property
    def output_tokens(self) -> int:
        """Output tokens of all replicas."""
        return round(int(self.simulation.made.sum()) * self.requests / self.drawn)

    @property
    def part(self) -> float:
        """The simulated share of the hour; the simulation starts with the beginning of the hour."""
        each = self.drawn / self.replicas
        comes = _comes(self.candidate)
        return 1.0 if each >= round(comes) else each / comes

    @property
    def times(self) -> Mapping[str, Array]:
        """Seconds of each request: time to first token, and time per later token; NaN if there is no such
        token.
        """
        return {"ttft": self.simulation.ttft_s, "tpot": self.simulation.tpot_s}

    @property
    def spreads(self) -> dict[str, LatencySpread]:
        """The distributions of both times over requests."""
        return {name: latency_spread(seconds) or NONE for name, seconds in self.times.items()}

    @property
    def worst(self) -> dict[str, float]:
        """The largest value of both times."""
        return {name: float(np.nanmax(seconds)) for name, seconds in self.times.items()}

    @property
    def within(self) -> float:
        """The share of requests within all limits."""
        share = self.simulation.goodput_share
        return 1.0 if share is None else share

    @property
    def most_waiting(self) -> int:
        """The largest number of waiting requests in the simulation."""
        comes, starts = self.simulation.arrival_s, np.sort(self.simulation.start_s)
        before = np.searchsorted(starts, comes, side="right")
        return int((np.arange(1, len(comes) + 1) - before).max())

    @property
    def longest_queue_s(self) -> float:
        """The longest wait until prefill."""
        return float(self.simulation.queue_s.max())

    @property
    def preemptions(self) -> int:
        """The number of preemptions in the simulation."""
        return int(self.simulation.preemptions.sum())

    @property
    def missed(self) -> dict[str, float]:
        """The value in seconds of the statistic of each missed limit."""
        found = {name: (of, of.figure(self.times[name])) for name, of in self._limits.items() if of}
        return {name: seconds for name, (of, seconds) in found.items() if seconds > of.seconds}

    @property
    def _limits(self) -> dict[str, Any]:
        return dict(zip(LIMITED, self.candidate.traffic.limits, strict=True))

    @property
    def grows(self) -> bool:
        """Whether latencies grow over the hour, because requests arrive faster than they complete."""
        run = self.simulation
        return len(run.load) >= FEW and wait_growth(run.arrival_s, run.e2e_s) > GROWTH

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values: requests and tokens of all replicas, the rest simulated."""
        run, spreads = self.simulation, self.spreads
        times = {f"{n}_s": {**of._asdict(), "worst": self.worst[n]} for n, of in spreads.items()}
        return {
            "requests": self.requests,
            "output_tokens": self.output_tokens,
            "seed": self.seed,
            "part": self.part,
            "simulated": {"replicas": self.replicas, "requests": len(run.load)},
            **times,
            "within": self.within,
            "most_waiting": self.most_waiting,
            "longest_queue_s": self.longest_queue_s,
            "most_blocks": run.most_blocks,
            "blocks": run.capacity.blocks,
            "preemptions": self.preemptions,
            "missed": self.missed,
            "grows": self.grows,
        }


def hourly_cost(candidate: Candidate, server: Profile | Pools, seed: int) -> HourlyCost:
    """Simulate a plan for one hour of traffic with a seed; `server` simulates a replica, or pools.

    InputError if a request does not fit in memory.
    """
    traffic, count = candidate.traffic, candidate.replicas
    looks = not ROUTERS[traffic.router].blind and not isinstance(candidate, PoolCandidate)
    many = min(count, UNIT) if looks else 1
    said: dict[str, Any] = {"replicas": many}
    if isinstance(candidate, PoolCandidate):
        said = dict(zip(("prefill_replicas", "decode_replicas"), candidate.servers, strict=True))
    most = MOST if sum(said.values()) == 1 else MAX_REQUESTS_OF_SERVERS // many
    each = max(1, min(round(_comes(candidate)), most))
    drawn = replace(traffic, requests=each, margin=0.0)
    load = drawn.load(count / many, seed, many) if looks else drawn.alone(count, seed)
    if max(said.values()) > 1:
        said["router"] = traffic.router
    limits = zip(LIMITED, traffic.limits, strict=True)
    said |= {f"max_{name}_s": limit and limit.seconds for name, limit in limits}
    return HourlyCost(candidate, seed, many, len(load), server.run(load, **said))


def _comes(candidate: Candidate) -> float:
    """The requests that arrive at one replica in an hour."""
    return candidate.traffic.rate * SECONDS / candidate.replicas


# Binding limits


class BindingLimit(NamedTuple):
    """The limit that decides about a plan: `ttft`, `tpot`, `rate`, `cost` or `devices`, and how far the plan
    is from it.

    `by` is in seconds above the limit (negative below it), in requests per second above the stable rate, or
    the relative additional cost or devices compared with the first plan. `op` takes the share `share` of the
    `step` that is compared with the limit; `than` is its share in the first plan. `waiting` means that
    requests wait for others to complete before they are admitted.
    """

    constraint: str
    by: float
    step: str
    op: str
    share: float
    than: float | None = None
    waiting: bool = False


class NearestStructure(NamedTuple):
    """The structure that is nearest to the limits by closed form, if none meets them.

    With `batch` concurrent requests, its `constraint` (`ttft` or `tpot`) takes `seconds` instead of `limit`,
    and `op` takes the `share` of the `step`.
    """

    structure: Structure
    batch: int
    constraint: str
    seconds: float
    limit: float
    step: str
    op: str
    share: float


def op_shares(report: Report) -> dict[str, float]:
    """The share of a step of each op, in all layers together, by the last part of its name."""
    found: dict[str, float] = {}
    for cost in report.ops:
        name = OVERHEAD if cost.kind == OVERHEAD else cost.name.rpartition(".")[2]
        found[name] = found.get(name, 0.0) + float(cost.share)
    return found


def opcode_shares(report: Report) -> dict[str, float]:
    """The share of a step by opcode."""
    opcodes = {row.name: row.node.op.opcode for row in report.plan.rows}
    found: dict[str, float] = {}
    for cost in report.ops:
        if opcode := opcodes.get(cost.name):
            found[opcode] = found.get(opcode, 0.0) + float(cost.share)
    return found


def decode_step(candidate: Candidate) -> Report:
    """The step with the mean number of decoding requests, halfway through their outputs."""
    return _decode(candidate.structure, candidate.traffic, candidate.decoding)


def _decode(s: Structure, traffic: Traffic, batch: int) -> Report:
    context = traffic.read + traffic.answer // 2
    program, new = (s.drafts.verify, s.drafts.rows) if s.drafts else (s.program, 1)
    return Report(program, s.device, batch=batch, new=new, context=context, model=s.model)


def prefill_step(candidate: Candidate) -> Report:
    """The step that prefills a prompt, or its last chunk."""
    return _prefill(candidate.reads, candidate.traffic, candidate.chunk)


def _prefill(s: Structure, traffic: Traffic, chunk: int) -> Report:
    prompt = traffic.read
    new = min(prompt - traffic.cached, chunk)
    return Report(s.program, s.device, batch=1, new=new, context=prompt - new, model=s.model)


def binding_limit(plans: Plans, candidate: Candidate) -> BindingLimit:
    """The limit that decides: the one that is exceeded most; otherwise the additional cost; otherwise the
    nearest limit.
    """
    traffic, best = candidate.traffic, plans.first_like(candidate)
    limits = {"ttft": (0, traffic.ttft), "tpot": (1, traffic.tpot)}
    used = {name: (candidate.trial.upper(i), of.seconds) for name, (i, of) in limits.items() if of}
    certain = {name: used[name] for name in used if candidate.trial.verdict_on(limits[name][0]) == MISSES}
    used = certain or used
    nearest = max(used, key=lambda name: used[name][0] / used[name][1]) if used else ""
    missed = bool(nearest) and used[nearest][0] > used[nearest][1]
    if not candidate.meets and not missed:
        op, share = max(op_shares(decode_step(candidate)).items(), key=lambda item: item[1])
        return BindingLimit("rate", traffic.rate - (candidate.largest_rate or 0.0), "decode", op, share)
    if best is not None and candidate is not best and not missed:
        return _dearer(candidate, best)
    step, report = (
        ("prefill", prefill_step(candidate)) if nearest == "ttft" else ("decode", decode_step(candidate))
    )
    op, share = max(op_shares(report).items(), key=lambda item: item[1])
    by = used[nearest][0] - used[nearest][1] if nearest else 0.0
    return BindingLimit(
        nearest or _deciding(candidate), by, step, op, share, None, missed and _full(candidate)
    )


def nearest_structure(plans: Plans, device: str | None = None) -> NearestStructure | None:
    """The limit that decides if no plan meets the limits in the closed form; None if one does.

    If a `device` is given, only its plans count.

    >>> import llmir
    >>> found = llmir.plan("llama3.1-8b", "h100-sxm", llmir.Traffic(rate=4), max_tpot="1ms", gpus=1)
    >>> near = nearest_structure(found)
    >>> str(near.structure.split), near.batch, near.constraint, near.op
    ('tp 1', 1, 'tpot', 'gate_up_proj')
    """
    points, traffic = plans.points, plans.traffic
    if device is not None:
        own = [n for n, each in enumerate(plans.structures) if each.device.name == device]
        points = points.only(np.isin(points.structure, own))
    limits = {"ttft": (traffic.ttft, points.ttft_s), "tpot": (traffic.tpot, points.tpot_s)}
    over = {name: times / limit.seconds for name, (limit, times) in limits.items() if limit}
    if not over or not points.rate.size:
        return None
    worst = np.maximum.reduce(list(over.values()))
    nearest = int(worst.argmin())
    if worst[nearest] <= 1:
        return None
    name = max(over, key=lambda name: float(over[name][nearest]))
    s, batch = plans.structures[int(points.structure[nearest])], int(points.batch[nearest])
    if name == "ttft":
        step, report = "prefill", _prefill(s, traffic, int(points.chunk[nearest]))
    else:
        step, report = "decode", _decode(s, traffic, batch)
    op, share = max(op_shares(report).items(), key=lambda item: item[1])
    limit, times = limits[name]
    assert limit is not None
    return NearestStructure(s, batch, name, float(times[nearest]), limit.seconds, step, op, share)


def device_refusal(plans: Plans, device: str) -> Rejection | NearestStructure | None:
    """Why a device has no plan: too few devices; otherwise the limit that its nearest plan misses; otherwise
    memory.
    """
    others = [name for name in plans.devices if name.startswith(f"{device} ")]  # "X 2" is no "X"
    own = [
        refusal
        for name, refusal in plans.refused.items()
        if name.startswith(f"{device} ") and not name.startswith(tuple(f"{other} " for other in others))
    ]
    devices = next((each for each in own if each.fits), None)
    return devices or nearest_structure(plans, device) or next(iter(own), None)


def _deciding(candidate: Candidate) -> str:
    return "devices" if candidate.cost_per_hour_usd is None else "cost"


def _dearer(candidate: Candidate, best: Candidate) -> BindingLimit:
    """The additional cost, and the op whose device time per token increases most."""
    by = candidate.rank[1] / best.rank[1] - 1
    own, others = _of_a_token(candidate), _of_a_token(best)
    op = max(own, key=lambda name: own[name] - others.get(name, 0.0))
    if own[op] <= others.get(
        op, 0.0
    ):  # its devices have a lower utilization: they cost more, or there are more than necessary
        op = max(own, key=lambda name: own[name])
    share, than = (op_shares(decode_step(each)).get(op, 0.0) for each in (candidate, best))
    return BindingLimit(_deciding(candidate), by, "decode", op, share, than)


def _of_a_token(candidate: Candidate) -> dict[str, float]:
    """Seconds that all devices of a replica spend on a token, by op."""
    step = decode_step(candidate)
    each = float(step.time_s) * candidate.structure.split.devices / candidate.decoding
    return {name: share * each for name, share in op_shares(step).items() if name != OVERHEAD}


def _full(candidate: Candidate) -> bool:
    """Whether more requests are in flight than memory allows."""
    s, traffic = candidate.structure, candidate.traffic
    job = s.job(traffic.read, traffic.answer, traffic.longest, candidate.chunk, candidate.batch)
    room = structure_capacity(job, s.drafts, s.chunked)
    return candidate.in_flight >= min(room.requests, room.in_flight)
