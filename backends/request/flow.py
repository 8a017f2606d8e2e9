"""A closed loop counted in steps: how many requests decode, and how many steps read prompts.

What a step holds does not depend on how long it takes. Of G tokens an answer each request decodes in G − 1
steps, so that of n requests n / (G − 1) end in a step, and as many prompts begin. By Little's law (1961)
those not decoding are as many as begin in a step, times the steps in which they wait and are read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_HALVINGS = 60


class Flow(NamedTuple):
    """A lane of a closed loop: `decoding` requests on average, while so many prompts `begin` in a step.

    One prompt fills `service` steps, all of them a share `busy` of all steps; a `share` of them reads some
    prompt. In `reading` steps one is read, or those before it are.
    """

    decoding: float
    begin: float
    service: float
    share: float
    reading: float

    @property
    def busy(self) -> float:
        """The share of what steps could read that they read."""
        return min(self.begin * self.service, 1.0)

    @property
    def prompts(self) -> float:
        """How many a step reads that reads any; below one where a prompt takes several steps."""
        return self.begin / self.share


def flow(users: float, later: int, new: int, budget: int | None) -> Flow:
    """What so many users settle at, with `new` tokens a prompt and `later` ones after an answer's first.

    A request comes while a step is under way, and may be read from the next one on. `budget` are the tokens
    of a step, of which decodes take one each; without one, a step reads all prompts that have come.
    """
    # Decodes and the prompts that come for them fill a step at most: n + n · P / (G − 1) = budget.
    low, high = 0.0, min(users, budget * later / (later + new)) if budget else users
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _flow(middle, users, later, new, budget)
        there = middle + found.begin * (1 + found.reading)
        low, high = (middle, high) if there < users else (low, middle)
    found = _flow(high, users, later, new, budget)
    return found._replace(reading=max(1.0, (users - high) / found.begin - 1))


def _flow(decoding: float, users: float, later: int, new: int, budget: int | None) -> Flow:
    """Where so many decode: prompts come as to a queue, which serves c = 1 / S of them in a step.

    It is empty with probability (1 − ρ)^c: 1 − ρ as any queue for c = 1, Poisson's for c → ∞. More than x
    prompts are ahead with a probability of ρ exp(−2x (x / N + 1 − ρ)), as of N periodic streams of equal
    services (Roberts and Virtamo 1991), here of the N other users; of many that are Pollaczek's ρ / 2 (1 − ρ)
    on average. Where another prompt follows, one that takes several steps shares its last step with it.
    """
    begin = decoding / later
    if budget is None:
        return Flow(decoding, begin, 0.0, -math.expm1(-begin), 1.0)
    service = new / (budget - decoding)
    found = Flow(decoding, begin, service, 1.0, 1.0)
    busy, idle = found.busy, 1 - found.busy
    ahead = busy / (idle + math.sqrt(idle**2 + 8 / (math.pi * (users - 1)))) if users > 1 else 0.0
    if service <= 1:
        return found._replace(share=1 - idle ** (1 / service), reading=1 + service * ahead)
    steps = busy * service + idle * math.ceil(service)
    return found._replace(share=min(1.0, begin * steps), reading=steps + service * ahead)
