"""An engine that serves a program on a device, and runs load after load."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from llmir.backends.request.workload import Workload
from llmir.base.arguments import integer, number, refuse
from llmir.base.errors import InputError
from llmir.base.values import Immutable

from .capacity import Capacity
from .course import Course
from .drafts import Drafts
from .engine import capacity, check, model_of, policy, prices
from .load import Load
from .policy import Policy
from .prices import Prices
from .result import Simulation
from .router import ROUTERS, dealing
from .running_replicas import run_replicas
from .serve import serve
from .servers import server_of
from .simulated_replicas import SimulatedReplicas

REPLICAS = 1000  # at most


class Profile(Immutable):
    """An engine that serves a program on a device, with the limits of a `job`; `run` simulates a load.

    Tables of prices are kept from run to run. `priced` are prices of another profile with the same steps.
    """

    job: Workload
    policy: Policy
    drafts: Drafts | None

    def __init__(
        self,
        job: Workload,
        chunked: bool | None = None,
        drafts: Drafts | None = None,
        priced: Prices | None = None,
    ) -> None:
        vars(self).update(job=job, policy=policy(job, chunked), drafts=drafts)
        if priced:
            vars(self).update(_prices=priced)

    def __repr__(self) -> str:
        return f"<Profile {self.job.program.name} on {self.job.device.name}: {self.policy.name}>"

    def of(self, longest: int) -> Workload:
        """The job for requests of up to so many tokens: some engines have room in a step for the longest."""
        return replace(self.job, max_model_len=max(longest, 2))

    def capacity(self, longest: int) -> Capacity:
        """The capacity for requests of up to so many tokens; InputError without room."""
        return capacity(self.of(longest), self.drafts)

    def prices(self) -> Prices:
        """Prices of steps."""
        return self._prices

    @cached_property
    def _prices(self) -> Prices:
        return prices(self.job.program, model_of(self.job), self.drafts)

    def decoding(self) -> Profile:
        """The profile of a decode server: prompts of preempted requests are read beside decodes."""
        other = object.__new__(Profile)
        vars(other).update(vars(self) | {"policy": replace(self.policy, mixes=True), "_prices": self._prices})
        return other

    def admitted(self, load: Load) -> Load:
        """The requests that are short enough, with drafts; InputError where one of them could never run."""
        load = self.drafting(self.short(load))
        check(load, self.capacity(load.longest), self.policy)
        return load

    def drafting(self, load: Load) -> Load:
        """The same requests with the drafts of this profile."""
        if self.drafts is None:
            return load
        return replace(load, drafts=(self.drafts.tokens, self.drafts.acceptance))

    def short(self, load: Load) -> Load:
        """The requests that are no longer than `max_model_len`, by default the positions of the model.

        InputError where all are longer.
        """
        if not isinstance(load, Load):
            refuse("load", load, "requests as llmir.traffic gives them")
        positions = self.job.program.facts.get("positions")
        limit = self.job.max_model_len or (positions if isinstance(positions, int) else None)
        if limit is not None and not (kept := load.reserved + 1 <= limit).all():
            if not kept.any():
                raise InputError(f"max_model_len: {limit:,} tokens, all {len(load):,} requests have more")
            load = load.only(kept)
        return load

    def run(
        self,
        load: Load,
        *,
        warm_up: int = 0,
        max_ttft_s: float | None = None,
        max_tpot_s: float | None = None,
        replicas: int = 1,
        router: str | None = None,
    ) -> Simulation:
        """A load served, without the requests that are too long: they are refused and counted.

        The first `warm_up` requests do not count in latencies, nor in goodput, which is of requests within
        `max_ttft_s` and `max_tpot_s`. A `router` sends each request to one of so many `replicas`:
        round-robin (the default), random, least-loaded or prefix-aware.
        """
        copies = integer("replicas", replicas, 1, REPLICAS)
        deals = ROUTERS[dealing(router, copies)]
        asked, load = load, self.admitted(load)
        counted = counts(asked, load, warm_up, max_ttft_s, max_tpot_s)
        room = self.capacity(load.longest)
        prices = self._prices
        if copies == 1:
            return Simulation.of(self, serve(prices, self.policy, room, load), load, **counted)
        one = server_of(prices, self.policy, room, load, Course(load.arrival_s.tolist()))
        run = run_replicas(one, deals(copies, load, room), load)
        return SimulatedReplicas.of_run(self, run, load, **counted)


def counts(
    asked: Load, load: Load, warm_up: object, max_ttft_s: object, max_tpot_s: object
) -> dict[str, Any]:
    """The fields of a result that say what counts; `asked` is the load with the requests that are refused.

    InputError for a warm-up of all requests, and for what is no limit.
    """
    if (first := integer("warm_up", warm_up)) >= len(load):
        raise InputError(f"warm_up: {first:,} requests, there are {len(load):,}")
    limits = {"max_ttft_s": max_ttft_s, "max_tpot_s": max_tpot_s}
    known = {name: _limit(name, value) for name, value in limits.items()}
    return {"refused": len(asked) - len(load), "warm_up": first, **known}


def _limit(name: str, value: object) -> float | None:
    return None if value is None else number(name, value, above=True)
