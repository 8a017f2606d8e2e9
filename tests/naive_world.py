"""Servers side by side simulated plainly: whoever is furthest behind does its next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.naive_serving import Naive, Request


class NaiveDecoder(Naive):
    """Requests come with what is cached of them, and lose it when they are preempted."""

    def preempt(self, request: Request, front: bool) -> None:
        super().preempt(request, front)
        request.cached = 0


@dataclass
class Journey:
    """A request where it is read; in pools also where it decodes, and how long its cache is on its way.

    A turn of a session comes some time after the one before it.
    """

    read: Request
    rest: Request | None = None
    seconds: float = 0.0
    before: Journey | None = None
    think: float = 0.0
    sender: int = -1
    receiver: int = -1
    sent: float = -1.0
    came: float = -1.0


class World:
    """Replicas, or readers and writers; the `least` loaded one gets the next request, else all in turn."""

    def __init__(self, readers: Sequence[Naive], writers: Sequence[Naive] = (), least: bool = False) -> None:
        self.servers, self.first, self.least = [*readers, *writers], len(readers), least
        self.links, self.unanswered = ([0] * len(self.servers) for _ in range(2))
        self.turns, self.front = {True: -1, False: -1}, 0.0
        self.events: list[tuple[float, int, Journey]] = []  # 0 is an answer, 1 comes

    def pick(self, reads: bool) -> int:
        places = range(self.first) if reads else range(self.first, len(self.servers))
        self.turns[reads] += 1
        turn = places[self.turns[reads] % len(places)]
        chosen = min(places, key=self.unanswered.__getitem__) if self.least else turn
        self.unanswered[chosen] += 1
        return chosen

    def come(self, now: float, j: Journey) -> None:
        if j.sender < 0:
            j.sender = self.pick(reads=True)
            self.servers[j.sender].come(j.read, now)
        elif j.rest:
            j.rest.arrival = j.read.arrival
            self.servers[j.receiver].come(j.rest, now)

    def answer(self, now: float, j: Journey) -> None:
        self.unanswered[j.sender if j.receiver < 0 else j.receiver] -= 1
        if j.receiver < 0 and j.rest and j.rest.generate and j.read.made and j.read.deadline > now:
            j.receiver = self.pick(reads=False)
            j.sent = max(now, self.links[j.sender], self.links[j.receiver])
            j.came = self.links[j.sender] = self.links[j.receiver] = j.sent + j.seconds
            self.events.append((j.came, 1, j))
            return
        for turn in [k for k in self.all if k.before is j]:
            turn.read.arrival = now + turn.think
            self.events.append((turn.read.arrival, 1, turn))
        self.ask(now)

    def ask(self, now: float) -> None:
        """A user asks for the next one, of those that nobody has asked for."""
        if self.later:
            self.later[0].read.arrival = now
            self.front = max(self.front, now) + self.apart
            self.events.append((self.front, 1, self.later.pop(0)))

    def run(self, all_: list[Journey], users: int | None = None, apart: float = 0.0) -> None:
        self.all, self.later, self.apart = all_, list(all_) if users else [], apart
        for _ in range(users or 0):
            self.ask(0.0)
        if not users:
            self.events += [(j.read.arrival, 1, j) for j in all_ if not j.before]
        whose = {id(r): j for j in all_ for r in (j.read, j.rest)}
        while True:
            self.events.sort(key=lambda event: event[:2])
            behind = min((s for s in self.servers if s.busy), key=lambda s: s.now, default=None)
            if self.events and (behind is None or self.events[0][0] <= behind.now):
                now, kind, j = self.events.pop(0)
                (self.come if kind else self.answer)(now, j)
            elif behind is None:
                return
            else:
                self.events += [(behind.now, 0, whose[id(r)]) for r in behind.go()]
