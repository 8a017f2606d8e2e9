"""Layer numbers of loops, used for checkpoint names, caches and diagrams."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import prod

from llmir.base.dataclass import dataclass

_SHOWN = 4


@dataclass(frozen=True)
class Layers:
    """The layer numbers for which an op runs: from `first` on, through the loops that contain the op.

    Each entry of `loops`, outermost first, contains the number of iterations and the layers per iteration.

    >>> period = Layers(2).inside(0, times=2, size=6)  # twice, five local layers and a global one
    >>> print(period.inside(0, times=5, size=1), "|", period.inside(5, times=1, size=1))
    layers 2–6, 8–12 | layers 7, 13
    """

    first: int = 0
    loops: tuple[tuple[int, int], ...] = ()

    def inside(self, before: int, times: int, size: int) -> Layers:
        """The layer numbers inside a nested loop, which follows `before` layers in the body."""
        *outer, (last, step) = self.loops or ((1, 0),)
        if times == 1:
            return Layers(self.first + before, self.loops)
        if step == times * size or last == 1:  # both loops number layers without a gap, as one loop
            return Layers(self.first + before, (*outer, (last * times, size)))
        return Layers(self.first + before, (*self.loops, (times, size)))

    @property
    def count(self) -> int:
        """The number of layers."""
        return prod(times for times, _ in self.loops)

    def __iter__(self) -> Iterator[int]:
        steps = (range(0, times * size, size) for times, size in self.loops)
        return (self.first + sum(step) for step in product(*steps))

    def __str__(self) -> str:
        *outer, (times, size) = self.loops or ((1, 1),)
        runs = Layers(self.first, tuple(outer)) if size == 1 else self
        last = times - 1 if size == 1 else 0
        shown = [f"{n}–{n + last}" if last else f"{n}" for n in islice(runs, _SHOWN)]
        more = ["…"] if runs.count > _SHOWN else []
        return f"layer{'s' if self.count > 1 else ''} {', '.join([*shown, *more])}"
