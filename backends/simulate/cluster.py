"""Prefill and decode servers while they run: the cache of each prompt goes from one to the other."""

from __future__ import annotations

from functools import partial

from .arrivals import OnRequest, arrive
from .course import FOREVER
from .events import ARRIVAL, Events
from .load import Load
from .router import Router
from .running_replicas import RunningReplicas
from .server import Server


class RunningPools:
    """Replicas that prefill, replicas that decode, and their links.

    Each server has one link, which carries one cache at a time, in the order in which prompts were read. A
    transfer occupies the sender's link and the receiver's link for the `seconds` of that request. `sent_s`
    is when it starts and `came_s` when it ends, by request.
    """

    def __init__(
        self,
        prefill: RunningReplicas,
        decode: RunningReplicas,
        seconds: list[float | None],
        events: Events,
    ) -> None:
        self.prefill, self.decode, self.seconds, self.events = prefill, decode, seconds, events
        self.sent_s, self.came_s = ([FOREVER] * len(seconds) for _ in range(2))
        self._sender_free_s = [0.0] * len(prefill.servers)
        self._receiver_free_s = [0.0] * len(decode.servers)
        self.answered: OnRequest | None = None
        prefill.answered = self._is_read
        for server in decode.servers:  # clients wait since they asked, not since the cache came
            server.since_s = prefill.servers[0].course.arrival_s

    def _is_read(self, request: int, time_s: float) -> None:
        """A prefill server has made the first token: its cache is sent to a decode server.

        It is not sent where no token is left to decode, or the client has left.
        """
        seconds = self.seconds[request]
        if seconds is None or self.prefill.servers[0].over(request, time_s):
            if self.answered:
                self.answered(request, time_s)
            return
        sender, receiver = self.prefill.place[request], self.decode.choose(request)
        start = max(time_s, self._sender_free_s[sender], self._receiver_free_s[receiver])
        end = self._sender_free_s[sender] = self._receiver_free_s[receiver] = start + seconds
        self.sent_s[request], self.came_s[request] = start, end
        self.decode.servers[receiver].course.arrival_s[request] = end
        self.events.at(end, ARRIVAL, partial(self.decode.servers[receiver].come, request))


def run_pools(
    first: tuple[Server, Server], routers: tuple[Router, Router], load: Load, seconds: list[float | None]
) -> RunningPools:
    """Prefill servers and decode servers like these two, after all requests of a load.

    `seconds` is how long each request's cache is on a link; None for requests of one token, which decode
    nothing.
    """
    events = Events()
    prefill, decode = (RunningReplicas(*each, events) for each in zip(first, routers, strict=True))
    pools = RunningPools(prefill, decode, seconds, events)
    pools.answered = decode.answered = arrive(load, first[0].course.arrival_s, prefill.come, events)
    events.run([*prefill.servers, *decode.servers], linked=True)
    return pools
