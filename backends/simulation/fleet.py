"""What a simulation of several replicas finds out: the whole, and each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmir.dataclass import dataclass
from llmir.frozen import figure

from .farm import Farm
from .load import Array, Load
from .server import LOG
from .simulation import Simulation

if TYPE_CHECKING:
    from .profile import Profile

BY_REQUEST = ("arrival_s", "start_s", "first_s", "end_s", "preemptions", "made", "cached")


@dataclass(frozen=True, eq=False)
class Fleet(Simulation):
    """Requests that several replicas served, which a `router` dealt out: `place` has the replica of each,
    and `step` that of each event.

    `replicas` are simulations of their own, of the requests that each had; blocks and sequences are those of
    one of them.
    """

    router: str = ""
    place: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    step: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    replicas: tuple[Simulation, ...] = ()

    @classmethod
    def of_farm(cls, profile: Profile, farm: Farm, load: Load, warm_up: int = 0, **more: Any) -> Fleet:
        """What servers leave when all are served that came to one."""
        placed = np.array(farm.place) >= 0
        place = np.array(farm.place)[placed]
        first = int(placed[:warm_up].sum())
        each = [Simulation.of(profile, server, load, **more) for server in farm.servers]
        whole = [_part(one, placed, warm_up) for one in each]
        parts = tuple(_part(one, place == number, first) for number, one in enumerate(whole))
        log = np.concatenate([one.log for one in parts])
        order = np.argsort(log[:, LOG.index("start_s")], kind="stable")
        step = np.repeat(np.arange(len(parts)), [len(one.log) for one in parts])
        same = {f.name: getattr(whole[0], f.name) for f in fields(Simulation) if f.init}
        same["log"] = log[order]
        same["most_blocks"] = max(one.most_blocks for one in parts)
        same |= {
            name: np.concatenate([getattr(p, name) for p in parts]) for name in ("joined_s", "resumed_s")
        }
        return cls(**same, router=farm.router.name, place=place, step=step[order], replicas=parts)

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
        """Those of each replica: an event is of one of them."""
        found = [one._gaps for one in self.replicas if len(one.load) > one.warm_up]
        return np.concatenate([s for s, _ in found]), np.concatenate([n for _, n in found])

    @figure
    def largest_rate(self) -> float:
        """As many times what one replica answers at most."""
        return len(self.replicas) * super().largest_rate

    @property
    def busy(self) -> float:
        """The share of the time in which a replica has a step, on average."""
        return super().busy / len(self.replicas)

    @figure
    def figures(self) -> tuple[Mapping[str, Any], ...]:
        """What tells one replica from another."""
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
    """The requests of a mask, of which those that do not count are the first."""
    arrays = {name: getattr(whole, name)[kept] for name in BY_REQUEST}
    return replace(whole, load=whole.load.only(kept), warm_up=int(kept[:warm_up].sum()), **arrays)
