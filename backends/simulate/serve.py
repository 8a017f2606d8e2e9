"""A load on one server."""

from __future__ import annotations

from llmir.base.gc_pause import uncollected

from .calm import alone, calmly, quiet
from .capacity import Capacity
from .course import FOREVER, Course
from .load import Load
from .policy import Policy
from .prices import Prices
from .router import FIRST, ROUTERS
from .running_replicas import run_replicas
from .server import Server
from .servers import server_of


@uncollected()
def serve(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> Server:
    """A server after all requests of a load; its `course` has their times."""
    course = Course(load.arrival_s.tolist())
    server = server_of(prices, policy, capacity, load, course)
    if load.users is not None or load.sessions is not None:
        return run_replicas(server, ROUTERS[FIRST](1, load, capacity), load).servers[0]
    comes_s, lone, request = [*course.arrival_s, FOREVER], alone(server), 0
    while request < len(load):  # no events, as all arrivals are known before
        server.advance(comes_s[request])
        if lone and quiet(server):
            request = calmly(server, request, comes_s)
        else:
            server.come(request, comes_s[request])
            request += 1
    server.advance()
    return server
