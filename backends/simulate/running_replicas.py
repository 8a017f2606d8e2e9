"""Replicas while they run: a router sends each request of a load to one of them."""

from __future__ import annotations

from functools import partial

from .arrivals import OnRequest, arrive
from .events import ANSWER, Events
from .load import Load
from .router import Router
from .server import Server


class RunningReplicas:
    """Servers that are alike, and the router that sends requests to them.

    `place` is the replica of each request, -1 where it was sent to none. `unanswered` counts the requests of
    each replica that have not ended. `answered` is called for each request that ends or is given up, at that
    time.
    """

    def __init__(self, first: Server, router: Router, events: Events) -> None:
        self.servers = [first, *(first.beside() for _ in range(router.replicas - 1))]
        self.router, self.events = router, events
        self.place = [-1] * len(first.prompt)
        self.unanswered = [0] * router.replicas
        self.answered: OnRequest | None = None
        for number, server in enumerate(self.servers):
            server.answered = partial(self._ends, number)

    def come(self, request: int, time_s: float) -> None:
        """A request arrives; the router sends it to a replica."""
        self.servers[self.choose(request)].come(request, time_s)

    def choose(self, request: int) -> int:
        """The replica that the router chooses for a request, which counts there from now on."""
        number = self.router.choose(request, self.unanswered)
        self.place[request] = number
        self.unanswered[number] += 1
        return number

    def _ends(self, number: int, request: int) -> None:
        """A server has simulated the end of a request, maybe ahead of the other servers.

        The request counts as unanswered until they have reached that time. Where the answer brings another
        request, the server stops there, as that request may come to it.
        """
        server = self.servers[number]
        self.events.at(server.now, ANSWER, partial(self._leaves, number, request))
        if self.answered:
            server.until = server.now

    def _leaves(self, number: int, request: int, time_s: float) -> None:
        self.unanswered[number] -= 1
        if self.answered:
            self.answered(request, time_s)


def run_replicas(first: Server, router: Router, load: Load) -> RunningReplicas:
    """The first server and others like it, after all requests of a load."""
    events = Events()
    replicas = RunningReplicas(first, router, events)
    replicas.answered = arrive(load, first.course.arrival_s, replicas.come, events)
    events.run(replicas.servers, linked=replicas.answered is not None)
    return replicas
