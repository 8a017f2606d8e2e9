"""The result of a simulation of several replicas: of all requests, and of each replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.values import figure

from .load import Array, Load
from .log import LOG
from .result import Simulation
from .running_replicas import RunningReplicas

if TYPE_CHECKING:
    from .profile import Profile

BY_REQUEST = ("arrival_s", "start_s", "first_s", "end_s", "preemptions", "made", "cached")


@dataclass(frozen=True, eq=False)
class SimulatedReplicas(Simulation):
    """Requests that a `router` sent to several replicas of a server.

    `place` is the replica of each request, `step` the replica of each row of the log. `replicas` has a
    simulation of each, with its own requests. Blocks and sequences (`capacity`, `most_blocks`) are those of
    one replica.
    """

    router: str = ""
    place: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    replicas: tuple[Simulation, ...] = ()

    @classmethod
    def of_run(
        cls, profile: Profile, run: RunningReplicas, load: Load, warm_up: int = 0, **more: Any
    ) -> SimulatedReplicas:
        """The result of a run that is over; requests that came to no replica are left out."""
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
        """Those of each replica, as a token follows one of the same replica."""
        gaps = [one._gaps for one in self.replicas if len(one.load) > one.warm_up]
        return np.concatenate([s for s, _ in gaps]), np.concatenate([n for _, n in gaps])

    @figure
    def largest_rate(self) -> float:
        """Requests a second that all replicas answer at most."""
        return len(self.replicas) * super().largest_rate

    @property
    def busy(self) -> float:
        """The share of the time in which a replica runs a step, on average."""
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
    """The requests that a mask keeps; the first `warm_up` of all do not count in the part either."""
    arrays = {name: getattr(whole, name)[kept] for name in BY_REQUEST}
    return replace(whole, load=whole.load.only(kept), warm_up=int(kept[:warm_up].sum()), **arrays)
