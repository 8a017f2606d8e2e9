"""What replicas, users and sessions add to a plain server: whoever is furthest behind does its next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .naive_server import Naive, Request


@dataclass
class Journey:
    """A request and where it is read; a turn of a session comes some time after the one before it.

    In pools it is also the rest of it, where that decodes, and how long its cache is on its way.
    """

    read: Request
    before: Journey | None = None
    think: float = 0.0
    sender: int = -1
    rest: Request | None = None
    seconds: float = 0.0
    receiver: int = -1
    sent: float = -1.0
    came: float = -1.0


class World:
    """Replicas; the `least` loaded one gets the next request, else all in turn."""

    def __init__(self, servers: Sequence[Naive], least: bool = False) -> None:
        self.servers, self.least = servers, least
        self.unanswered, self.turns = [0] * len(servers), Counter[range]()
        self.front = 0.0
        self.events: list[tuple[float, int, Journey]] = []  # 0 is an answer, 1 comes

    def pick(self, places: range) -> int:
        turn = places[self.turns[places] % len(places)]
        self.turns[places] += 1
        chosen = min(places, key=self.unanswered.__getitem__) if self.least else turn
        self.unanswered[chosen] += 1
        return chosen

    def come(self, now: float, j: Journey) -> None:
        j.sender = self.pick(range(len(self.servers)))
        self.servers[j.sender].come(j.read, now)

    def answer(self, now: float, j: Journey) -> None:
        self.unanswered[j.sender] -= 1
        self.answered(now, j)

    def answered(self, now: float, j: Journey) -> None:
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
        whose = {r: j for j in all_ for r in (j.read, j.rest)}
        while True:
            self.events.sort(key=lambda event: event[:2])
            busy = [s for s in self.servers if s.waiting or s.late or s.running]
            behind = min(busy, key=lambda s: s.now, default=None)
            if self.events and (behind is None or self.events[0][0] <= behind.now):
                now, kind, j = self.events.pop(0)
                (self.come if kind else self.answer)(now, j)
            elif behind is None:
                return
            else:
                self.events += [(r.end, 0, whose[r]) for r in behind.go()]
