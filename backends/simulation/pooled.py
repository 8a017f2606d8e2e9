"""What a simulation of prefill and decode servers finds out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

import numpy as np

from llmir.backends.cost.channel import Channel
from llmir.dataclass import dataclass
from llmir.frozen import figure

from .fleet import Fleet
from .limits import GROWTH, growth
from .load import Array, Load
from .pools import Pools
from .server import LOG
from .simulation import Simulation, Spread, between, spread


def _none() -> Array:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class Pooled(Simulation):
    """Requests that `prefill` servers read and `decode` servers went on with, a fleet each.

    A cache is sent at `sent_s` over the `channel`, and there at `came_s`; NaN of what was not sent. The
    profile, blocks and sequences are those of a decode server.
    """

    prefill: Fleet | None = None
    decode: Fleet | None = None
    channel: Channel | None = None
    sent_s: Array = field(default_factory=_none)
    came_s: Array = field(default_factory=_none)
    step: Array = field(default_factory=_none)

    @classmethod
    def of_pools(
        cls, prefill: Fleet, decode: Fleet, pools: Pools, load: Load, channel: Channel, **counted: Any
    ) -> Pooled:
        """What both leave when all are served."""
        goes_on = np.array(pools.decode.place) >= 0
        same: dict[str, Any] = {f.name: getattr(prefill, f.name) for f in fields(Simulation) if f.init}
        same |= {"profile": decode.profile, "capacity": decode.capacity, "most_blocks": decode.most_blocks}
        same |= {"joined_s": decode.joined_s, "resumed_s": decode.resumed_s, "load": load, **counted}
        same["made"] = prefill.made.copy()
        same["made"][goes_on] += decode.made
        for name in ("end_s", "preemptions"):
            same[name] = getattr(prefill, name).copy()
            same[name][goes_on] = getattr(decode, name)
        same["preemptions"] = same["preemptions"] + prefill.preemptions * goes_on
        log, step = (
            np.concatenate(pair)
            for pair in (
                (prefill.log, decode.log),
                (prefill.step, decode.step + len(prefill.replicas)),
            )
        )
        order = np.argsort(log[:, LOG.index("start_s")], kind="stable")
        times = {name: np.where(goes_on, getattr(pools, name), np.nan) for name in ("sent_s", "came_s")}
        same |= {"log": log[order], "step": step[order], **times}
        return cls(**same, prefill=prefill, decode=decode, channel=channel)

    @figure
    def goes_on(self) -> Array:
        """Whether the cache of each was sent: not if it asked for one token, or left before."""
        return ~np.isnan(self.sent_s)

    @property
    def _both(self) -> tuple[Fleet, Fleet]:
        assert self.prefill is not None
        assert self.decode is not None
        return self.prefill, self.decode

    @figure
    def places(self) -> Mapping[str, Array]:
        """The servers of each request; -1 where it decodes nothing."""
        prefill, decode = self._both
        return {"prefill": prefill.place, "decode": self._of_decode(decode.place, -1)}

    def _of_decode(self, values: Array, none: float = np.nan) -> Array:
        """What is known of requests that decode, among all."""
        found = np.full(len(self.load), none, dtype=np.result_type(values, none))
        found[self.goes_on] = values
        return found

    @figure
    def events(self) -> Mapping[str, Array]:
        """The columns of the log by name, and the server: prefill servers come first."""
        return {**super().events, "replica": self.step}

    @figure
    def transfer_s(self) -> Array:
        """From the first token until the cache is at the decode server."""
        return np.asarray(self.came_s - self.first_s)

    @figure
    def admission_s(self) -> Array:
        """From then until it is admitted there."""
        return between(self.came_s, self._of_decode(self._both[1].start_s))

    @figure
    def latencies(self) -> Mapping[str, Spread | None]:
        """The spread of each figure; those of caches on their way come after prefill."""
        more = {
            name: spread(getattr(self, f"{name}_s")[self.warm_up :]) for name in ("transfer", "admission")
        }
        known = dict(super().latencies)
        head = {name: known.pop(name) for name in ("ttft", "queue", "prefill")}
        return {**head, **more, **known}

    @property
    def _gaps(self) -> tuple[Array, Array]:
        """Those at decode servers, and from the first token to the second."""
        _, decode = self._both
        seconds, counts = decode._gaps
        second = (self._of_decode(decode.first_s) - self.first_s)[self.warm_up :]
        second = second[np.isfinite(second)]
        return np.concatenate([seconds, second]), np.concatenate([counts, np.ones(len(second))])

    @property
    def carried_rate(self) -> float:
        """Requests a second whose caches the links carry at most: each takes one at both ends."""
        ends = min(len(fleet.replicas) for fleet in self._both)
        spent = float(np.nansum(self.came_s - self.sent_s))
        return ends * len(self.load) / spent if spent else float("inf")

    @property
    def decoded_rate(self) -> float:
        """Requests a second that decode servers answer, of which some have a single token."""
        goes_on = int((self.load.generate > 1).sum())
        return self._both[1].largest_rate * len(self.load) / goes_on

    @figure
    def largest_rate(self) -> float:
        """Requests a second that all three answer at most: prefill servers, links and decode servers."""
        prefill, _ = self._both
        return min(
            prefill.largest_rate,
            self.carried_rate,
            self.decoded_rate,
        )

    @property
    def overloaded(self) -> bool | None:
        """Whether waits grow anywhere, or more comes than is answered; None of users, and of few requests."""
        over = super().overloaded
        if over is not False:
            return over
        waits = self.transfer_s + self.admission_s
        known = ~np.isnan(waits)
        return growth(self.arrival_s[known], waits[known]) > GROWTH

    @property
    def busy(self) -> float:
        """The share of the time in which a server has a step, on average."""
        return super().busy / sum(len(fleet.replicas) for fleet in self._both)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of either."""
        each = (note for fleet in self._both for note in fleet.notes)
        return tuple(dict.fromkeys((*super().notes, *each)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, and some figures of each server."""
        prefill, decode = self._both
        assert self.channel is not None
        link = {"name": self.channel.name, "bytes_per_s": self.channel.link.Bps}
        rates = {"prefill": prefill.largest_rate, "link": self.carried_rate, "decode": decode.largest_rate}
        servers = {"prefill": list(prefill.figures), "decode": list(decode.figures)}
        return {
            **super().to_dict(),
            "router": prefill.router,
            "link": link,
            "largest_rates": rates,
            **servers,
        }
