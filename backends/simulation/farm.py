"""A load on several servers, which a router deals out."""

from __future__ import annotations

from functools import partial

from .arrivals import Told, arrive
from .events import ANSWER, Events
from .load import Load
from .router import Router
from .server import Server


class Farm:
    """Servers of a load: `place` says which a request went to, -1 of none, `unanswered` what each has.

    `answered` is told of each request that ends or leaves, when its time has come.
    """

    def __init__(self, first: Server, router: Router, events: Events) -> None:
        self.servers = [first, *(first.beside() for _ in range(router.replicas - 1))]
        self.router, self.events = router, events
        self.place = [-1] * len(first.prompt)
        self.unanswered = [0] * router.replicas
        self.answered: Told | None = None
        for number, server in enumerate(self.servers):
            server.answered = partial(self._ends, number)

    def come(self, request: int, time_s: float) -> None:
        """A request comes, and goes to one of them."""
        self.servers[self.choose(request)].come(request, time_s)

    def choose(self, request: int) -> int:
        """The server that a request will go to."""
        number = self.router.choose(request, self.unanswered)
        self.place[request] = number
        self.unanswered[number] += 1
        return number

    def _ends(self, number: int, request: int) -> None:
        """It counts until its time has come; and what follows may change what the server does next."""
        server = self.servers[number]
        self.events.at(server.now, ANSWER, partial(self._leaves, number, request))
        if self.answered:
            server.until = server.now

    def _leaves(self, number: int, request: int, time_s: float) -> None:
        self.unanswered[number] -= 1
        if self.answered:
            self.answered(request, time_s)


def farm(first: Server, router: Router, load: Load) -> Farm:
    """The first server and others like it, after all requests of a load."""
    events = Events()
    found = Farm(first, router, events)
    found.answered = arrive(load, first.course.arrival_s, found.come, events)
    events.run(found.servers, linked=found.answered is not None)
    return found
