"""Plans that serve some traffic: devices, splits, precision, batch, chunk and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.formats import Paged, Result
from llmir.base.values import Array, Figures
from llmir.hw.spent import Spent, spent

from .front import front
from .refusal import Refusal
from .structure import Structure
from .structures import Points
from .traffic import Traffic
from .trial import Trial

if TYPE_CHECKING:
    from llmir.backends.simulate.drafts import Drafts
    from llmir.backends.simulate.pools import Pools
    from llmir.backends.simulate.profile import Profile

    from .hour import Hour
    from .why import Why


@dataclass(frozen=True, eq=False)
class Candidate(Figures):
    """A plan: `replicas` of a structure, of steps of up to `chunk` tokens, and `batch` requests at once.

    `ttft_s` and `tpot_s` are means by closed form, at the rate that is asked for; `trial` are simulated runs.
    All replicas answer `largest_rate` at most, where that was looked for.
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
        """What reads prompts."""
        return self.structure

    @property
    def devices(self) -> int:
        """How many devices all replicas take."""
        return self.replicas * self.structure.split.devices

    @property
    def spent(self) -> Spent:
        """What they cost and draw, at the rate that is asked for."""
        traffic = self.traffic
        return spent(self.structure.device, self.devices, traffic.rate * traffic.answer)

    @property
    def cost_per_hour_usd(self) -> float | None:
        """What they cost, where the device has a price."""
        return self.spent.usd_per_hour

    @property
    def cost_usd_per_mtok(self) -> float | None:
        """What a million tokens of answers cost."""
        return self.spent.usd_per_mtok

    @property
    def energy_j_per_token(self) -> float | None:
        """What a token of answers takes at most: boards at the limit of their power all the time."""
        return self.spent.joules_per_token

    @property
    def tokens_per_s_device(self) -> float:
        """Tokens of answers, of each device."""
        return self.traffic.rate * self.traffic.answer / self.devices

    @property
    def tokens_per_s_user(self) -> float:
        """Tokens that a request gets in a second, once it has the first: by the mean simulated TPOT."""
        return 1 / self.trial.tpot_s.mean

    @property
    def in_flight(self) -> float:
        """Requests of a replica that are there at once, on average, by Little's law."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return self.traffic.rate / self.replicas * (self.trial.ttft_s.mean + later)

    @property
    def laid(self) -> str:
        """How its servers lie on devices: `tp 2 × 16`."""
        return f"{self.structure.split} × {self.replicas:,}"

    @property
    def decoding(self) -> int:
        """Those of them that decode, one at least."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return max(1, round(min(self.traffic.rate / self.replicas * later, self.batch)))

    @property
    def limited(self) -> dict[str, float]:
        """What each limit is of, in seconds, on average over runs."""
        limits = {"ttft_s": self.traffic.ttft, "tpot_s": self.traffic.tpot}
        return {name: self.trial.limited(i) for i, (name, of) in enumerate(limits.items()) if of}

    @property
    def draft_share(self) -> float | None:
        """The part of a step that makes drafts, half way through answers; None where there are none."""
        s, traffic = self.structure, self.traffic
        half = traffic.read + traffic.answer // 2
        return s.drafts and s.drafts.share_of(s.program, s.model, self.decoding, half)

    @property
    def meets(self) -> bool:
        """Whether all limits are met, in a further run too, and as much is answered as comes."""
        return self.trial.over(self.traffic) <= 1 and not self.overloaded

    @property
    def overloaded(self) -> bool:
        """Whether more comes than is answered, where that was looked for: a queue grows for ever."""
        return self.largest_rate is not None and self.largest_rate < self.traffic.rate

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        split = self.structure.split
        return {
            "hardware": self.structure.device.name,
            "weights": self.structure.weights or None,
            **split._asdict(),
            "replicas": self.replicas,
            "devices": self.devices,
            "batch": self.batch,
            "chunk": self.chunk,
            "meets": self.meets,
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
                "limited": self.limited,
                "within": self.trial.within,
            },
        }


@dataclass(frozen=True, eq=False)
class PooledCandidate(Candidate):
    """A plan of pools: `replicas` of so many prefill `servers` and decode servers, joined by a link.

    `prefill` is the structure that reads, in steps of `chunk` tokens, and `structure` the one that goes on,
    `batch` requests at once; `pools` simulates both.
    """

    prefill: Structure | None = None
    servers: tuple[int, int] = (1, 1)
    link: str = ""
    pools: Pools | None = None

    @property
    def reads(self) -> Structure:
        """What reads prompts."""
        return self.prefill or self.structure

    @property
    def laid(self) -> str:
        """How its servers lie on devices: `9 tp 2 → 6 tp 4`, prefill servers first."""
        sides = zip(self.servers, (self.reads, self.structure), strict=True)
        return " → ".join(f"{self.replicas * n:,} {of.split}" for n, of in sides)

    @property
    def devices(self) -> int:
        """How many devices all servers take."""
        each = self.reads.split.devices, self.structure.split.devices
        return self.replicas * sum(n * of for n, of in zip(self.servers, each, strict=True))

    @property
    def in_flight(self) -> float:
        """Requests of a decode server that are there at once, on average."""
        later = (self.traffic.answer - 1) * self.trial.tpot_s.mean
        return self.traffic.rate / (self.replicas * self.servers[1]) * later

    @property
    def decoding(self) -> int:
        """The same, one at least."""
        return max(1, round(min(self.in_flight, self.batch)))

    @property
    def carried(self) -> bool:
        """Whether as much is answered as comes."""
        return (self.largest_rate or 0.0) >= self.traffic.rate

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; the split is that of decode servers."""
        each = zip(("prefill", "decode"), self.servers, (self.reads, self.structure), strict=True)
        pools = {name: {"servers": n, **of.split._asdict()} for name, n, of in each}
        return {**super().to_dict(), "pools": {**pools, "link": self.link}}


@dataclass(frozen=True, eq=False)
class Plans(Figures, Result, Paged):
    """What a search found: `ranked` are plans that meet all limits, the cheapest first; `missed` do not.

    `structures` are all that fit, `points` their plans of one replica by closed form, `refused` why others
    have none, by their words, the closest to one that can be first. `most_devices` limits plans, if stated,
    and `priced` says that all devices have a price, so that cost decides; else the number of devices does.
    `largest_rate` is what the first plan answers at most, in requests a second; `server` simulates it.
    """

    traffic: Traffic
    most_devices: int | None
    priced: bool
    structures: tuple[Structure, ...]
    points: Points
    ranked: tuple[Candidate, ...]
    missed: tuple[Candidate, ...]
    refused: Mapping[str, Refusal]
    seeds: tuple[int, ...]
    largest_rate: float | None
    notes: tuple[str, ...] = ()
    server: Profile | Pools | None = None

    @property
    def best(self) -> Candidate | None:
        """The plan that costs least; None where none meets the limits."""
        return self.ranked[0] if self.ranked else None

    @property
    def drafts(self) -> Drafts | None:
        """What each step verifies; None where there are no drafts."""
        return self.structures[0].drafts if self.structures else None

    @property
    def shown(self) -> tuple[Candidate, ...]:
        """All that were simulated: what meets the limits, the cheapest first, then the closest misses."""
        return (*self.ranked, *self.missed)

    @property
    def goals(self) -> Mapping[str, Candidate]:
        """Of the plans that meet all limits the best by each goal: what it is, by its name in JSON."""
        if not self.ranked:
            return {}
        least = {"ttft": lambda c: c.trial.ttft_s.p99, "tpot": lambda c: c.trial.tpot_s.p99}
        goals = {name: min(self.ranked, key=figure) for name, figure in least.items()}
        most = max(self.ranked, key=lambda c: c.tokens_per_s_device)
        return {"cost" if self.priced else "devices": self.ranked[0], **goals, "tokens_per_s_device": most}

    def why(self, candidate: Candidate) -> Why:
        """What binds a plan: the limit that it misses most, else what it costs more; and the op behind it."""
        from .why import why

        return why(self, candidate)

    @cached_property
    def hour(self) -> Hour | None:
        """An hour of the traffic on the first plan, with a seed that decided nothing; None without a plan.

        It is simulated when it is first asked for. InputError where a request comes that has no room.
        """
        from .hour import hour

        if self.best is None or self.server is None:
            return None
        return hour(self.best, self.server, self.seeds[-1] + 1)

    @property
    def tokens_per_s_device(self) -> Array:
        """Of each point, tokens of answers a second of each device, with all its requests in flight."""
        return np.asarray(self.points.rate * self.traffic.answer / self.points.devices)

    @property
    def tokens_per_s_user(self) -> Array:
        """Of each point, tokens that a request gets in a second."""
        return np.asarray(1 / self.points.tpot_s)

    @cached_property
    def front(self) -> Array:
        """The numbers of points that no other of the same device is better than in both; ties are in it."""
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
            "largest_rate": self.largest_rate,
            "best": self.best and self.best.to_dict(),
            "hour": self._hour(),
            "goals": {name: self.shown.index(each) for name, each in self.goals.items()},
            "plans": [{**each.to_dict(), "why": self.why(each)._asdict()} for each in self.shown],
            "front": [
                {
                    "hardware": (of := self.structures[int(self.points.structure[i])]).device.name,
                    "weights": of.weights or None,
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
        """The same of the hour, or why there is none of the first plan."""
        try:
            return self.hour.to_dict() if self.hour else None
        except InputError as error:
            return {"error": str(error)}

    def __repr__(self) -> str:
        return f"<Plans {len(self.ranked)} that meet the limits, {len(self.missed)} that do not>"
