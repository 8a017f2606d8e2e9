"""A load on prefill servers and then on decode servers, with caches that go from one to the other."""

from __future__ import annotations

from functools import partial

from .arrivals import Told, arrive
from .course import FOREVER
from .events import ARRIVAL, Events
from .farm import Farm
from .load import Load
from .router import Router
from .server import Server


class Pools:
    """Two farms, and the links between their servers: a cache takes `seconds` on the way.

    Each server has a link, which one cache goes over at a time, as it was read: a cache takes the link of
    who sends and the link of who receives. `sent_s` is when it starts, `came_s` when it is there.
    """

    def __init__(self, prefill: Farm, decode: Farm, seconds: list[float | None], events: Events) -> None:
        self.prefill, self.decode, self.seconds, self.events = prefill, decode, seconds, events
        self.sent_s, self.came_s = ([FOREVER] * len(seconds) for _ in range(2))
        self.sends, self.receives = ([0.0] * len(farm.servers) for farm in (prefill, decode))
        self.answered: Told | None = None
        prefill.answered = self._is_read
        for server in decode.servers:
            server.since_s = prefill.servers[0].course.arrival_s

    def _is_read(self, request: int, time_s: float) -> None:
        """A prompt is read, and the first token there: the cache is sent, unless there is no need."""
        seconds = self.seconds[request]
        if seconds is None or self.prefill.servers[0].over(request, time_s):
            if self.answered:
                self.answered(request, time_s)
            return
        sender, receiver = self.prefill.place[request], self.decode.choose(request)
        start = max(time_s, self.sends[sender], self.receives[receiver])
        end = self.sends[sender] = self.receives[receiver] = start + seconds
        self.sent_s[request], self.came_s[request] = start, end
        self.decode.servers[receiver].course.arrival_s[request] = end
        self.events.at(end, ARRIVAL, partial(self.decode.servers[receiver].come, request))


def pools(
    first: tuple[Server, Server], routers: tuple[Router, Router], load: Load, seconds: list[float | None]
) -> Pools:
    """Prefill and decode servers like these two after all requests of a load.

    A cache takes so many `seconds` on a link; None of requests of one token, which decode nothing.
    """
    events = Events()
    prefill, decode = (Farm(server, router, events) for server, router in zip(first, routers, strict=True))
    found = Pools(prefill, decode, seconds, events)
    found.answered = decode.answered = arrive(load, first[0].course.arrival_s, prefill.come, events)
    events.run([*prefill.servers, *decode.servers], linked=True)
    return found
