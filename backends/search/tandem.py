"""Prefill servers and then decode servers, one after another: pools whose routers deal requests out in turn.

What a prefill server does depends on no other server, and what a decode server does on when caches come. So
each is simulated alone, several times as fast as all of them together (`simulation.pools`), with one result.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmir.backends.simulation.course import Course
from llmir.backends.simulation.decoder import LATER
from llmir.backends.simulation.load import Load
from llmir.backends.simulation.pair import Pair
from llmir.backends.simulation.pipelined import decoder_of
from llmir.backends.simulation.profile import check
from llmir.backends.simulation.serve import serve
from llmir.frozen import Array


def tandem(pair: Pair, load: Load, servers: tuple[int, int]) -> tuple[Array, Array]:
    """TTFT and TPOT of each request that is short enough, in seconds; NaN of the TPOT of a single token.

    InputError for one that no server has room for.
    """
    load = pair.decode.short(pair.prefill.short(load))
    (read, rest), goes_on = pair.halves(load), load.generate > 1
    first_s = _read(pair, read, servers[0])
    arrivals, place = _sent(pair, load, servers, first_s)
    end_s = np.full(len(load), np.nan)
    room = pair.decode.capacity(rest.only(goes_on).longest)
    check(rest.only(goes_on), room, pair.decode.policy)
    for number in range(servers[1]):
        some = np.flatnonzero(place == number)
        some = some[np.argsort(arrivals[some], kind="stable")]
        if some.size:
            course = Course(arrivals[some].tolist())
            prices = pair.decode.prices(room.tokens)
            own = replace(rest.only(some), seed=rest.seed + number * LATER)
            server = decoder_of(prices, pair.decode.policy, room, own, course)
            for request, time_s in enumerate(course.arrival_s):
                server.advance(time_s)
                server.come(request, time_s)
            server.advance()
            end_s[some] = course.end_s
    return first_s - load.arrival_s, (end_s - first_s) / np.maximum(load.generate - 1, 1)


def _read(pair: Pair, read: Load, count: int) -> Array:
    """When the first token of each is there: prefill servers take turns as requests come."""
    room, first_s = pair.prefill.capacity(read.longest), np.empty(len(read))
    check(read, room, pair.prefill.policy)
    for number in range(count):
        some = np.arange(number, len(read), count)
        if some.size:
            server = serve(pair.prefill.prices(room.tokens), pair.prefill.policy, room, read.only(some))
            first_s[some] = server.course.end_s
    return first_s


def _sent(pair: Pair, load: Load, servers: tuple[int, int], first_s: Array) -> tuple[Array, Array]:
    """When the cache of each is there, and at which decode server: -1 of a single token.

    In the order of first tokens servers take turns, and caches the links of who sends and of who receives.
    """
    sends, receives = [0.0] * servers[0], [0.0] * servers[1]
    arrivals, place = np.full(len(load), np.nan), np.full(len(load), -1)
    order = np.argsort(first_s, kind="stable")
    seconds = pair.seconds(load.prompt).tolist()
    for turn, request in enumerate(order[load.generate[order] > 1].tolist()):
        sender, receiver = request % servers[0], turn % servers[1]
        end = max(float(first_s[request]), sends[sender], receives[receiver]) + seconds[request]
        arrivals[request] = sends[sender] = receives[receiver] = end
        place[request] = receiver
    return arrivals, place
