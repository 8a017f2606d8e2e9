"""Prefill servers and decode servers of one model, joined by a link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.analysis.kv import rank_bytes
from llmir.backends.cost.channel import HOST, Channel, channel
from llmir.convert import integer
from llmir.errors import InputError
from llmir.frozen import Immutable

from . import joins
from .course import FOREVER, Course
from .decoder import Decoder, decoded
from .fleet import Fleet
from .load import Array, Load
from .pipelined import Pipelined, PipelinedDecoder
from .pooled import Pooled
from .pools import pools
from .profile import REPLICAS, Profile, check, counts, model_of
from .router import ROUTERS, dealing
from .server import Server


class Pair(Immutable):
    """Profiles of a prefill server and of a decode server, and what carries caches from one to the other."""

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
        joins.check(engines[0], prefill.job.program, decode.job.program)
        if prefill.drafts or decode.drafts:
            raise InputError("draft_tokens: prefill and decode servers are simulated without drafts")
        if link == HOST:
            raise InputError(
                "link: host leads to no other server; say nvlink, network, or a rate such as 25GBps,5us"
            )
        between = channel(model_of(prefill.job), link)
        vars(self).update(prefill=prefill, decode=decode.decoding(), channel=between)

    def __repr__(self) -> str:
        return f"<Pair {self.prefill!r}, {self.decode!r}, {self.channel.name}>"

    def seconds(self, tokens: Array) -> Array:
        """Of the caches of so many tokens: ranks send at once, and the side that has more of each decides."""
        programs = (profile.job.program for profile in (self.prefill, self.decode))
        each = [np.broadcast_to(rank_bytes(program, 1, tokens), tokens.shape) for program in programs]
        return np.asarray(self.channel.seconds(np.maximum(*each)))

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
    ) -> Pooled:
        """A load served: `router` deals prompts out to prefill servers, and caches to decode servers.

        All else is as of a `Profile`.
        """
        said = {"prefill_replicas": prefill_replicas, "decode_replicas": decode_replicas}
        many = [integer(name, value, 1, REPLICAS) for name, value in said.items()]
        deals = ROUTERS[dealing(router, max(many))]
        asked, load = load, self.decode.short(self.prefill.short(load))
        counted = counts(asked, load, warm_up, max_ttft_s, max_tpot_s)
        goes_on = load.generate > 1
        if not goes_on.any():
            raise InputError("pools: no request has a second token, decode servers have nothing to do")
        read, rest = replace(load, generate=np.ones_like(load.generate), asked=None), decoded(load)
        first = self._server((Server, Pipelined), self.prefill, read, read, load.arrival_s)
        came = np.full(len(load), FOREVER)
        kinds = Decoder, PipelinedDecoder
        later = self._server(kinds, self.decode, rest, rest.only(goes_on), came)
        # Prefixes are those of prefill servers; caches go to the least loaded decode server.
        names = deals.name, "least-loaded" if deals.name == "prefix-aware" else deals.name
        servers = first, later
        routers = [
            ROUTERS[name](n, server_load, server.capacity)
            for name, n, server_load, server in zip(names, many, (read, rest), servers, strict=True)
        ]
        way = np.where(goes_on, self.seconds(load.prompt), np.nan)
        seconds = [None if np.isnan(time_s) else time_s for time_s in way.tolist()]
        found = pools(servers, (routers[0], routers[1]), load, seconds)
        if not any(place >= 0 for place in found.decode.place):
            raise InputError("pools: every client leaves before its cache is sent; nothing is decoded")
        one = Fleet.of_farm(self.prefill, found.prefill, read, counted["warm_up"])
        two = Fleet.of_farm(self.decode, found.decode, rest, counted["warm_up"])
        return Pooled.of_pools(one, two, found, load, self.channel, **counted)

    @staticmethod
    def _server(
        kinds: tuple[type[Server], type[Pipelined]],
        profile: Profile,
        load: Load,
        checked: Load,
        arrival_s: Array,
    ) -> Server:
        """One of either kind: for a step at a time, or for micro-batches."""
        room = profile.capacity(checked.longest)
        check(checked, room, profile.policy)
        kind = kinds[room.micro_batches > 1]
        return kind(profile.prices(room.tokens), profile.policy, room, load, Course(arrival_s.tolist()))
