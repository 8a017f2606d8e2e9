"""Prefill and decode servers simulated plainly: whoever is furthest behind does its next step."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.naive_serving import Naive, Request


class NaiveDecoder(Naive):
    """Requests come with what is cached of them, and lose it when they are preempted."""

    def preempt(self, request: Request, front: bool) -> None:
        super().preempt(request, front)
        request.cached = 0


@dataclass
class Journey:
    """A request in both pools, and when its cache is sent and there."""

    read: Request
    rest: Request
    seconds: float
    sender: int = -1
    receiver: int = -1
    sent: float = -1.0
    came: float = -1.0
    end: float | None = field(default=None)


class Plain:
    """Both pools; who has the fewest unanswered requests gets the next, if `least`, else all in turn."""

    def __init__(self, readers: list[Naive], writers: list[NaiveDecoder], least: bool) -> None:
        self.readers, self.least = readers, least
        self.servers: list[Naive] = [*readers, *writers]
        self.links, self.unanswered = [0.0] * len(self.servers), [0] * len(self.servers)
        self.turns: dict[int, int] = {}
        self.events: list[tuple[float, int, Journey]] = []  # 0 is an answer, 1 a prompt that is read, 2 comes

    def pick(self, places: range) -> int:
        turn = self.turns[places.start] = self.turns.get(places.start, -1) + 1
        chosen = min(places, key=self.unanswered.__getitem__) if self.least else places[turn % len(places)]
        self.unanswered[chosen] += 1
        return chosen

    def come(self, place: int, request: Request, now: float) -> None:
        server = self.servers[place]
        server.now = max(server.now, now)
        server.waiting.append(request)

    def happen(self, now: float, kind: int, j: Journey) -> None:
        many = len(self.readers)
        if kind == 2 and j.sender < 0:
            j.read.arrival, j.sender = now, self.pick(range(many))
            self.come(j.sender, j.read, now)
        elif kind == 2:
            self.come(j.receiver, j.rest, now)
        else:
            self.unanswered[j.sender if kind else j.receiver] -= 1
            if kind and j.rest.generate:
                j.receiver = self.pick(range(many, len(self.servers)))
                j.sent = max(now, self.links[j.sender], self.links[j.receiver])
                j.came = self.links[j.sender] = self.links[j.receiver] = j.sent + j.seconds
                self.events.append((j.came, 2, j))
            else:
                j.end = now

    def step(self, server: Naive, all_: list[Journey]) -> None:
        kind = int(server in self.readers)
        part = [(j, j.read if kind else j.rest) for j in all_]
        before = [len(r.times) for _, r in part]
        (server.mixed if server.engine in ("vllm", "trtllm") else server.apart)()
        for (j, r), had in zip(part, before, strict=True):
            if len(r.times) > had and len(r.times) == r.generate:
                self.events.append((server.now, kind, j))

    def run(self, all_: list[Journey], users: int | None) -> None:
        later = list(all_)
        first = [(0.0, 2, later.pop(0)) for _ in range(users or 0)]
        self.events += first or [(j.read.arrival, 2, j) for j in all_]
        while True:
            busy = [s for s in self.servers if s.waiting or s.running]
            behind = min(busy, key=lambda s: s.now, default=None)
            self.events.sort(key=lambda event: event[:2])
            if self.events and (behind is None or self.events[0][0] <= behind.now):
                now, kind, j = self.events.pop(0)
                self.happen(now, kind, j)
                if users and j.end == now and kind < 2 and later:
                    self.events.append((now, 2, later.pop(0)))
            elif behind is None:
                return
            else:
                self.step(behind, all_)
