"""Prefill servers and decode servers of one model, joined by a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from llmir.backends.analysis.kv import rank_bytes
from llmir.backends.cost.channel import HOST, Channel, channel
from llmir.convert import integer
from llmir.dim import Number
from llmir.errors import InputError
from llmir.frozen import Immutable

from . import joins
from .capacity import Capacity
from .course import FOREVER, Course
from .decoder import decoded
from .drafts import POOLS
from .engine import check, model_of
from .fleet import Fleet
from .load import Array, Load
from .pipelined import decoder_of, server_of
from .pooled import Pooled
from .pools import pools
from .profile import REPLICAS, Profile, counts
from .router import ROUTERS, Router, dealing
from .server import Server

Serving = Callable[..., Server]


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
        _check_drafts(prefill, decode)
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
        each = [np.broadcast_to(_sent(side, tokens), tokens.shape) for side in self._sides]
        return np.asarray(self.channel.seconds(np.maximum(*each)))

    def halves(self, load: Load) -> tuple[Load, Load]:
        """What prefill servers have to do of a load, and what decode servers have."""
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
        read, rest = self.halves(load)
        first = self._server(server_of, self.prefill, read, read, load.arrival_s)
        came = np.full(len(load), FOREVER)
        later = self._server(decoder_of, self.decode, rest, rest.only(goes_on), came)
        servers, rooms = (first, later), (first.capacity, later.capacity)
        routers = _routers(deals.name, many, (read, rest), rooms)
        way = np.where(goes_on, self.seconds(load.prompt), np.nan)
        seconds = [None if np.isnan(time_s) else time_s for time_s in way.tolist()]
        found = pools(servers, routers, load, seconds)
        if not any(place >= 0 for place in found.decode.place):
            raise InputError("pools: every client leaves before its cache is sent; nothing is decoded")
        one = Fleet.of_farm(self.prefill, found.prefill, read, counted["warm_up"])
        two = Fleet.of_farm(self.decode, found.decode, rest, counted["warm_up"])
        return Pooled.of_pools(one, two, found, load, self.channel, **counted)

    def routers(self, name: str, many: tuple[int, int], loads: tuple[Load, Load]) -> tuple[Router, Router]:
        """What deals out the `halves` of a load to so many servers of each kind."""
        rooms = tuple(side.capacity(load.longest) for side, load in zip(self._sides, loads, strict=True))
        return _routers(name, many, loads, (rooms[0], rooms[1]))

    @property
    def _sides(self) -> tuple[Profile, Profile]:
        return self.prefill, self.decode

    @staticmethod
    def _server(serving: Serving, profile: Profile, load: Load, checked: Load, arrival_s: Array) -> Server:
        """A prefill or decode server, with room for the requests that are checked."""
        room = profile.capacity(checked.longest)
        check(checked, room, profile.policy)
        course = Course(arrival_s.tolist())
        return serving(profile.prices(), profile.policy, room, load, course)


def _routers(
    name: str, many: Sequence[int], loads: tuple[Load, Load], rooms: tuple[Capacity, Capacity]
) -> tuple[Router, Router]:
    """Those of prefill and of decode servers.

    Prefixes are those of prefill servers; caches go to the least loaded decode server then.
    """
    names = name, "least-loaded" if name == "prefix-aware" else name
    sides = zip(names, many, loads, rooms, strict=True)
    one, two = (ROUTERS[deals](servers, load, room) for deals, servers, load, room in sides)
    return one, two


def _sent(profile: Profile, tokens: Array) -> Number:
    """Bytes of so many tokens that a rank sends or receives: also of a model that drafts."""
    own = rank_bytes(profile.job.program, 1, tokens)
    drafter = profile.drafts and profile.drafts.drafter
    return own + rank_bytes(drafter, 1, tokens) if drafter else own


def _check_drafts(prefill: Profile, decode: Profile) -> None:
    """InputError for drafts that the engine does not take in pools, or that both sides make otherwise.

    "P and D instances must use compatible speculation configurations": method and model of drafts must match
    (docs/features/nixl_connector_compatibility.md of vLLM).
    """
    one, two = (side.drafts and side.drafts.made_by(side.job.program) for side in (prefill, decode))
    if one != two:
        each = " and ".join(repr(by or "no drafts") for by in (one, two))
        raise InputError(f"pools: both have the same thing draft, or nothing; here it is {each}")
    if decode.drafts and (why := POOLS.get((decode.policy.name, decode.drafts.kind(decode.job.program)))):
        raise InputError(f"draft_tokens: {decode.drafts.tokens}; {why}")
