"""Seconds of all prices of a step that depend on one size: what many points share is evaluated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from llmir.backends.cost.op_time import Price
from llmir.backends.tape.outline import Outline, whole, within
from llmir.backends.tape.record import Function
from llmir.backends.tape.tape import PRINTERS
from llmir.base.array_namespace import SCALARS, Number
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim, symbols

from .functions import COUNTS, MANY, Code
from .sweeps import sweeps

MOST = 1 << 24  # tokens up to which what decides nothing is left out
# What a price is asked for, by name: seconds alone, in a graph that hides such a share of launches, or both.
KINDS: dict[str, Callable[[Price, Binding, float], tuple[Number, ...]]] = {
    "alone": lambda price, at, hidden: (price.time(at),),
    "graph": lambda price, at, hidden: price.in_graph(at, hidden)[1:],
    "both": lambda price, at, hidden: price.in_graph(at, hidden),
}


class Group:
    """Prices with how often each stage runs them, which depend on a product of symbols alone, or on more."""

    def __init__(
        self, size: Dim | None, prices: Mapping[Price, list[int]], hidden: float, symbolic: bool
    ) -> None:
        self.size, self.prices, self.hidden, self.symbolic = size, prices, hidden, symbolic
        self._codes: dict[str, Callable[[Binding], Sequence[Number]]] = {}

    @property
    def late(self) -> bool:
        """Whether more decides it than how many sequences and new tokens there are."""
        return self.size is None or "C" in symbols(self.size)

    def __call__(self, kind: str, at: Binding) -> Sequence[Number]:
        """Seconds on each stage, one kind after another.

        At many points they are there once for each value of the size, and gathered.
        """
        points, places = at, None
        if self.size is not None and at.shape:
            points, places = at.apart(self.size)
        figures = partial(self.sums, kind)
        if self.symbolic and math.prod(points.shape) >= MANY and type(points) is Binding:
            if kind not in self._codes:
                self._codes[kind] = self._code(kind)
            found = self._codes[kind](points)
        else:
            found = sweeps(figures, points)
        return found if places is None else [seconds.take(places) for seconds in found]

    def sums(self, kind: str, at: Binding) -> tuple[Number, ...]:
        """The same by the prices themselves; of symbols too."""
        found: list[Number] = []
        for price, repeats in self.prices.items():
            times = KINDS[kind](price, at, self.hidden)
            found = found or [0.0] * (len(times) * len(repeats))
            for stage, repeat in enumerate(repeats):
                if repeat:
                    for place, time in zip(range(stage, len(found), len(repeats)), times, strict=True):
                        found[place] = found[place] + repeat * time
        return tuple(found)

    def _code(self, kind: str) -> Callable[[Binding], Sequence[Number]]:
        """The same as code, of arrays."""
        size = self.size
        if size is None:
            return Code(partial(self.sums, kind))
        tape = Outline(SCALARS)
        found = Function.of(tape, "x", self.sums(kind, Binding.only(size, tape.symbol("x"))))
        counts = set(size.terms[0][0]) <= set(COUNTS)
        compiled = cache(lambda function: PRINTERS["numpy"].compiled(function(found)))

        def code(at: Binding) -> Sequence[Number]:
            values = at(size)
            few = counts and values.max() <= MOST
            seconds: Sequence[Number] = compiled(_few if few else whole)(values)
            return seconds

        return code


def _few(outline: Function) -> Function:
    return within(outline, "x", MOST).function
