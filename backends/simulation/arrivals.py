"""When requests come: in their time, as users are answered, or as turns of sessions follow answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .events import ARRIVAL, Events
from .load import Load

Told = Callable[[int, float], None]  # a request, and a time


def arrive(load: Load, arrival_s: list[float], come: Told, events: Events) -> Told | None:
    """Requests `come` at their times, which `arrival_s` has in the end: who is to be told of answers, if any.

    Who leaves without an answer counts as answered then.
    """
    if load.users is not None:
        return _users(load, arrival_s, come, events)
    after = load.after.tolist()
    for request, time_s in enumerate(arrival_s):
        if after[request] < 0:
            events.at(time_s, ARRIVAL, partial(come, request))
    return None if load.think_s is None else _turns(load, arrival_s, come, events)


def _users(load: Load, arrival_s: list[float], come: Told, events: Events) -> Told:
    """Each asks again when answered; a front takes what they ask one by one, `apart_s` for each."""
    asks, front_s = iter(range(len(load))), 0.0

    def ask(_: int, time_s: float) -> None:
        nonlocal front_s
        if (request := next(asks, None)) is not None:
            arrival_s[request] = time_s
            front_s = max(front_s, time_s) + load.apart_s
            events.at(front_s, ARRIVAL, partial(come, request))  # after all answers of that time

    for _ in range(min(load.users or 0, len(load))):
        ask(-1, 0.0)
    return ask


def _turns(load: Load, arrival_s: list[float], come: Told, events: Events) -> Told:
    """Each turn but the first comes some time after the answer before it."""
    assert load.think_s is not None
    think_s: list[float] = load.think_s.tolist()
    later = {before: turn for turn, before in enumerate(load.after.tolist()) if before >= 0}

    def think(request: int, time_s: float) -> None:
        if (turn := later.get(request)) is not None:
            arrival_s[turn] = time_s + think_s[turn]
            events.at(arrival_s[turn], ARRIVAL, partial(come, turn))

    return think
