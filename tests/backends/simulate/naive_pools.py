"""What prefill and decode pools add to plain servers: some read, and send caches to the others."""

from __future__ import annotations

from collections.abc import Sequence

from .naive_cluster import Journey, World
from .naive_server import Naive, Request
from .naive_trtllm import Patient


class NaiveDecoder(Patient):
    """Requests come with what is cached of them, and lose it when they are preempted."""

    def preempt(self, r: Request, place: int = 0) -> None:
        super().preempt(r, place)
        r.cached = 0


class Pools(World):
    """Each server has one link, which one cache goes over at a time."""

    def __init__(self, readers: Sequence[Naive], writers: Sequence[Naive], least: bool = False) -> None:
        super().__init__([*readers, *writers], least)
        self.readers, self.writers = range(len(readers)), range(len(readers), len(self.servers))
        self.links = [0.0] * len(self.servers)

    def come(self, now: float, j: Journey) -> None:
        if j.sender < 0:
            j.sender = self.pick(self.readers)
            self.servers[j.sender].come(j.read, now)
        elif j.rest:
            j.rest.arrival = j.read.arrival
            self.servers[j.receiver].come(j.rest, now)

    def answer(self, now: float, j: Journey) -> None:
        stays = j.read.times and j.read.arrival + j.read.stays > now
        if j.receiver < 0 and j.rest and j.rest.generate and stays:
            self.unanswered[j.sender] -= 1
            j.receiver = self.pick(self.writers)
            j.sent = max(now, self.links[j.sender], self.links[j.receiver])
            j.came = self.links[j.sender] = self.links[j.receiver] = j.sent + j.seconds
            self.events.append((j.came, 1, j))
        else:
            self.unanswered[j.sender if j.receiver < 0 else j.receiver] -= 1
            self.answered(now, j)
