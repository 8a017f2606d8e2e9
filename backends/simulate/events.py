"""Servers side by side, and what happens to them in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter

from .server import Server

ANSWER, ARRIVAL = 0, 1  # of events at one time answers go first


class Events:
    """Arrivals and answers to come. Each happens once all servers have been simulated up to its time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, kind: int, act: Callable[[float], None]) -> None:
        """Has `act` called with the time, then. Events of one time and kind keep the order of these calls."""
        heappush(self._heap, (time_s, kind, next(self._numbers), act))

    @property
    def next_s(self) -> float:
        """When the next event is; infinity where there is none."""
        return self._heap[0][0] if self._heap else inf

    def run(self, servers: Sequence[Server], linked: bool) -> None:
        """All events, until no server has anything to do.

        Servers are `linked` where an answer of one may bring a request to another. Then the server that is
        furthest behind goes first, and only as far as the next one. Else each goes to the next event alone.
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
        """All steps that begin before the next event, which an answer may bring forward.

        Of steps that begin at one time the first server's is first, and so are the requests that it brings.
        """
        while times := sorted(
            (s.begins_s, i) for i, s in enumerate(servers) if s.begins_s < self.next_s and s.busy
        ):
            (_, first), (other, second) = times[0], times[1] if len(times) > 1 else (inf, len(servers))
            servers[first].advance(min(self.next_s, nextafter(other, inf) if first < second else other))
