"""When requests come: at their own times, when users are answered, or as later turns of sessions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .events import ARRIVAL, Events
from .load import Load

OnRequest = Callable[[int, float], None]  # called with a request and the time in seconds


def arrive(load: Load, arrival_s: list[float], come: OnRequest, events: Events) -> OnRequest | None:
    """Has `come` called for each request of a load when it arrives, and notes the time in `arrival_s`.

    What is to be called when a request is answered or given up; None where answers bring no requests.
    """
    if load.users is not None:
        return _closed_loop(load, arrival_s, come, events)
    after = load.after.tolist()
    for request, time_s in enumerate(arrival_s):
        if after[request] < 0:
            events.at(time_s, ARRIVAL, partial(come, request))
    return None if load.think_s is None else _later_turns(load, arrival_s, come, events)


def _closed_loop(load: Load, arrival_s: list[float], come: OnRequest, events: Events) -> OnRequest:
    """Each user asks again when answered. Requests reach the server `apart_s` apart at least."""
    requests, front_s = iter(range(len(load))), 0.0

    def ask(_: int, time_s: float) -> None:
        nonlocal front_s
        if (request := next(requests, None)) is not None:
            arrival_s[request] = time_s
            front_s = max(front_s, time_s) + load.apart_s
            events.at(front_s, ARRIVAL, partial(come, request))  # after all answers of that time

    for _ in range(min(load.users or 0, len(load))):
        ask(-1, 0.0)
    return ask


def _later_turns(load: Load, arrival_s: list[float], come: OnRequest, events: Events) -> OnRequest:
    """Each turn of a session but the first comes `think_s` after the answer to the one before it."""
    assert load.think_s is not None
    think_s: list[float] = load.think_s.tolist()
    next_turn = {before: turn for turn, before in enumerate(load.after.tolist()) if before >= 0}

    def think(request: int, time_s: float) -> None:
        if (turn := next_turn.get(request)) is not None:
            arrival_s[turn] = time_s + think_s[turn]
            events.at(arrival_s[turn], ARRIVAL, partial(come, turn))

    return think
