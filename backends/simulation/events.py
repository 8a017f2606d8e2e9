"""Servers side by side, and what happens to them in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf, nextafter

from .server import Server

ANSWER, ARRIVAL = 0, 1  # what goes first of things at one time


class Events:
    """Things that happen to servers: each is done when no server has a step that begins before its time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, kind: int, act: Callable[[float], None]) -> None:
        """Do something then, which is told the time: answers first, then arrivals, as they were said."""
        heappush(self._heap, (time_s, kind, next(self._numbers), act))

    @property
    def next_s(self) -> float:
        """When the next one is."""
        return self._heap[0][0] if self._heap else inf

    def run(self, servers: Sequence[Server], linked: bool) -> None:
        """All of them, until no server has anything to do.

        Of servers that are `linked` an answer of one may send something to another, so that each goes only as
        far as the one that is furthest behind, and stops at an answer.
        """
        while True:
            if linked:
                self._abreast(servers)
            else:
                until = self.next_s
                for server in servers:
                    server.advance(until)
            if not self._heap:
                return
            time_s, _, _, act = heappop(self._heap)
            act(time_s)

    def _abreast(self, servers: Sequence[Server]) -> None:
        """All steps that begin before the next event, which an answer may bring forward.

        Of steps that begin at one time the first server's goes first: what they send then goes in that order.
        """
        while times := sorted(
            (s.begins_s, i) for i, s in enumerate(servers) if s.begins_s < self.next_s and s.busy
        ):
            (_, first), (other, second) = times[0], times[1] if len(times) > 1 else (inf, len(servers))
            servers[first].advance(min(self.next_s, nextafter(other, inf) if first < second else other))
