"""A load on one server."""

from __future__ import annotations

from llmir.garbage import uncollected

from .capacity import Capacity
from .course import Course
from .farm import farm
from .load import Load
from .pipelined import server_of
from .policy import Policy
from .prices import Prices
from .router import FIRST, ROUTERS
from .server import Server


@uncollected()
def serve(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> Server:
    """A server after all requests of a load; where answers bring requests, `course` says when these came."""
    course = Course(load.arrival_s.tolist())
    server = server_of(prices, policy, capacity, load, course)
    if load.users is not None or load.sessions is not None:
        return farm(server, ROUTERS[FIRST](1, load, capacity), load).servers[0]
    for request, time_s in enumerate(course.arrival_s):  # no events: all is known before
        server.advance(time_s)
        server.come(request, time_s)
    server.advance()
    return server
