"""Prefill servers and decode servers of one model, with a link between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from llmir.backends.cost.channel import HOST, Channel, channel
from llmir.backends.memory.transfer import rank_bytes
from llmir.base.arguments import integer
from llmir.base.array_namespace import Number
from llmir.base.errors import InputError
from llmir.base.values import Immutable

from . import pool_rules
from .capacity import Capacity
from .cluster import run_pools
from .course import FOREVER, Course
from .engine import check, model_of
from .load import Array, Load
from .profile import REPLICAS, Profile, counts
from .router import ROUTERS, Router, dealing
from .server import Server
from .servers import decode_server_of, decoded, server_of
from .simulated_pools import SimulatedPools
from .simulated_replicas import SimulatedReplicas


class Pools(Immutable):
    """A prefill server, a decode server, and the channel that caches are sent over: `run` simulates loads."""

    prefill: Profile
    decode: Profile
    channel: Channel

    def __init__(self, prefill: Profile, decode: Profile, link: str) -> None:
        """InputError for pools that the engine refuses, and for a link that leads to no other server."""
        engines = [profile.policy.name for profile in (prefill, decode)]
        if engines[0] != engines[1]:
            raise InputError(
                f"pools: prefill is {engines[0]}'s and decode {engines[1]}'s; one engine serves both"
            )
        pool_rules.check(engines[0], prefill.job.program, decode.job.program)
        pool_rules.check_drafts(prefill, decode)
        if link == HOST:
            raise InputError(
                "link: host leads to no other server; say nvlink, network, or a rate such as 25GBps,5us"
            )
        between = channel(model_of(prefill.job), link)
        vars(self).update(prefill=prefill, decode=decode.decoding(), channel=between)

    def __repr__(self) -> str:
        return f"<Pools {self.prefill!r}, {self.decode!r}, {self.channel.name}>"

    def seconds(self, tokens: Array) -> Array:
        """Seconds to send the caches of so many tokens.

        Ranks send at once; the side whose ranks hold more each decides.
        """
        each = [np.broadcast_to(_rank_bytes(side, tokens), tokens.shape) for side in self._sides]
        return np.asarray(self.channel.seconds(np.maximum(*each)))

    def halves(self, load: Load) -> tuple[Load, Load]:
        """The load of prefill servers, one token of each request; and that of decode servers, the rest."""
        read, rest = replace(load, generate=np.ones_like(load.generate), asked=None), decoded(load)
        return read, self.decode.drafting(rest)

    def run(
        self,
        load: Load,
        *,
        prefill_replicas: int = 1,
        decode_replicas: int = 1,
        router: str | None = None,
        warm_up: int = 0,
        max_ttft_s: float | None = None,
        max_tpot_s: float | None = None,
    ) -> SimulatedPools:
        """A load served. A `router` chooses the prefill server of a prompt, and the decode server of a cache.

        All else is as in `Profile.run`.
        """
        said = {"prefill_replicas": prefill_replicas, "decode_replicas": decode_replicas}
        replicas = [integer(name, value, 1, REPLICAS) for name, value in said.items()]
        name = dealing(router, max(replicas))
        asked, load = load, self.decode.short(self.prefill.short(load))
        counted = counts(asked, load, warm_up, max_ttft_s, max_tpot_s)
        goes_on = load.generate > 1
        if not goes_on.any():
            raise InputError("pools: no request has a second token, decode servers have nothing to do")
        read, rest = self.halves(load)
        came = np.full(len(load), FOREVER)
        first = (
            _server(server_of, self.prefill, read, read, load.arrival_s),
            _server(decode_server_of, self.decode, rest, rest.only(goes_on), came),
        )
        routers = _routers(name, replicas, (read, rest), (first[0].capacity, first[1].capacity))
        sent = zip(goes_on.tolist(), self.seconds(load.prompt).tolist(), strict=True)
        run = run_pools(first, routers, load, [time_s if more else None for more, time_s in sent])
        if not any(place >= 0 for place in run.decode.place):
            raise InputError("pools: every client leaves before its cache is sent; nothing is decoded")
        one = SimulatedReplicas.of_run(self.prefill, run.prefill, read, counted["warm_up"])
        two = SimulatedReplicas.of_run(self.decode, run.decode, rest, counted["warm_up"])
        return SimulatedPools.of_run(one, two, run, load, self.channel, **counted)

    def routers(
        self, name: str, replicas: tuple[int, int], loads: tuple[Load, Load]
    ) -> tuple[Router, Router]:
        """Routers to so many prefill and decode servers, of the `halves` of a load."""
        rooms = tuple(side.capacity(load.longest) for side, load in zip(self._sides, loads, strict=True))
        return _routers(name, replicas, loads, (rooms[0], rooms[1]))

    @property
    def _sides(self) -> tuple[Profile, Profile]:
        return self.prefill, self.decode


def _server(
    kind: Callable[..., Server], profile: Profile, load: Load, checked: Load, arrival_s: Array
) -> Server:
    """A prefill or decode server; InputError where it has no room for one of the requests `checked`."""
    room = profile.capacity(checked.longest)
    check(checked, room, profile.policy)
    return kind(profile.prices(), profile.policy, room, load, Course(arrival_s.tolist()))


def _routers(
    name: str, replicas: Sequence[int], loads: tuple[Load, Load], rooms: tuple[Capacity, Capacity]
) -> tuple[Router, Router]:
    """Those of prefill and of decode servers.

    Prompts can be sent by their prefixes, caches cannot: they go to the least loaded decode server then.
    """
    names = name, "least-loaded" if name == "prefix-aware" else name
    sides = zip(names, replicas, loads, rooms, strict=True)
    one, two = (ROUTERS[each](count, load, room) for each, count, load, room in sides)
    return one, two


def _rank_bytes(profile: Profile, tokens: Array) -> Number:
    """Bytes of the caches of so many tokens on a rank, those of a draft model included."""
    own = rank_bytes(profile.job.program, 1, tokens)
    drafter = profile.drafts and profile.drafts.drafter
    return own + rank_bytes(drafter, 1, tokens) if drafter else own
