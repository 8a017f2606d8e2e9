"""The result of a simulation: latencies of requests, and what the server did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llmir.backends.request.workload import Workload
from llmir.base.dataclass import dataclass
from llmir.base.formats import Paged, Result
from llmir.base.values import Figures, figure

from .capacity import Capacity
from .course import FOREVER
from .limits import FEW, GROWTH, growth, saturated, within
from .load import Array, Load
from .log import LOG, gaps
from .policy import Policy
from .server import Server

if TYPE_CHECKING:
    from .profile import Profile
    from .spending import Spending

COURSE = ("arrival_s", "start_s", "first_s", "end_s", "preemptions", "made", "joined_s", "resumed_s")
QUANTILES = (50, 90, 99)


class Spread(NamedTuple):
    """The mean and percentiles of some seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


FULL = 0.9  # of the blocks: with less in use more room would change little


@dataclass(frozen=True, eq=False)
class Simulation(Figures, Result, Paged):
    """The requests of a `load`, served by an engine with the program, device and limits of a `profile`.

    Arrays by request, times in seconds: `arrival_s`, `start_s` when it is first read, `first_s` when it has
    its first token, `end_s`; `preemptions`; `made`, the tokens that it got; and `cached`, the tokens of its
    prompt that were in the cache when it was admitted. Of a request that was given up, a time that never was
    is infinite. In no order of requests: `joined_s`, when prompts were read that have more tokens to decode,
    and `resumed_s`, seconds between two tokens around a preemption.

    `log` has the columns `LOG`; `most_blocks` is the most that were in use at once. `refused` requests were
    longer than `max_model_len` and are in no array. The first `warm_up` requests do not count in latencies
    and goodput, which is of requests within `max_ttft_s` and `max_tpot_s`.
    """

    profile: Profile
    capacity: Capacity
    load: Load
    arrival_s: Array
    start_s: Array
    first_s: Array
    end_s: Array
    preemptions: Array
    made: Array
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
    def of(cls, profile: Profile, server: Server, load: Load, **counted: Any) -> Simulation:
        """The result when a server has served a load; `counted` is what `counts` gives."""
        columns = {name: np.array(getattr(server.course, name)) for name in COURSE}
        arrays: dict[str, Any] = {**columns, "cached": np.array(server.cached), "log": server.events}
        return cls(profile, server.capacity, load, most_blocks=server.most_held, **arrays, **counted)

    @property
    def job(self) -> Workload:
        """The program, its device and limits."""
        return self.profile.of(self.load.longest)

    @property
    def policy(self) -> Policy:
        """How the engine fills its steps."""
        return self.profile.policy

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name."""
        return dict(zip(LOG, self.log.T, strict=True))

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.end_s.max() - self.arrival_s.min()) if len(self.load) else 0.0

    @figure
    def places(self) -> Mapping[str, Array]:
        """Where each request was served, by column; empty for one server."""
        return {}

    @figure
    def given_up(self) -> Array:
        """Of each request, whether it was given up before it had all its tokens."""
        return np.asarray(self.made < self.load.generate)

    @property
    def cancelled(self) -> int:
        """How many requests were cancelled by their clients, before all tokens that they asked for."""
        return int((self.load.reserved > self.load.written).sum())

    @figure
    def ttft_s(self) -> Array:
        """From arrival to first token; NaN where there is none."""
        return between(self.arrival_s, self.first_s)

    @figure
    def queue_s(self) -> Array:
        """From arrival until the prompt is first read; NaN where it never was."""
        return between(self.arrival_s, self.start_s)

    @figure
    def prefill_s(self) -> Array:
        """From when the prompt is first read to the first token."""
        return between(self.start_s, self.first_s)

    @figure
    def e2e_s(self) -> Array:
        """From arrival to last token; NaN of what was given up."""
        return np.where(self.given_up, np.nan, self.end_s - self.arrival_s)

    @figure
    def tpot_s(self) -> Array:
        """The mean time of a token after the first; NaN of one token, and of what was given up."""
        later = np.where(self.given_up, 0, self.load.generate - 1)
        none = np.full(len(later), np.nan)
        return np.asarray(np.divide(self.end_s - self.first_s, later, out=none, where=later > 0))

    @figure
    def latencies(self) -> Mapping[str, Spread | None]:
        """The spread of each figure over requests, and of `itl` over tokens; None where there is no value."""
        names = ("ttft", "queue", "prefill", "tpot", "e2e")
        found = {name: spread(getattr(self, f"{name}_s")[self.warm_up :]) for name in names}
        last = found.pop("e2e")
        return {**found, "itl": spread(*self._gaps), "e2e": last}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """Times between tokens, and how many of each, from the first arrival on that counts."""
        log = self.log
        if self.warm_up:
            log = log[log[:, LOG.index("start_s")] >= self.arrival_s[self.warm_up]]
        return gaps(log, self.joined_s, self.resumed_s)

    @figure
    def within(self) -> Array:
        """Of each request, whether it is within the limits."""
        return ~self.given_up & within(self.ttft_s, self.tpot_s, self.max_ttft_s, self.max_tpot_s)

    @property
    def goodput(self) -> float | None:
        """Requests within the limits, a second; None without limits."""
        if not self._limited:
            return None
        begin, end = self.arrival_s[self.warm_up :].min(), self.end_s.max()
        return float(self.within[self.warm_up :].sum() / (end - begin)) if end > begin else float("inf")

    @property
    def goodput_share(self) -> float | None:
        """The share of requests that are within the limits; None without limits."""
        return float(self.within[self.warm_up :].mean()) if self._limited else None

    @property
    def _limited(self) -> bool:
        return self.max_ttft_s is not None or self.max_tpot_s is not None

    @figure
    def rate(self) -> float | None:
        """Requests a second that came, with all turns of sessions; None of users, and of all at once."""
        span = float(self.arrival_s.max() - self.arrival_s.min())
        return None if self.load.users or not span else (len(self.load) - 1) / span

    @property
    def overloaded(self) -> bool | None:
        """Whether more comes than can be answered, or waits grow.

        None of users, who wait for answers, and of fewer than `FEW` requests.
        """
        if self.load.users or len(self.load) < FEW:
            return None
        return (self.load.rate or 0.0) > self.largest_rate or growth(self.arrival_s, self._waits) > GROWTH

    @property
    def _waits(self) -> Array:
        """Seconds from arrival until each is first read, or given up."""
        return np.minimum(self.start_s, self.end_s) - self.arrival_s

    @figure
    def largest_rate(self) -> float:
        """Requests a second that the server answers at most; at lower rates it is stable."""
        return saturated(self.profile.prices(), self.policy, self.capacity, self.load)

    @property
    def requests_per_s(self) -> float:
        """Requests answered in a second."""
        return self._rate(int((~self.given_up).sum()))

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that all requests together get in a second."""
        return self._rate(int(self.made.sum()))

    def _rate(self, count: int) -> float:
        return count / self.duration_s if self.duration_s else float("inf")

    @property
    def prefix_hits(self) -> float:
        """The share of the tokens of all prompts that was cached when they were admitted."""
        return float(self.cached.sum() / max(self.load.prompt.sum(), 1))

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return int(self.events["steps"].sum())

    @property
    def busy(self) -> float:
        """The share of the time in which the server ran a step."""
        return float(self.events["time_s"].sum()) / self.duration_s if self.duration_s else 1.0

    @property
    def decodes(self) -> float:
        """Sequences in a step with decodes, on average."""
        count = self.events["steps"] * (self.events["decodes"] > 0)
        return float(count @ self.events["decodes"] / max(count.sum(), 1))

    @property
    def spending(self) -> Spending:
        """What the devices cost and draw, during steps and over all the time."""
        from .spending import spending

        return spending(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know."""
        many = f"{self.refused:,} requests have" if self.refused > 1 else "1 request has"
        long = (f"{many} more tokens than the model may have; refused, and not in any figure",)
        drafts = self.profile.drafts
        verified = (drafts.note(self.job.program),) if drafts else ()
        # Not of a report's one batch, which would leave ranks idle.
        given = *self.job.program.notes, *self.job.prefill.plan.notes
        return (*given, *verified, *(long if self.refused else ()), *self._windowed)

    @property
    def _windowed(self) -> tuple[str, ...]:
        """That windows may leave more room than is counted, where that was all in use."""
        room, pool = self.capacity, self.job.pool
        if pool is None or room.state or self.most_blocks < FULL * room.blocks:
            return ()
        counted, most = room.blocks // -(-self.load.longest // room.block), pool.max_requests
        if most <= counted / FULL:
            return ()
        rooms = f"room for {counted:,} of the longest requests at once, windows leave room for {most:,}"
        return (f"caches are counted as if windows kept all tokens, as engines' logs do: {rooms}",)

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
            "cancelled": self.cancelled,
            "given_up": int(self.given_up.sum()),
            "timeout_s": self.load.timeout_s,
            "users": self.load.users,
            "rate": self.rate,
            "sessions": self.load.talks,
            "sessions_per_s": self.load.sessions_per_s,
            "largest_rate": self.largest_rate,
            "overloaded": self.overloaded,
            "max_ttft_s": self.max_ttft_s,
            "max_tpot_s": self.max_tpot_s,
            "goodput": self.goodput,
            "goodput_share": self.goodput_share,
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
            **self.spending._asdict(),
            **({"speculation": self.profile.drafts.said()} if self.profile.drafts else {}),
        }

    def __repr__(self) -> str:
        where = f"{self.job.program.name} on {self.job.device.name}"
        return f"<Simulation {where}: {len(self.load):,} requests, {self.policy.name}>"


def between(first: Array, then: Array) -> Array:
    """Seconds from `first` to `then`, by request; NaN where `then` never was."""
    return np.asarray(np.subtract(then, first, out=np.full(len(then), np.nan), where=then < FOREVER))


def spread(seconds: Array, weights: Array | None = None) -> Spread | None:
    """The spread of seconds, each counted as often as its weight says; NaN does not count. None of none."""
    if weights is None:
        known = seconds[~np.isnan(seconds)]
        each = map(float, np.percentile(known, QUANTILES)) if known.size else ()
        return Spread(float(known.mean()), *each) if known.size else None
    if not (some := weights > 0).any():
        return None
    seconds, weights = seconds[some], weights[some]
    order = np.argsort(seconds)
    until = np.cumsum(weights[order])
    places = np.searchsorted(until, np.array(QUANTILES) / 100 * until[-1])
    mean = float(seconds @ weights / until[-1])
    return Spread(mean, *map(float, seconds[order][np.minimum(places, len(order) - 1)]))
