"""How many tokens each step of speculative decoding yields, drawn at random."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any

import numpy as np

from llmir.base.values import Immutable

GROUP = 256  # requests that are drawn together
GROUPS = 64  # groups that are kept
Array = np.ndarray[Any, np.dtype[Any]]


class Yields(Immutable):
    """Tokens that each step yields of each request: the drafts before the first wrong one, and one more.

    `tokens` drafts are verified in a step, each right with chance `acceptance`. Of each request as many steps
    are drawn as it could need, `lengths`: its tokens after the first one. A group of requests is drawn at
    once.
    """

    tokens: int
    acceptance: float
    seed: int
    lengths: Array
    _drawn: OrderedDict[int, Array]

    def __init__(self, tokens: int, acceptance: float, seed: int, lengths: Array) -> None:
        vars(self).update(
            tokens=tokens, acceptance=acceptance, seed=seed, lengths=lengths, _drawn=OrderedDict()
        )

    @cached_property
    def _ends(self) -> list[int]:
        """Where the draws of each request end among those of its group."""
        found = np.cumsum(self.lengths)
        before = np.concatenate([[0], found])[: len(found) : GROUP]
        ends: list[int] = (found - np.repeat(before, GROUP)[: len(found)]).tolist()
        return ends

    def __call__(self, request: int) -> Array:
        """The tokens of each step of a request, one at least."""
        number, place = divmod(request, GROUP)
        first = self._ends[request - 1] if place else 0
        return self._group(number)[first : self._ends[request]]

    def _group(self, number: int) -> Array:
        known = self._drawn
        if number not in known:
            if len(known) >= GROUPS:
                known.popitem(last=False)
            last = min((number + 1) * GROUP, len(self.lengths)) - 1
            chance = np.random.default_rng((self.seed, 2, number)).random(self._ends[last])
            found = np.ones(len(chance), dtype=np.int64)
            for n in range(1, self.tokens + 1):
                found += chance < self.acceptance**n
            known[number] = found
        return known[number]
