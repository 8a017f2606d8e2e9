"""The result of a simulation of prefill and decode servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

import numpy as np

from llmir.backends.cost.channel import Channel
from llmir.base.dataclass import dataclass
from llmir.base.values import figure

from .cluster import RunningPools
from .limits import GROWTH, growth
from .load import Array, Load
from .log import LOG
from .result import Simulation, Spread, between, spread
from .simulated_replicas import SimulatedReplicas


def _none() -> Array:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class SimulatedPools(Simulation):
    """Requests that `prefill` servers read and `decode` servers went on with.

    By request `sent_s` is when its cache starts on the `channel`, and `came_s` when it is there; NaN where no
    cache was sent. `step` is the server of each row of the log, prefill servers first. The profile, blocks
    and sequences are those of a decode server.
    """

    prefill: SimulatedReplicas | None = None
    decode: SimulatedReplicas | None = None
    channel: Channel | None = None
    sent_s: Array = field(default_factory=_none)
    came_s: Array = field(default_factory=_none)
    step: Array = field(default_factory=_none)

    @classmethod
    def of_run(
        cls,
        prefill: SimulatedReplicas,
        decode: SimulatedReplicas,
        run: RunningPools,
        load: Load,
        channel: Channel,
        **counted: Any,
    ) -> SimulatedPools:
        """The result of a run that is over, from those of both kinds of servers."""
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
        """Whether the cache of each was sent: not if it asked for one token, or left before."""
        return ~np.isnan(self.sent_s)

    @property
    def _both(self) -> tuple[SimulatedReplicas, SimulatedReplicas]:
        assert self.prefill is not None
        assert self.decode is not None
        return self.prefill, self.decode

    @figure
    def places(self) -> Mapping[str, Array]:
        """The prefill and the decode server of each request; -1 where it decodes nothing."""
        prefill, decode = self._both
        return {"prefill": prefill.place, "decode": self._of_decode(decode.place, -1)}

    def _of_decode(self, values: Array, none: float = np.nan) -> Array:
        """Values of requests that decode, as an array over all requests, `none` elsewhere."""
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
        """From the arrival of the cache at the decode server until the request is admitted there."""
        return between(self.came_s, self._of_decode(self._both[1].start_s))

    @figure
    def latencies(self) -> Mapping[str, Spread | None]:
        """The spread of each figure; `transfer` and `admission` come after prefill."""
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
        """Requests a second whose caches the links carry at most: a transfer takes one at each end."""
        links = min(len(side.replicas) for side in self._both)
        spent = float(np.nansum(self.came_s - self.sent_s))
        return links * len(self.load) / spent if spent else float("inf")

    @property
    def decoded_rate(self) -> float:
        """Requests a second of the whole load that decode servers can keep up with.

        Requests of a single token do not come to them.
        """
        goes_on = int((self.load.generate > 1).sum())
        return self._both[1].largest_rate * len(self.load) / goes_on

    @figure
    def largest_rate(self) -> float:
        """Requests a second at most: the least of prefill servers, links and decode servers."""
        prefill, _ = self._both
        return min(prefill.largest_rate, self.carried_rate, self.decoded_rate)

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
        """The share of the time in which a server runs a step, on average."""
        return super().busy / sum(len(side.replicas) for side in self._both)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, of prefill servers too."""
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
