"""Several servers simulated plainly: whoever is furthest behind does its next step, an event a token."""

from __future__ import annotations

from collections.abc import Callable

from tests.naive_serving import Naive, Request

Choose = Callable[[Request, list[int]], int]  # by how many requests of each are not answered


def deal(servers: list[Naive], requests: list[Request], choose: Choose, users: int | None) -> list[int]:
    """Serve all requests; the server of each."""
    sent: list[list[Request]] = [[] for _ in servers]
    place = [-1] * len(requests)
    later = list(requests)
    # When requests come; in a closed loop the next one does, whichever that is then.
    comes = [0.0] * users if users else [r.arrival for r in requests]
    while True:
        behind = min((s for s in servers if s.waiting or s.running), key=lambda s: s.now, default=None)
        if later and comes and (behind is None or comes[0] <= behind.now):
            now, request = comes.pop(0), later.pop(0)
            request.arrival = now
            to_answer = [sum(len(r.times) < r.generate or r.times[-1] > now for r in all_) for all_ in sent]
            number = choose(request, to_answer)
            place[request.number] = number
            sent[number].append(request)
            servers[number].now = max(servers[number].now, now)
            servers[number].waiting.append(request)
        elif behind is None:
            return place
        else:
            before = unanswered(sent[servers.index(behind)])
            (behind.mixed if behind.engine in ("vllm", "trtllm") else behind.apart)()
            answered = before - unanswered(sent[servers.index(behind)])
            comes = sorted(comes + [behind.now] * (answered if users else 0))


def unanswered(requests: list[Request]) -> int:
    """How many have tokens to come."""
    return sum(len(r.times) < r.generate for r in requests)
