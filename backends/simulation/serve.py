"""A load served: requests given to a server as they come, or as its users are answered."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from .load import Load
from .pipelined import server_of
from .policy import Policy
from .prices import Prices
from .server import Capacity, Course, Server


def serve(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> Server:
    """A server after all requests of a load; in a closed loop their arrivals are those of its `course`."""
    course = Course(load.arrival_s.tolist())
    server = server_of(prices, policy, capacity, load, course)
    if load.sessions is not None:
        _turns(server, load)
    elif load.users is None:
        for request, time_s in enumerate(course.arrival_s):
            server.advance(time_s)
            server.come(request, time_s)
    else:
        _users(server, load)
    server.advance()
    return server


def _turns(server: Server, load: Load) -> None:
    """The first turns of sessions come in their time, each other one some time after the answer before it."""
    assert load.think_s is not None
    due = [
        (time_s, i)
        for i, (time_s, n) in enumerate(zip(load.arrival_s.tolist(), load.after, strict=True))
        if n < 0
    ]
    later = {int(n): i for i, n in enumerate(load.after) if n >= 0}
    think_s: list[float] = load.think_s.tolist()

    def answered(request: int) -> None:
        if (turn := later.get(request)) is not None:
            time_s = server.now + think_s[turn]
            heappush(due, (time_s, turn))
            server.until = min(server.until, time_s)

    server.answered = answered
    heapify(due)
    while due:
        server.advance(due[0][0])
        time_s, request = heappop(due)
        server.course.arrival_s[request] = time_s
        server.come(request, time_s)
        if not due:
            server.advance()


def _users(server: Server, load: Load) -> None:
    """Each asks again when answered; what they ask comes one by one, `apart_s` after another at least."""
    asks, due, last_s = iter(range(len(load))), deque[tuple[float, int]](), 0.0

    def ask(_: int) -> None:
        nonlocal last_s
        if (request := next(asks, None)) is None:
            return
        server.course.arrival_s[request] = server.now
        if not load.apart_s:
            server.come(request, server.now)
            return
        last_s = max(last_s, server.now) + load.apart_s
        due.append((last_s, request))
        server.until = min(server.until, last_s)

    server.answered = ask
    for _ in range(min(load.users or 0, len(load))):
        ask(-1)
    while due:
        time_s, request = due[0]
        server.advance(time_s)
        due.popleft()
        server.come(request, time_s)
        if not due:
            server.advance()
