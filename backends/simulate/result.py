"""Results of a simulation: latencies of requests, steps, rates, and cost in dollars and energy.

Order of the file: limits, overload and the largest stable rate (`saturation_rate`), the result of one
server (`Simulation`), of replicas (`ReplicaSimulation`), of prefill and decode servers (`PoolSimulation`),
and cost and energy of the servers (`ServingCost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from llmir.backends.cost.channel import Channel
from llmir.backends.request.workload import Workload
from llmir.backends.step.facts import program_notes
from llmir.base.dataclass import dataclass
from llmir.base.formats import PageExport, Result
from llmir.base.values import Figures, figure
from llmir.hw.device import Device
from llmir.hw.prices import operating_cost

from .cluster import RunningPools, RunningReplicas, serve
from .drafts import Drafts
from .load import Array, Load
from .server import FOREVER, LOG, Capacity, Policy, Server, token_gaps
from .step_times import StepTimes

# Interface of a profile


class SimulatedServer(Protocol):
    """A server that can simulate loads (`engine.Profile`)."""

    @property
    def policy(self) -> Policy:
        """Its scheduling policy."""

    @property
    def ranks(self) -> int:
        """The number of data-parallel ranks that run as separate servers."""

    @property
    def drafts(self) -> Drafts | None:
        """Its drafts of speculative decoding."""

    def of(self, longest: int) -> Workload:
        """The workload with requests of at most `longest` tokens."""

    def prices(self) -> StepTimes:
        """The times of its steps."""


# Limits and overload

GROWTH = 0.01  # seconds per second; faster growth of waits indicates an overload of at least 1%
FEW = 50  # requests; the waits of fewer do not show growth reliably
ENOUGH = 3000  # requests with which a server is saturated, at least
# Number of requests, relative to the requests that run at once. With 3 times 1,024 requests, the measured
# rate is 5% above the long-run rate; with 10 times, less than 1%.
TURNS = 10


def within_limits(
    ttft_s: Array, tpot_s: Array, most_ttft_s: float | None, most_tpot_s: float | None
) -> Array:
    """Whether each request is within the limits of TTFT and TPOT; TPOT is NaN for a single token."""
    found = np.ones(ttft_s.shape, dtype=bool)
    if most_ttft_s is not None:
        found &= ttft_s <= most_ttft_s
    if most_tpot_s is not None:
        found &= ~(tpot_s > most_tpot_s)
    return found


def wait_growth(arrival_s: Array, queue_s: Array) -> float:
    """The growth of waits in seconds per second: the slope of a line that is fitted to all requests except
    the first fifth.
    """
    part = slice(len(arrival_s) // 5, None)
    comes, waits = arrival_s[part] - arrival_s[part].mean(), queue_s[part] - queue_s[part].mean()
    spread = float(comes @ comes)
    return float(comes @ waits) / spread if spread else 0.0


def saturation_rate(prices: StepTimes, policy: Policy, capacity: Capacity, load: Load) -> float:
    """The requests per second that a server serves while some requests always wait: the largest stable rate.

    This is the saturation rule (Baccelli and Foss 1995). All requests arrive together: at least `ENOUGH` of
    them, and at least `TURNS` times as many as run at once. The requests of the load repeat if there are
    fewer. Completed work is counted from the end of the first fifth of the requests to the start of the last
    request. Each request counts with the part of its service that falls into this time, because equal
    requests end in waves.
    """
    sizes = int(load.prompt.mean()), int((load.prompt + load.generate).mean())
    count = max(ENOUGH, TURNS * capacity.requests(*sizes))
    some = load.only(np.arange(count) % len(load))
    at_once = replace(
        some, arrival_s=np.zeros(count), users=None, timeout_s=None, leave_s=None, sessions=None
    )
    course = serve(prices, policy, capacity, at_once).course
    start_s, end_s = np.asarray(course.start_s), np.asarray(course.end_s)
    first, last = float(np.partition(end_s, count // 5)[count // 5]), float(start_s.max())
    if last <= first:  # all requests run in one step
        return count / float(end_s.max())
    served_s = np.minimum(end_s, last) - np.maximum(start_s, first)
    return float((np.maximum(served_s, 0) / (end_s - start_s)).sum()) / (last - first)


# One server

TIMELINE_COLUMNS = (
    "arrival_s",
    "start_s",
    "first_s",
    "end_s",
    "preemptions",
    "made",
    "joined_s",
    "resumed_s",
)
QUANTILES = (50, 90, 99)


class LatencySpread(NamedTuple):
    """The mean and percentiles of some seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, eq=False)
class Simulation(Figures, Result, PageExport):
    """The requests of a `load`, after an engine with the program, device and limits of a `profile` has served
    them.

    Arrays by request, times in seconds: `arrival_s`, `start_s` (prefill begins), `first_s` (first token),
    `end_s`; `preemptions`; `made`, its output tokens; and `cached`, the prompt tokens in the prefix cache at
    first admission. If a request is given up, the times of events that did not happen are infinite. Not
    ordered by request: `joined_s`, the times at which requests begin to decode, and `resumed_s`, the seconds
    between two tokens around a preemption.

    `log` has the columns `LOG`; `most_blocks` is the largest number of blocks in use. The number of `refused`
    requests, which were longer than `max_model_len` and are in no array. The first `warm_up` requests are
    excluded from latencies and goodput, which counts requests within `max_ttft_s` and `max_tpot_s`.
    """

    profile: SimulatedServer
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
    def of(cls, profile: SimulatedServer, server: Server, load: Load, **counted: Any) -> Simulation:
        """The result of a server after a load; `counted` contains the fields that `counts` returns."""
        columns = {name: np.array(getattr(server.course, name)) for name in TIMELINE_COLUMNS}
        arrays: dict[str, Any] = {**columns, "cached": np.array(server.prefix_tokens), "log": server.events}
        return cls(profile, server.capacity, load, most_blocks=server.most_held, **arrays, **counted)

    @property
    def job(self) -> Workload:
        """The program, its device and limits."""
        return self.profile.of(self.load.longest)

    @property
    def policy(self) -> Policy:
        """The scheduling policy of the engine."""
        return self.profile.policy

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name."""
        return dict(zip(LOG, self.log.T, strict=True))

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last token."""
        return float(self.end_s.max() - self.arrival_s.min()) if len(self.load) else 0.0

    @figure
    def places(self) -> Mapping[str, Array]:
        """The server of each request, by column; empty for one server."""
        return {}

    @figure
    def given_up(self) -> Array:
        """Whether each request was given up before its last token."""
        return np.asarray(self.made < self.load.generate)

    @property
    def cancelled(self) -> int:
        """The number of requests that clients canceled before the requested tokens were complete."""
        return int((self.load.reserved > self.load.written).sum())

    @figure
    def ttft_s(self) -> Array:
        """Seconds from arrival to first token; NaN without a token."""
        return elapsed(self.arrival_s, self.first_s)

    @figure
    def queue_s(self) -> Array:
        """Seconds from arrival to the start of prefill; NaN if it never started."""
        return elapsed(self.arrival_s, self.start_s)

    @figure
    def prefill_s(self) -> Array:
        """Seconds from the start of prefill to the first token."""
        return elapsed(self.start_s, self.first_s)

    @figure
    def e2e_s(self) -> Array:
        """Seconds from arrival to last token; NaN if the request was given up."""
        return np.where(self.given_up, np.nan, self.end_s - self.arrival_s)

    @figure
    def tpot_s(self) -> Array:
        """Mean time per token after the first; NaN for one token, or if the request was given up."""
        later = np.where(self.given_up, 0, self.load.generate - 1)
        none = np.full(len(later), np.nan)
        return np.asarray(np.divide(self.end_s - self.first_s, later, out=none, where=later > 0))

    @figure
    def latencies(self) -> Mapping[str, LatencySpread | None]:
        """The distribution of each latency over requests, and of `itl` over tokens; None without values."""
        names = ("ttft", "queue", "prefill", "tpot", "e2e")
        found = {name: latency_spread(getattr(self, f"{name}_s")[self.warm_up :]) for name in names}
        last = found.pop("e2e")
        return {**found, "itl": latency_spread(*self._gaps), "e2e": last}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """The times between tokens and how often each occurs, from the first arrival that counts on."""
        log = self.log
        if self.warm_up:
            log = log[log[:, LOG.index("start_s")] >= self.arrival_s[self.warm_up]]
        return token_gaps(log, self.joined_s, self.resumed_s)

    @figure
    def within(self) -> Array:
        """Whether each request is within the limits."""
        return ~self.given_up & within_limits(self.ttft_s, self.tpot_s, self.max_ttft_s, self.max_tpot_s)

    @property
    def goodput(self) -> float | None:
        """Requests per second within the limits; None without limits."""
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
        """Arrivals per second, including all turns of sessions; None in a closed loop, and if all requests
        arrive together.
        """
        span = float(np.ptp(self.arrival_s)) if len(self.load) else 0.0
        return None if self.load.users or not span else (len(self.load) - 1) / span

    @property
    def overloaded(self) -> bool | None:
        """Whether requests arrive faster than they complete, or waits grow.

        None in a closed loop, in which users wait for responses, and if there are fewer than `FEW` requests.
        """
        if self.load.users or len(self.load) < FEW:
            return None
        return (self.load.rate or 0.0) > self.largest_rate or wait_growth(
            self.arrival_s, self._waits
        ) > GROWTH

    @property
    def _waits(self) -> Array:
        """Seconds from arrival until prefill starts or the request is given up."""
        return np.minimum(self.start_s, self.end_s) - self.arrival_s

    @figure
    def largest_rate(self) -> float:
        """The largest stable rate of the server in requests per second."""
        if not len(self.load):
            return float("inf")
        return saturation_rate(self.profile.prices(), self.policy, self.capacity, self.load)

    @property
    def requests_per_s(self) -> float:
        """Completed requests per second."""
        return self._rate(~self.given_up)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of all requests."""
        return self._rate(self.made)

    def _rate(self, counts: Array) -> float:
        """The sum of a count over requests, divided by time.

        In a closed loop, this is the rate of the steady state by Little's law: the number of users times the
        counts of some requests, divided by the total seconds of these requests. These requests come after the
        warm-up and end while all users are active, so the last request of each user is excluded.
        """
        users = self.load.users or len(self.load)
        some = slice(self.warm_up, max(len(self.load) - users, 0))
        if seconds := float((self.end_s - self.arrival_s)[some].sum()):
            return users * float(counts[some].sum()) / seconds
        return float(counts.sum()) / self.duration_s if self.duration_s else float("inf")

    @property
    def prefix_hits(self) -> float:
        """The share of all prompt tokens that were cached at first admission."""
        return float(self.cached.sum() / max(self.load.prompt.sum(), 1))

    @property
    def steps(self) -> int:
        """The number of steps."""
        return int(self.events["steps"].sum())

    @property
    def busy(self) -> float:
        """The share of time in which the server runs a step."""
        return float(self.events["time_s"].sum()) / self.duration_s if self.duration_s else 1.0

    @property
    def decodes(self) -> float:
        """Mean number of sequences in a step with decodes."""
        count = self.events["steps"] * (self.events["decodes"] > 0)
        return float(count @ self.events["decodes"] / max(count.sum(), 1))

    @property
    def spending(self) -> ServingCost:
        """Cost and energy of the devices, during steps and in total."""

        return serving_cost(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user."""
        many = f"{self.refused:,} requests have" if self.refused > 1 else "1 request has"
        long = (f"{many} more tokens than the model may have; refused, and not in any figure",)
        drafts = self.profile.drafts
        verified = (drafts.note(self.job.program),) if drafts else ()
        # Not the notes of a report with one batch, which would leave ranks idle.
        given = *program_notes(self.job.program), *self.job.prefill.plan.notes
        budget = self.job.pool.tokens if self.job.pool else self.capacity.tokens
        more = f"steps take {self.capacity.tokens:,} tokens, a prompt beside all sequences"
        roomy = (f"{more}; --max-batched-tokens {budget:,} is {self.policy.name}'s default",)
        raised = roomy if self.capacity.tokens > budget else ()
        return (*given, *verified, *raised, *(long if self.refused else ()))

    @property
    def max_requests(self) -> int:
        """The number of the longest requests that run together without preemption, whenever they start."""
        prompt, answer = self.load.longest_request
        return self.capacity.requests(prompt, prompt + answer + self.capacity.rows - 2)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        spreads = {name: found and found._asdict() for name, found in self.latencies.items()}
        return {
            "model": self.job.program.name,
            "hardware": self.job.device.name,
            "policy": self.policy.name,
            "capacity": self.capacity.to_dict(),
            "max_requests": self.max_requests,
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


def elapsed(first: Array, then: Array) -> Array:
    """Seconds from `first` to `then`, by request; NaN if `then` did not happen."""
    return np.asarray(np.subtract(then, first, out=np.full(len(then), np.nan), where=then < FOREVER))


def latency_spread(seconds: Array, weights: Array | None = None) -> LatencySpread | None:
    """The distribution of seconds with weights; NaN is ignored. None without values."""
    if weights is None:
        known = seconds[~np.isnan(seconds)]
        each = map(float, np.percentile(known, QUANTILES)) if known.size else ()
        return LatencySpread(float(known.mean()), *each) if known.size else None
    if not (some := weights > 0).any():
        return None
    seconds, weights = seconds[some], weights[some]
    order = np.argsort(seconds)
    until = np.cumsum(weights[order])
    places = np.searchsorted(until, np.array(QUANTILES) / 100 * until[-1])
    mean = float(seconds @ weights / until[-1])
    return LatencySpread(mean, *map(float, seconds[order][np.minimum(places, len(order) - 1)]))


# Replicas

BY_REQUEST = ("arrival_s", "start_s", "first_s", "end_s", "preemptions", "made", "cached")


@dataclass(frozen=True, eq=False)
class ReplicaSimulation(Simulation):
    """Requests that a `router` sent to several replicas of a server.

    `place` is the replica of each request, `step` the replica of each row of the log. `replicas` contains a
    result for each replica with its requests. Blocks and sequences (`capacity`, `most_blocks`) are those of
    one replica.
    """

    router: str = ""
    place: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    replicas: tuple[Simulation, ...] = ()

    @classmethod
    def of_run(
        cls, profile: SimulatedServer, run: RunningReplicas, load: Load, warm_up: int = 0, **more: Any
    ) -> ReplicaSimulation:
        """The result of a finished run; requests that reached no replica are excluded."""
        placed = np.array(run.place) >= 0
        place = np.array(run.place)[placed]
        first = int(placed[:warm_up].sum())
        each = [Simulation.of(profile, server, load, **more) for server in run.servers]
        whole = [_part(one, placed, warm_up) for one in each]
        parts = tuple(_part(one, place == number, first) for number, one in enumerate(whole))
        log = np.concatenate([one.log for one in parts])
        order = np.argsort(log[:, LOG.index("start_s")], kind="stable")
        step = np.repeat(np.arange(len(parts)), [len(one.log) for one in parts])
        shared = {f.name: getattr(whole[0], f.name) for f in fields(Simulation) if f.init}
        shared["log"] = log[order]
        shared["most_blocks"] = max(one.most_blocks for one in parts)
        for name in ("joined_s", "resumed_s"):
            shared[name] = np.concatenate([getattr(part, name) for part in parts])
        return cls(**shared, router=run.router.name, place=place, step=step[order], replicas=parts)

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name, and the replica."""
        return {**super().events, "replica": self.step}

    @figure
    def places(self) -> Mapping[str, Array]:
        """The replica of each request."""
        return {"replica": self.place}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """The gaps between tokens of each replica; consecutive tokens of a request come from one replica."""
        gaps = [one._gaps for one in self.replicas if len(one.load) > one.warm_up]
        return np.concatenate([s for s, _ in gaps]), np.concatenate([n for _, n in gaps])

    @figure
    def largest_rate(self) -> float:
        """The largest stable request rate of all replicas, in requests per second."""
        return len(self.replicas) * super().largest_rate

    @property
    def max_requests(self) -> int:
        """The number of the longest requests that run at once on all replicas, equal on each."""
        return len(self.replicas) * super().max_requests

    @property
    def busy(self) -> float:
        """The mean share of time in which a replica runs a step."""
        return super().busy / len(self.replicas)

    @figure
    def figures(self) -> tuple[Mapping[str, Any], ...]:
        """Some figures of each replica, to compare them."""
        return tuple(_figures(one, self.duration_s) for one in self.replicas)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, and some figures of each replica."""
        return {**super().to_dict(), "router": self.router, "replicas": list(self.figures)}


def _figures(replica: Simulation, duration_s: float) -> Mapping[str, Any]:
    ttft = replica.latencies["ttft"]
    return {
        "requests": len(replica.load),
        "busy": float(replica.events["time_s"].sum()) / duration_s if duration_s else 1.0,
        "decodes": replica.decodes,
        "most_blocks": replica.most_blocks,
        "prefix_hits": replica.prefix_hits,
        "preemptions": int(replica.preemptions.sum()),
        "ttft_s": ttft and ttft._asdict(),
    }


def _part(whole: Simulation, kept: Array, warm_up: int) -> Simulation:
    """The requests of a mask; the first `warm_up` of all requests are excluded from the part, too."""
    arrays = {name: getattr(whole, name)[kept] for name in BY_REQUEST}
    # A router sends the requests of a user to different replicas.
    load = whole.load if kept.all() else replace(whole.load.only(kept), users=None)
    return replace(whole, load=load, warm_up=int(kept[:warm_up].sum()), **arrays)


# Prefill and decode servers


def _none() -> Array:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class PoolSimulation(Simulation):
    """Requests that `prefill` servers prefilled and `decode` servers decoded.

    By request, `sent_s` and `came_s` are the start and end of the transfer of its cache over the `channel`;
    NaN if no cache was sent. `step` is the server of each row of the log, prefill servers first. Profile,
    blocks and sequences describe a decode server.
    """

    prefill: ReplicaSimulation | None = None
    decode: ReplicaSimulation | None = None
    channel: Channel | None = None
    sent_s: Array = field(default_factory=_none)
    came_s: Array = field(default_factory=_none)
    step: Array = field(default_factory=_none)

    @classmethod
    def of_run(
        cls,
        prefill: ReplicaSimulation,
        decode: ReplicaSimulation,
        run: RunningPools,
        load: Load,
        channel: Channel,
        **counted: Any,
    ) -> PoolSimulation:
        """The result of a finished run, from the results of both kinds of servers."""
        goes_on = np.array(run.decode.place) >= 0
        shared: dict[str, Any] = {f.name: getattr(prefill, f.name) for f in fields(Simulation) if f.init}
        for name in ("profile", "capacity", "most_blocks", "joined_s", "resumed_s"):
            shared[name] = getattr(decode, name)
        shared |= {"load": load, **counted}
        shared["made"] = prefill.made.copy()
        shared["made"][goes_on] += decode.made
        shared["end_s"] = prefill.end_s.copy()
        shared["end_s"][goes_on] = decode.end_s
        shared["preemptions"] = prefill.preemptions.copy()
        shared["preemptions"][goes_on] += decode.preemptions
        log = np.concatenate([prefill.log, decode.log])
        step = np.concatenate([prefill.step, decode.step + len(prefill.replicas)])
        order = np.argsort(log[:, LOG.index("start_s")], kind="stable")
        times = {name: np.where(goes_on, getattr(run, name), np.nan) for name in ("sent_s", "came_s")}
        shared |= {"log": log[order], "step": step[order], **times}
        return cls(**shared, prefill=prefill, decode=decode, channel=channel)

    @figure
    def goes_on(self) -> Array:
        """Whether the cache of each request was sent: not for a single token, or if the client left."""
        return ~np.isnan(self.sent_s)

    @property
    def _both(self) -> tuple[ReplicaSimulation, ReplicaSimulation]:
        assert self.prefill is not None
        assert self.decode is not None
        return self.prefill, self.decode

    @figure
    def places(self) -> Mapping[str, Array]:
        """The prefill and the decode server of each request; -1 if it does not decode."""
        prefill, decode = self._both
        return {"prefill": prefill.place, "decode": self._of_decode(decode.place, -1)}

    def _of_decode(self, values: Array, none: float = np.nan) -> Array:
        """Values of the requests that decode, as an array over all requests; the others get the value
        `none`.
        """
        found = np.full(len(self.load), none, dtype=np.result_type(values, none))
        found[self.goes_on] = values
        return found

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name, and the server: prefill servers come first."""
        return {**super().events, "replica": self.step}

    @figure
    def transfer_s(self) -> Array:
        """Seconds from the first token until the cache is at the decode server."""
        return np.asarray(self.came_s - self.first_s)

    @figure
    def admission_s(self) -> Array:
        """Seconds from the arrival of the cache at the decode server until the request is admitted there."""
        return elapsed(self.came_s, self._of_decode(self._both[1].start_s))

    @figure
    def latencies(self) -> Mapping[str, LatencySpread | None]:
        """The distribution of each latency; `transfer` and `admission` come after prefill."""
        more = {
            name: latency_spread(getattr(self, f"{name}_s")[self.warm_up :])
            for name in ("transfer", "admission")
        }
        known = dict(super().latencies)
        head = {name: known.pop(name) for name in ("ttft", "queue", "prefill")}
        return {**head, **more, **known}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """The gaps at decode servers, and the gap between the first and the second token."""
        _, decode = self._both
        seconds, counts = decode._gaps
        second = (self._of_decode(decode.first_s) - self.first_s)[self.warm_up :]
        second = second[np.isfinite(second)]
        return np.concatenate([seconds, second]), np.concatenate([counts, np.ones(len(second))])

    @property
    def carried_rate(self) -> float:
        """The largest rate of requests per second that the links can carry; each transfer uses one link at
        each end.
        """
        links = min(len(side.replicas) for side in self._both)
        spent = float(np.nansum(self.came_s - self.sent_s))
        return links * len(self.load) / spent if spent else float("inf")

    @property
    def decoded_rate(self) -> float:
        """The largest rate of the whole load, in requests per second, that decode servers sustain.

        Requests with a single token do not reach decode servers.
        """
        goes_on = int((self.load.generate > 1).sum())
        return self._both[1].largest_rate * len(self.load) / goes_on

    @figure
    def largest_rate(self) -> float:
        """The largest request rate per second: the minimum over prefill servers, links and decode servers."""
        prefill, _ = self._both
        return min(prefill.largest_rate, self.carried_rate, self.decoded_rate)

    @property
    def overloaded(self) -> bool | None:
        """Whether waits grow anywhere, or the rate is too high; None in a closed loop, and for few
        requests.
        """
        over = super().overloaded
        if over is not False:
            return over
        waits = self.transfer_s + self.admission_s
        known = ~np.isnan(waits)
        return wait_growth(self.arrival_s[known], waits[known]) > GROWTH

    @property
    def busy(self) -> float:
        """The mean share of time in which a server runs a step."""
        return super().busy / sum(len(side.replicas) for side in self._both)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the user, including those of prefill servers."""
        each = (note for side in self._both for note in side.notes)
        return tuple(dict.fromkeys((*super().notes, *each)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, and some figures of each server."""
        prefill, decode = self._both
        assert self.channel is not None
        return {
            **super().to_dict(),
            "router": prefill.router,
            "link": {"name": self.channel.name, "bytes_per_s": self.channel.link.Bps},
            "largest_rates": {
                "prefill": prefill.largest_rate,
                "link": self.carried_rate,
                "decode": decode.largest_rate,
            },
            "prefill": list(prefill.figures),
            "decode": list(decode.figures),
        }


# Cost in dollars and energy


class ServerUsage(NamedTuple):
    """All `devices` of servers of one kind, which run steps for `busy_s` device-seconds together."""

    device: Device
    devices: int
    busy_s: float


class ServingCost(NamedTuple):
    """Cost and energy of a simulation; None without tokens, or if a device has no price or power limit.

    The values are dollars per million output tokens over the total time of all devices, the same over the
    time of their steps, the largest joules per token in steps, and requests within the limits per dollar.
    """

    cost_usd_per_mtok: float | None
    busy_cost_usd_per_mtok: float | None
    energy_j_per_token: float | None
    goodput_per_usd: float | None

    @property
    def known(self) -> bool:
        """Whether there is at least one value."""
        return any(figure is not None for figure in self)


def server_usage(found: Simulation) -> Iterator[ServerUsage]:
    """The use of the devices of a simulation, for each kind of server (prefill and decode, or both)."""
    both = (found.prefill, found.decode) if isinstance(found, PoolSimulation) else (found,)
    for part in filter(None, both):
        each = part.job.program.devices
        copies = len(part.replicas) if isinstance(part, ReplicaSimulation) else 1
        yield ServerUsage(part.job.device, each * copies, each * float(part.events["time_s"].sum()))


def serving_cost(found: Simulation) -> ServingCost:
    """Cost and energy of all servers of a simulation."""
    tokens, good = int(found.made.sum()), found.goodput
    if not tokens:
        return ServingCost(None, None, None, None)
    whole = busy = energy = 0.0
    priced = powered = True
    for kind in server_usage(found):
        rented = operating_cost(
            kind.device, kind.devices, tokens / found.duration_s if found.duration_s else float("inf")
        )
        works = operating_cost(kind.device, 1, tokens / kind.busy_s if kind.busy_s else float("inf"))
        priced, powered = priced and rented.usd_per_mtok is not None, powered and works.watts is not None
        whole += float(rented.usd_per_mtok or 0.0)
        busy += float(works.usd_per_mtok or 0.0)
        energy += float(works.joules_per_token or 0.0)
    usd = whole * tokens / 1e6
    per_usd = good * found.duration_s / usd if good is not None and priced and usd else None
    return ServingCost(
        whole if priced else None,
        min(busy, whole) if priced else None,  # the sum of steps is rounded
        energy if powered else None,
        per_usd,
    )
