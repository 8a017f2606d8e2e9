"""What a simulation finds out: latencies of requests, and what the server did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llmir.backends.analysis.workload import Workload
from llmir.dataclass import dataclass
from llmir.frozen import Figures, figure
from llmir.views import Result

from .gaps import gaps
from .limits import GROWTH, growth, saturated, within
from .load import Array, Load
from .policy import Policy
from .prices import Prices
from .server import LOG, Capacity, Server
from .steps import PricedStep

QUANTILES = (50, 90, 99)


class Spread(NamedTuple):
    """The mean of some seconds, and what half, 90% and 99% of them are within."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, eq=False)
class Simulation(Figures, Result):
    """Requests that an engine served: `job` says the program, device and limits, `load` what came.

    Arrays have an entry a request: when it came, was first read, had its first token and ended, how often it
    was preempted, and what was cached of its prompt when it was admitted. `log` has a row for each event, of
    columns `LOG`; `most_blocks` were in use at once. `refused` requests were longer than `max_model_len` and
    are not in them. The first `warm_up` requests do not count in latencies and goodput, which is of those
    within `max_ttft_s` and `max_tpot_s`.
    """

    job: Workload
    policy: Policy
    capacity: Capacity
    load: Load
    arrival_s: Array
    start_s: Array
    first_s: Array
    end_s: Array
    preemptions: Array
    cached: Array
    joined_s: Array
    resumed_s: Array
    log: Array
    most_blocks: int
    refused: int = 0
    warm_up: int = 0
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None

    @classmethod
    def of(cls, job: Workload, server: Server, load: Load, **more: Any) -> Simulation:
        """What a server leaves when all are served."""
        course = server.course
        return cls(
            job=job,
            policy=server.policy,
            capacity=server.capacity,
            load=load,
            arrival_s=np.array(course.arrival_s),
            start_s=np.array(course.start_s),
            first_s=np.array(course.first_s),
            end_s=np.array(course.end_s),
            preemptions=np.array(course.preemptions),
            cached=np.array(server.cached),
            joined_s=np.array(course.joined_s),
            resumed_s=np.array(course.resumed_s),
            most_blocks=server.most_held,
            log=np.array(server.log).reshape(-1, len(LOG)),
            **more,
        )

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name."""
        return dict(zip(LOG, self.log.T, strict=True))

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.end_s.max() - self.arrival_s.min()) if len(self.load) else 0.0

    @figure
    def ttft_s(self) -> Array:
        """From arrival to first token."""
        return np.asarray(self.first_s - self.arrival_s)

    @figure
    def queue_s(self) -> Array:
        """From arrival until the prompt is first read."""
        return np.asarray(self.start_s - self.arrival_s)

    @figure
    def prefill_s(self) -> Array:
        """From then to the first token."""
        return np.asarray(self.first_s - self.start_s)

    @figure
    def e2e_s(self) -> Array:
        """From arrival to last token."""
        return np.asarray(self.end_s - self.arrival_s)

    @figure
    def tpot_s(self) -> Array:
        """Of each request the mean time of a token after the first; NaN where there is none."""
        later = self.load.generate - 1
        none = np.full(len(later), np.nan)
        return np.asarray(np.divide(self.end_s - self.first_s, later, out=none, where=later > 0))

    @figure
    def latencies(self) -> Mapping[str, Spread | None]:
        """The spread of each figure over requests, of `itl` over tokens; None where there are none."""
        names = ("ttft", "queue", "prefill", "tpot", "e2e")
        found = {name: _spread(getattr(self, f"{name}_s")[self.warm_up :]) for name in names}
        last = found.pop("e2e")
        return {**found, "itl": _spread(*self._gaps), "e2e": last}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """Times between tokens, and how many there are: after the last arrival that does not count."""
        begin = self.arrival_s[self.warm_up] if self.warm_up else -np.inf
        events = {name: column[self.events["start_s"] >= begin] for name, column in self.events.items()}
        return gaps(events, self.joined_s, self.resumed_s)

    @figure
    def within(self) -> Array:
        """Of each request, whether it comes within the limits."""
        return within(self.ttft_s, self.tpot_s, self.max_ttft_s, self.max_tpot_s)

    @property
    def goodput(self) -> float | None:
        """The share of requests that come within the limits; None without limits."""
        limited = self.max_ttft_s is not None or self.max_tpot_s is not None
        return float(self.within[self.warm_up :].mean()) if limited else None

    @property
    def overloaded(self) -> bool | None:
        """Whether waits grow, or more comes than is answered; None of users, who wait for answers."""
        if self.load.users:
            return None
        return (self.load.rate or 0.0) > self.largest_rate or growth(self.arrival_s, self.queue_s) > GROWTH

    @figure
    def largest_rate(self) -> float:
        """Requests a second that the server answers at most: it is stable at lower rates."""
        prices = Prices(PricedStep(self.job.program, self.job.prefill.plan.model, self.capacity.tokens))
        return saturated(prices, self.policy, self.capacity, self.load)

    @property
    def requests_per_s(self) -> float:
        """Requests answered in a second."""
        return self._rate(len(self.load))

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that all requests get in a second."""
        return self._rate(int(self.load.generate.sum()))

    def _rate(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else float("inf")

    @property
    def prefix_hits(self) -> float:
        """The share of all prompts' tokens that was in the cache already."""
        return float(self.cached.sum() / self.load.prompt.sum())

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return int(self.events["steps"].sum())

    @property
    def busy(self) -> float:
        """The share of the time in which there was a step."""
        return float(self.events["time_s"].sum()) / self.duration_s if self.duration_s else 1.0

    @property
    def decodes(self) -> float:
        """Sequences that decode in a step that decodes any, on average."""
        count = self.events["steps"] * (self.events["decodes"] > 0)
        return float(count @ self.events["decodes"] / max(count.sum(), 1))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        long = (f"{self.refused:,} requests have more tokens than the model may have, and are refused",)
        return (*self.job.prefill.notes, *(long if self.refused else ()))

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        spreads = {name: found and found._asdict() for name, found in self.latencies.items()}
        return {
            "model": self.job.program.name,
            "hardware": self.job.device.name,
            "policy": self.policy.name,
            "capacity": self.capacity._asdict(),
            "requests": len(self.load),
            "refused": self.refused,
            "users": self.load.users,
            "rate": self.load.rate,
            "largest_rate": self.largest_rate,
            "overloaded": self.overloaded,
            "max_ttft_s": self.max_ttft_s,
            "max_tpot_s": self.max_tpot_s,
            "goodput": self.goodput,
            "warm_up": self.warm_up,
            "duration_s": self.duration_s,
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "latency_s": spreads,
            "steps": self.steps,
            "busy": self.busy,
            "decodes": self.decodes,
            "most_blocks": self.most_blocks,
            "prefix_hits": self.prefix_hits,
            "preemptions": int(self.preemptions.sum()),
        }

    def __repr__(self) -> str:
        where = f"{self.job.program.name} on {self.job.device.name}"
        return f"<Simulation {where}: {len(self.load):,} requests, {self.policy.name}>"


def _spread(seconds: Array, weights: Array | None = None) -> Spread | None:
    """Of seconds, each as often as its weight says; NaN is none."""
    seconds = seconds[~np.isnan(seconds)] if weights is None else seconds
    if not (seconds if weights is None else weights).any():
        return None
    if weights is None:
        return Spread(float(seconds.mean()), *map(float, np.percentile(seconds, QUANTILES)))
    order = np.argsort(seconds, kind="stable")
    until = np.cumsum(weights[order])
    places = np.searchsorted(until, np.array(QUANTILES) / 100 * until[-1])
    mean = float(seconds @ weights / until[-1])
    return Spread(mean, *map(float, seconds[order][np.minimum(places, len(order) - 1)]))
