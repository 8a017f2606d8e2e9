"""Which requests are within limits, whether waits grow, and the largest stable rate of a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .capacity import Capacity
from .load import Array, Load
from .policy import Policy
from .prices import Prices
from .serve import serve

GROWTH = 0.01  # seconds a second; waits that grow faster are of an overload, by 1% at least
FEW = 50  # requests; the waits of fewer say too little about growth
ENOUGH = 3000  # requests with which a server is saturated


def within(ttft_s: Array, tpot_s: Array, most_ttft_s: float | None, most_tpot_s: float | None) -> Array:
    """Whether each request is within the limits of TTFT and TPOT, which is NaN of a single token."""
    found = np.ones(ttft_s.shape, dtype=bool)
    if most_ttft_s is not None:
        found &= ttft_s <= most_ttft_s
    if most_tpot_s is not None:
        found &= ~(tpot_s > most_tpot_s)
    return found


def growth(arrival_s: Array, queue_s: Array) -> float:
    """Seconds by which waits grow in a second: the slope of a line fitted to all but the first fifth."""
    part = slice(len(arrival_s) // 5, None)
    comes, waits = arrival_s[part] - arrival_s[part].mean(), queue_s[part] - queue_s[part].mean()
    spread = float(comes @ comes)
    return float(comes @ waits) / spread if spread else 0.0


def saturated(prices: Prices, policy: Policy, capacity: Capacity, load: Load) -> float:
    """Requests a second that a server answers while some always wait: no larger rate is stable.

    That is the saturation rule (Baccelli and Foss 1995). `ENOUGH` requests of the load, again and again if it
    has fewer, come at once. The first and the last fifth of answers do not count, as the server fills and
    empties then.
    """
    some = load.only(np.arange(ENOUGH) % len(load))
    at_once = replace(
        some, arrival_s=np.zeros(ENOUGH), users=None, timeout_s=None, leave_s=None, sessions=None
    )
    ends = np.sort(serve(prices, policy, capacity, at_once).course.end_s)
    first, last = len(ends) // 5, len(ends) - 1 - len(ends) // 5
    return (last - first) / float(ends[last] - ends[first])
