"""A load served: requests given to a server as they come, or as its users are answered."""

from __future__ import annotations

from .load import Load
from .policy import Policy
from .prices import Prices
from .server import Capacity, Course, Server


def serve(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> Server:
    """A server after all requests of a load; in a closed loop their arrivals are those of its `course`."""
    course = Course(load.arrival_s.tolist())
    server = Server(prices, policy, capacity, load, course)
    if load.users is None:
        for request, time_s in enumerate(course.arrival_s):
            server.advance(time_s)
            server.come(request, time_s)
    else:
        comes = iter(range(len(load)))

        def ask(answered: int) -> None:
            if (request := next(comes, None)) is not None:
                course.arrival_s[request] = server.now
                server.come(request, server.now)

        server.answered = ask
        for _ in range(min(load.users, len(load))):
            ask(-1)
    server.advance()
    return server
