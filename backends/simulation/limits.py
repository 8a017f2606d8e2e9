"""How much of a load is served in time, and how much could be: goodput, and the largest stable rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .capacity import Capacity
from .load import Array, Load
from .policy import Policy
from .prices import Prices
from .serve import serve

GROWTH = 0.01  # seconds a second by which waits grow in a server that is overloaded: 1% more comes than goes
FEW = 50  # requests; through the waits of fewer there is no line to speak of
ENOUGH = 3000  # requests that saturate a server


def within(ttft_s: Array, tpot_s: Array, most_ttft_s: float | None, most_tpot_s: float | None) -> Array:
    """Of each request, whether its first token and later ones come in time; TPOT is NaN of a single token."""
    found = np.ones(ttft_s.shape, dtype=bool)
    if most_ttft_s is not None:
        found &= ttft_s <= most_ttft_s
    if most_tpot_s is not None:
        found &= ~(tpot_s > most_tpot_s)
    return found


def growth(arrival_s: Array, queue_s: Array) -> float:
    """Seconds by which waits grow in a second: the slope of the line through them, after the first fifth."""
    part = slice(len(arrival_s) // 5, None)
    comes, waits = arrival_s[part] - arrival_s[part].mean(), queue_s[part] - queue_s[part].mean()
    spread = float(comes @ comes)
    return float(comes @ waits) / spread if spread else 0.0


def saturated(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> float:
    """Requests a second that a server answers which always has some that wait: no larger rate is stable.

    That is the saturation rule (Baccelli and Foss 1995). The first and the last fifth of answers are left
    out, while the server fills and empties. A shorter load is repeated.
    """
    some = load.only(np.arange(ENOUGH) % len(load))
    at_once = replace(
        some, arrival_s=np.zeros(ENOUGH), users=None, timeout_s=None, leave_s=None, sessions=None
    )
    ends = np.sort(serve(prices, policy, capacity, at_once).course.end_s)
    first, last = len(ends) // 5, len(ends) - 1 - len(ends) // 5
    return (last - first) / float(ends[last] - ends[first])
