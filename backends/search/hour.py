"""An hour of some traffic on a plan, simulated: it decides nothing, and says what the runs that do cannot.

Those are short, so that none of them sees the longest queue of an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmir.backends.simulate.limits import FEW, GROWTH, growth
from llmir.backends.simulate.pools import Pools
from llmir.backends.simulate.profile import Profile
from llmir.backends.simulate.result import Simulation, Spread, spread
from llmir.backends.simulate.router import ROUTERS
from llmir.base.dataclass import dataclass
from llmir.base.values import Array, Figures

from .plan import Candidate, PooledCandidate
from .traffic import MOST, SECONDS, TOGETHER
from .trial import NONE, UNIT

LIMITED = ("ttft", "tpot")


@dataclass(frozen=True, eq=False)
class Hour(Figures):
    """An hour of a plan's traffic, by a `seed` of its own: servers are idle at its begin, and all counts.

    `simulation` is of one replica with its share of the requests, or of so many `replicas` as a router looks
    at together; of pools of one unit of prefill and decode servers. For it are `drawn` requests, which is a
    part of the hour where that has more than `MOST`, or than `TOGETHER` for several servers.
    """

    candidate: Candidate
    seed: int
    replicas: int
    drawn: int
    simulation: Simulation

    @property
    def requests(self) -> int:
        """That come in the hour, to all replicas."""
        return max(1, round(self.candidate.traffic.rate * SECONDS))

    @property
    def output_tokens(self) -> int:
        """That all replicas make of them."""
        return round(int(self.simulation.made.sum()) * self.requests / self.drawn)

    @property
    def part(self) -> float:
        """The part of the hour that is simulated, from its begin."""
        each = self.drawn / self.replicas
        comes = _comes(self.candidate)
        return 1.0 if each >= round(comes) else each / comes

    @property
    def times(self) -> Mapping[str, Array]:
        """Seconds of each request: to its first token, and of a later one, NaN where there is none."""
        return {"ttft": self.simulation.ttft_s, "tpot": self.simulation.tpot_s}

    @property
    def spreads(self) -> dict[str, Spread]:
        """The spread of either over requests."""
        return {name: spread(seconds) or NONE for name, seconds in self.times.items()}

    @property
    def worst(self) -> dict[str, float]:
        """The longest of either."""
        return {name: float(np.nanmax(seconds)) for name, seconds in self.times.items()}

    @property
    def within(self) -> float:
        """The share of requests within all limits."""
        share = self.simulation.goodput_share
        return 1.0 if share is None else share

    @property
    def most_waiting(self) -> int:
        """Requests that had come to what is simulated and were not yet read, at once."""
        comes, starts = self.simulation.arrival_s, np.sort(self.simulation.start_s)
        before = np.searchsorted(starts, comes, side="right")
        return int((np.arange(1, len(comes) + 1) - before).max())

    @property
    def longest_queue_s(self) -> float:
        """The longest that one waited until it was read."""
        return float(self.simulation.queue_s.max())

    @property
    def preemptions(self) -> int:
        """How often a request of what is simulated was preempted."""
        return int(self.simulation.preemptions.sum())

    @property
    def missed(self) -> dict[str, float]:
        """Of each limit that is missed what it is of, in seconds."""
        found = {name: (of, of.figure(self.times[name])) for name, of in self._limits.items() if of}
        return {name: seconds for name, (of, seconds) in found.items() if seconds > of.seconds}

    @property
    def _limits(self) -> dict[str, Any]:
        return dict(zip(LIMITED, self.candidate.traffic.limits, strict=True))

    @property
    def grows(self) -> bool:
        """Whether requests stay longer and longer: more comes than is answered."""
        run = self.simulation
        return len(run.load) >= FEW and growth(run.arrival_s, run.e2e_s) > GROWTH

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: requests and tokens of all replicas, all else of those simulated."""
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


def hour(candidate: Candidate, server: Profile | Pools, seed: int) -> Hour:
    """A plan with what comes to it in an hour, drawn by a seed; `server` simulates a replica of it, or pools.

    InputError where a request is drawn that has no room.
    """
    traffic, count = candidate.traffic, candidate.replicas
    looks = not ROUTERS[traffic.router].blind and not isinstance(candidate, PooledCandidate)
    many = min(count, UNIT) if looks else 1
    said: dict[str, Any] = {"replicas": many}
    if isinstance(candidate, PooledCandidate):
        said = dict(zip(("prefill_replicas", "decode_replicas"), candidate.servers, strict=True))
    most = MOST if sum(said.values()) == 1 else TOGETHER // many
    each = max(1, min(round(_comes(candidate)), most))
    drawn = replace(traffic, requests=each)
    load = drawn.load(count / many, seed, many) if looks else drawn.alone(count, seed)
    if max(said.values()) > 1:
        said["router"] = traffic.router
    limits = zip(LIMITED, traffic.limits, strict=True)
    said |= {f"max_{name}_s": limit and limit.seconds for name, limit in limits}
    return Hour(candidate, seed, many, len(load), server.run(load, **said))


def _comes(candidate: Candidate) -> float:
    """Requests that come to one replica in an hour."""
    return candidate.traffic.rate * SECONDS / candidate.replicas
