"""Pools whose router does not look at loads, with each server simulated alone.

What a prefill server does depends on no other server, and what a decode server does depends on when caches
come. So the result is that of all servers together (`simulation.pools`), several times as fast.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.simulate.course import Course
from llmir.backends.simulate.engine import check
from llmir.backends.simulate.load import Load
from llmir.backends.simulate.pools import Pools
from llmir.backends.simulate.router import FIRST, Router
from llmir.backends.simulate.serve import serve
from llmir.backends.simulate.servers import LATER, decode_server_of
from llmir.base.values import Array


def tandem(pools: Pools, load: Load, servers: tuple[int, int], router: str = FIRST) -> tuple[Array, Array]:
    """TTFT and TPOT of each request that is short enough, in seconds; NaN of the TPOT of a single token.

    `servers` are the numbers of prefill and decode servers, to which a `blind` router sends prompts and
    caches. InputError for a request that a server has no room for.
    """
    load = pools.decode.short(pools.prefill.short(load))
    (read, rest), goes_on = pools.halves(load), load.generate > 1
    routers = pools.routers(router, servers, (read, rest))
    sender = np.array([routers[0].choose(request, ()) for request in range(len(load))])
    first_s = _read(pools, read, sender)
    arrivals, place = _sent(pools, load, routers, sender, first_s)
    end_s = np.full(len(load), np.nan)
    room = pools.decode.capacity(rest.only(goes_on).longest)
    check(rest.only(goes_on), room, pools.decode.policy)
    for number in range(servers[1]):
        some = np.flatnonzero(place == number)
        some = some[np.argsort(arrivals[some], kind="stable")]
        if some.size:
            course = Course(arrivals[some].tolist())
            prices = pools.decode.prices()
            own = replace(rest.only(some), seed=rest.seed + number * LATER)
            server = decode_server_of(prices, pools.decode.policy, room, own, course)
            for request, time_s in enumerate(course.arrival_s):
                server.advance(time_s)
                server.come(request, time_s)
            server.advance()
            end_s[some] = course.end_s
    return first_s - load.arrival_s, (end_s - first_s) / np.maximum(load.generate - 1, 1)


def _read(pools: Pools, read: Load, sender: Array) -> Array:
    """When each request has its first token, from the prefill server that it was sent to."""
    room, first_s = pools.prefill.capacity(read.longest), np.empty(len(read))
    check(read, room, pools.prefill.policy)
    for number in np.unique(sender):
        some = np.flatnonzero(sender == number)
        server = serve(pools.prefill.prices(), pools.prefill.policy, room, read.only(some))
        first_s[some] = server.course.end_s
    return first_s


def _sent(
    pools: Pools, load: Load, routers: tuple[Router, Router], sender: Array, first_s: Array
) -> tuple[Array, Array]:
    """When the cache of each request is at its decode server, and which that is: -1 of a single token.

    Caches are routed and sent in the order of first tokens; each occupies the link of its sender and that of
    its receiver.
    """
    sends, receives = ([0.0] * router.replicas for router in routers)
    arrivals, place = np.full(len(load), np.nan), np.full(len(load), -1)
    order = np.argsort(first_s, kind="stable")
    seconds, senders = pools.seconds(load.prompt).tolist(), sender.tolist()
    for request in order[load.generate[order] > 1].tolist():
        one, two = senders[request], routers[1].choose(request, ())
        end = max(float(first_s[request]), sends[one], receives[two]) + seconds[request]
        arrivals[request] = sends[one] = receives[two] = end
        place[request] = two
    return arrivals, place
