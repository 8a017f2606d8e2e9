"""Several servers, simulated in the order of time: arrivals, replicas, prefill and decode servers.

Order of the file: the event queue (`Events`), the arrival of requests at fixed times, after responses or as
later turns of sessions (`schedule_arrivals`), replicas (`run_replicas`), prefill and decode servers with
caches sent between them (`run_pools`), and a load on one server (`serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter

from llmir.base.gc_pause import pause_gc

from .load import Load
from .router import FIRST, ROUTERS, Router
from .server import (
    FOREVER,
    Capacity,
    Policy,
    RequestTimeline,
    Server,
    fast_loop,
    is_deterministic,
    is_uncontended,
)
from .server_kinds import server_of
from .step_times import StepTimes

# Events

ANSWER, ARRIVAL = 0, 1  # responses precede other events at equal times


class Events:
    """Future arrivals and responses. An event occurs once all servers have been simulated up to its time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, kind: int, act: Callable[[float], None]) -> None:
        """Schedule a call of `act`, which gets the time. Events of equal time and kind run in the order of
        scheduling.
        """
        heappush(self._heap, (time_s, kind, next(self._numbers), act))

    @property
    def next_s(self) -> float:
        """The time of the next event; infinity without events."""
        return self._heap[0][0] if self._heap else inf

    def run(self, servers: Sequence[Server], linked: bool) -> None:
        """Run all events until no server has work left.

        Servers are `linked` if a response of one server may cause a request to another. In this case, the
        server whose time is earliest runs first, up to the time of the next server. Otherwise, each server
        runs to the next event separately.
        """
        while True:
            if linked:
                self._advance_in_order(servers)
            else:
                until = self.next_s
                for server in servers:
                    server.advance(until)
            if not self._heap:
                return
            time_s, _, _, act = heappop(self._heap)
            act(time_s)

    def _advance_in_order(self, servers: Sequence[Server]) -> None:
        """Run all steps that begin before the next event; a response may move this event forward.

        Steps that begin at equal times run in the order of servers, and so do the requests that they cause.
        """
        while times := sorted(
            (s.begins_s, i) for i, s in enumerate(servers) if s.begins_s < self.next_s and s.busy
        ):
            (_, first), (other, second) = times[0], times[1] if len(times) > 1 else (inf, len(servers))
            servers[first].advance(min(self.next_s, nextafter(other, inf) if first < second else other))


# Arrivals

OnRequest = Callable[[int, float], None]  # called with a request and the time in seconds


def schedule_arrivals(
    load: Load, arrival_s: list[float], come: OnRequest, events: Events
) -> OnRequest | None:
    """For each request of a load, schedule a call of `come` at its arrival, and record the time in
    `arrival_s`.

    Returns a function to call when a request completes or is given up; None if responses cause no requests.
    """
    if load.users is not None:
        return _closed_loop(load, arrival_s, come, events)
    after = load.after.tolist()
    for request, time_s in enumerate(arrival_s):
        if after[request] < 0:
            events.at(time_s, ARRIVAL, partial(come, request))
    return None if load.think_s is None else _later_turns(load, arrival_s, come, events)


def _closed_loop(load: Load, arrival_s: list[float], come: OnRequest, events: Events) -> OnRequest:
    """In a closed loop, each user sends a request after a response. Requests reach the server at least
    `apart_s` apart.
    """
    requests, front_s = iter(range(len(load))), 0.0

    def ask(_: int, time_s: float) -> None:
        nonlocal front_s
        if (request := next(requests, None)) is not None:
            arrival_s[request] = time_s
            front_s = max(front_s, time_s) + load.apart_s
            events.at(front_s, ARRIVAL, partial(come, request))  # after all responses of this time

    for _ in range(min(load.users or 0, len(load))):
        ask(-1, 0.0)
    return ask


def _later_turns(load: Load, arrival_s: list[float], come: OnRequest, events: Events) -> OnRequest:
    """In a session, each turn after the first arrives `think_s` after the previous response."""
    assert load.think_s is not None
    think_s: list[float] = load.think_s.tolist()
    next_turn = {before: turn for turn, before in enumerate(load.after.tolist()) if before >= 0}

    def think(request: int, time_s: float) -> None:
        if (turn := next_turn.get(request)) is not None:
            arrival_s[turn] = time_s + think_s[turn]
            events.at(arrival_s[turn], ARRIVAL, partial(come, turn))

    return think


# Replicas


class RunningReplicas:
    """Equal servers, and the router that sends requests to them.

    `place` is the replica of each request; -1 if it was not sent to any. `unanswered` counts the unfinished
    requests of each replica. `answered` is called when a request ends or is given up, with the time.
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
        """The replica that the router chooses for a request; from now on, the request counts there."""
        number = self.router.choose(request, self.unanswered)
        self.place[request] = number
        self.unanswered[number] += 1
        return number

    def _ends(self, number: int, request: int) -> None:
        """A server has simulated the end of a request, possibly ahead of the other servers.

        The request counts as unfinished until the other servers have reached this time. If the response
        causes another request, the server stops there, because this request may arrive at it.
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
    """Run a load on several replicas, which are equal to the first server."""
    events = Events()
    replicas = RunningReplicas(first, router, events)
    replicas.answered = schedule_arrivals(load, first.course.arrival_s, replicas.come, events)
    events.run(replicas.servers, linked=replicas.answered is not None)
    return replicas


# Prefill and decode servers


class RunningPools:
    """Replicas that prefill, replicas that decode, and their links.

    Each server has one link, which carries one cache at a time, in the order of completed prefills. A
    transfer occupies the links of sender and receiver for the `seconds` of its request. `sent_s` is the start
    and `came_s` the end of the transfer, by request.
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
        for server in decode.servers:  # clients wait since their request, not since the transfer of the cache
            server.since_s = prefill.servers[0].course.arrival_s

    def _is_read(self, request: int, time_s: float) -> None:
        """A prefill server has computed the first token, so the cache is sent to a decode server.

        The cache is not sent if there is no further token to decode, or if the client has left.
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
    """Prefill servers and decode servers that equal these two servers, after all requests of a load.

    `seconds` is the transfer time of each request's cache; None for requests with one token, which do not
    decode.
    """
    events = Events()
    prefill, decode = (RunningReplicas(*each, events) for each in zip(first, routers, strict=True))
    pools = RunningPools(prefill, decode, seconds, events)
    pools.answered = decode.answered = schedule_arrivals(
        load, first[0].course.arrival_s, prefill.come, events
    )
    events.run([*prefill.servers, *decode.servers], linked=True)
    return pools


# One server


@pause_gc()
def serve(prices: StepTimes, policy: Policy, capacity: Capacity, load: Load) -> Server:
    """A server after all requests of a load; its `course` contains the times of the requests."""
    course = RequestTimeline(load.arrival_s.tolist())
    server = server_of(prices, policy, capacity, load, course)
    if load.users is not None or load.sessions is not None:
        return run_replicas(server, ROUTERS[FIRST](1, load, capacity), load).servers[0]
    comes_s, lone, request = [*course.arrival_s, FOREVER], is_deterministic(server), 0
    while request < len(load):  # no events, as all arrivals are known before
        server.advance(comes_s[request])
        if lone and is_uncontended(server):
            request = fast_loop(server, request, comes_s)
        else:
            server.come(request, comes_s[request])
            request += 1
    server.advance()
    return server
