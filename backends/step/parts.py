"""A function of B, T and C in parts, by what each depends on: what many points share is computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from llmir.backends.tape import numba, numpy
from llmir.backends.tape.record import Function
from llmir.backends.tape.tape import PRINTERS
from llmir.base.array_namespace import Number
from llmir.ir.sizes.binding import once

LATE = ("C",)  # what changes from one step to the next
GRID = 100_000  # points from which what the context decides is a loop of numba, where that is asked for
LONGEST = 1000  # operations of such a loop: compiling a hundred takes a second, so many most of a minute
FEW = 0.5  # share of points that are distinct pairs, below which those are computed once
EXACT = 1 << 53  # whole numbers up to which a float64 is exact
SAMPLE, MOSTLY = 1 << 12, 0.9  # points, and the share of them that are distinct, from which most pairs are


class Parts:
    """The parts of a function, each compiled by a printer when it first runs.

    Two by what does not change between steps, four by what each depends on, and `others`: functions of all
    sizes that belong to it. Large grids run as `by` says.
    """

    def __init__(self, function: Function, others: Mapping[str, Function], by: str) -> None:
        self.function, self.others, self.by = function, others, by
        self._compiled: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {}

    @cached_property
    def _two(self) -> dict[str, Function]:
        early, late = self.function.parted(LATE)
        return {"whole": self.function, "early": early, "late": late, **self.others}

    @cached_property
    def _four(self) -> dict[str, Function]:
        of_new, others = self.function.parted(["B", "C"], "t")
        of_batch, rest = others.parted(["C"])
        depends = self.function.depending(["B"])
        of_context, last = rest.parted([name for n, name in rest.inputs.items() if n in depends], "m")
        last = replace(last, outputs=tuple(n for n in last.outputs if n not in last.inputs))
        return {"of_new": of_new, "of_batch": of_batch, "of_context": of_context, "last": last}

    def __getitem__(self, part: str) -> Function:
        return self._two[part] if part in self._two else self._four[part]

    def text(self, printer: str) -> str:
        """`early` and `late` as source."""
        return "\n".join(PRINTERS[printer].text(self[part], part) for part in ("early", "late"))

    def run(self, part: str, printer: str = "python") -> Callable[..., tuple[Any, ...]]:
        """A part by a printer."""
        found = self._compiled.get((part, printer))
        if found is None:
            made = self._loop(part) if printer == "numba" else PRINTERS[printer].compiled(self[part])
            found = self._compiled[part, printer] = made
        return found

    def grid(self, shape: tuple[int, ...], at: tuple[Number, ...], places: Any) -> tuple[Number, ...]:
        """The outputs at many points, of which `places` says where they find their pair of B and T."""
        batch, new, context = at
        if not np.ndim(batch) and not np.ndim(new):
            late = self.run("late", self._printer("late", shape))
            return tuple(np.broadcast_to(x, shape) for x in late(context, *self.run("early")(batch, new)))
        values: dict[int, Any] = dict(zip(self.function.inputs, (batch, new, context), strict=True))

        def run(part: str, places: Any = None, printer: str = "numpy") -> None:
            function = self[part]
            given = [values[n] for n in function.inputs]
            if places is not None:
                few = [n in self["early"].outputs for n in function.inputs]
                given = [numpy.Gathered(x, places) if is_ else x for is_, x in zip(few, given, strict=True)]
            found = zip(function.outputs, self.run(part, printer)(*given), strict=True)
            # What goes through is small, but for what is gathered.
            values.update((n, value) for n, value in found if n not in values or places is not None)

        points = prod(shape)
        if places is None and count(batch, new) == points:
            run("whole")
        elif places is None and count(new, context) < points:
            for part in ("of_new", "of_batch", "of_context"):
                run(part)
            run("last", printer=self._printer("last", shape))
        else:
            run("early")
            run("late", places)
        return tuple(np.broadcast_to(values[n], shape) for n in self.function.outputs)

    def _printer(self, part: str, shape: tuple[int, ...]) -> str:
        """That of a part which each point of a grid has for itself."""
        pays = prod(shape) >= GRID and len(self[part].live) <= LONGEST
        return self.by if pays else "numpy"

    def _loop(self, part: str) -> Callable[..., tuple[Any, ...]]:
        """A part as a loop: what the context does not decide is read once for a row."""
        function, depends = self[part], self.function.depending(LATE)
        return numba.compiled(function, {name for n, name in function.inputs.items() if n not in depends})


def count(*values: Number) -> int:
    """How many points they are together."""
    return prod(np.broadcast_shapes(*map(np.shape, values)))


def pairs(batch: Number, new: Number, points: int) -> tuple[Number, Number, Any]:
    """Each pair of them once, and where the points find theirs; as they are, where that would not pay."""
    shape = np.broadcast_shapes(np.shape(batch), np.shape(new))
    if prod(shape) < max(points, 2):
        return batch, new, None
    base = float(np.max(new)) + 1
    if base * (float(np.max(batch)) + 1) > EXACT:  # a float would not tell pairs apart
        return batch, new, None
    both = np.broadcast_to(np.asarray(batch * base + new, dtype=np.float64), shape)
    some = both.reshape(-1)[:: max(1, both.size // SAMPLE)]
    if len(np.unique(some)) > MOSTLY * len(some):
        return batch, new, None
    values, places = once(both)
    if len(values) > FEW * points:
        return batch, new, None
    return np.floor(values / base), values % base, places
