"""Figures of a step as functions of B, T and C: recorded once on a tape, then run as code.

`FunctionParts` splits a function by what each part depends on, so that values shared by many points are
computed once. `StepFunction` keeps the part of B and T and evaluates the part of C; `StepFunctionPair`
returns some figures at first and the others later from the same evaluation. `JitFunction` calls the
original function until code pays off: at many points, or after many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from llmir.backends.tape import numba, numpy
from llmir.backends.tape.languages import PRINTERS
from llmir.backends.tape.outline import Outline, inline_calls, prune
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS, Number
from llmir.ir.sizes.binding import Binding, once

# Functions in parts

STEP_SYMBOLS = ("C",)  # what changes from one step to the next
GRID = 100_000  # points from which what the context decides is a loop of numba, where that is asked for
LONGEST = 1000  # operations of such a loop: compiling a hundred takes a second, so many most of a minute
FEW = 0.5  # share of points that are distinct pairs, below which those are computed once
EXACT = 1 << 53  # whole numbers up to which a float64 is exact
SAMPLE, MOSTLY = 1 << 12, 0.9  # points, and the share of them that are distinct, from which most pairs are


class FunctionParts:
    """The parts of a function, each compiled by a printer when it first runs.

    Two by what does not change between steps, four by what each depends on, and `others`: functions of all
    sizes that belong to it. Large grids run as `by` says.
    """

    def __init__(self, function: Function, others: Mapping[str, Function], by: str) -> None:
        self.function, self.others, self.by = function, others, by
        self._compiled: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {}

    @cached_property
    def _two(self) -> dict[str, Function]:
        early, late = self.function.parted(STEP_SYMBOLS)
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
                given = [
                    numpy.GatherInput(x, places) if is_ else x for is_, x in zip(few, given, strict=True)
                ]
            found = zip(function.outputs, self.run(part, printer)(*given), strict=True)
            # What goes through is small, but for what is gathered.
            values.update((n, value) for n, value in found if n not in values or places is not None)

        points = prod(shape)
        if places is None and point_count(batch, new) == points:
            run("whole")
        elif places is None and point_count(new, context) < points:
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
        function, depends = self[part], self.function.depending(STEP_SYMBOLS)
        return numba.compiled(function, {name for n, name in function.inputs.items() if n not in depends})


def point_count(*values: Number) -> int:
    """How many points they are together."""
    return prod(np.broadcast_shapes(*map(np.shape, values)))


def distinct_pairs(batch: Number, new: Number, points: int) -> tuple[Number, Number, Any]:
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


# Functions of B, T and C

SIZES = ("B", "T", "C")  # sequences, new tokens of each, cached ones
COUNTS = ("B", "T")  # those of which there is one at least
MOST = 1 << 16  # tokens up to which code leaves out what decides no price
SOON = 64  # pairs of B and T after which it pays to find out what that is
CACHED_PAIRS = 512  # pairs of B and T of which the early part is kept
MANY = 1 << 17  # points at once, of one new token each, from which code pays
OFTEN = 64  # single points after which it does

FigureFunction = Callable[[Binding], tuple[Number, ...]]
C = TypeVar("C", bound="StepFunction")


def record_tape(new: int | None = None) -> tuple[Tape, Binding]:
    """A tape, and a binding to its symbols; `new` is T where that is always so."""
    tape = Outline(SCALARS)
    symbols: dict[str, Number] = {name: tape.symbol(name) for name in SIZES}
    return tape, Binding(**(symbols if new is None else {**symbols, "T": new}))


class StepFunction:
    """Figures of B, T and C: what depends on B and T alone, which is kept, and then the rest.

    The first single points call kernels as they are. After so many pairs of B and T their choices are
    bounded, and up to `MOST` tokens it is code without what decides nothing there. `new` is T where that is
    always so. Large grids run as `by` says, "numpy" or "numba". TypeError for figures that symbols do not go
    through.
    """

    def __init__(
        self, figures: FigureFunction, new: int | None = None, after: int = SOON, by: str = "numpy"
    ) -> None:
        tape, at = record_tape(new)
        self.outline, self.by, self.after = Function.of(tape, SIZES, figures(at)), by, after
        self._pairs = 0  # that were asked for
        self._kept: dict[tuple[int, int], tuple[Callable[..., Any], tuple[Any, ...], FunctionParts]] = {}

    def parts(self, function: Function, **others: Function) -> FunctionParts:
        """Those of the figures, as a function."""
        return FunctionParts(function, others, self.by)

    @cached_property
    def called(self) -> FunctionParts:
        """With kernels as they are, each called: soon made, for single points."""
        return self.parts(self.outline)

    @cached_property
    def short(self) -> FunctionParts:
        """Without what decides nothing, where it `holds`."""
        function, holds = prune(self.outline, COUNTS, MOST)
        return self.parts(function, holds=holds)

    @cached_property
    def whole(self) -> FunctionParts:
        """With all of all kernels."""
        return self.parts(inline_calls(self.outline))

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding: numbers, or arrays of its whole shape."""
        batch, new, context = (at.symbols[name] for name in SIZES)
        return self.grid(batch, new, context) if at.shape else self.point(batch, new, context)

    def point(self, batch: int, new: int, context: int) -> tuple[Number, ...]:
        """The figures at one point, as exact as Python is."""
        late, kept, _ = self._kept.get((batch, new)) or self._early(batch, new)
        found: tuple[Number, ...] = late(context, *kept)
        return found

    def _early(self, batch: int, new: int) -> tuple[Callable[..., Any], tuple[Any, ...], FunctionParts]:
        """What a batch of so many new tokens decides, and what goes on from there."""
        self._pairs += 1
        short = self._pairs > self.after and self.short.run("holds")(batch, new, 0)[0]
        parts = self.short if short else self.called
        found = parts.run("late"), parts.run("early")(batch, new), parts
        if len(self._kept) >= CACHED_PAIRS:
            self._kept.clear()
        self._kept[batch, new] = found
        return found

    def grid(self, batch: Number, new: Number, context: Number) -> tuple[Number, ...]:
        """The figures at many points; what few pairs of B and T, or few contexts, decide is computed once."""
        shape = np.broadcast_shapes(np.shape(batch), np.shape(new), np.shape(context))
        batch, new, places = distinct_pairs(batch, new, prod(shape))
        self._pairs += point_count(batch, new)
        short = self._pairs > self.after and np.all(self.short.run("holds", "numpy")(batch, new, 0)[0])
        return (self.short if short else self.whole).grid(shape, (batch, new, context), places)


class StepFunctionPair(StepFunction):
    """Figures of single points, and `more` of the same, which read what the first have come by."""

    def __init__(
        self, figures: FigureFunction, more: FigureFunction, new: int | None = None, after: int = SOON
    ) -> None:
        def both(at: Binding) -> tuple[Number, ...]:
            first = figures(at)
            self._count = len(first)
            return (*first, *more(at))

        super().__init__(both, new, after)

    def parts(self, function: Function, **others: Function) -> FunctionParts:
        """Those of the first, and `more`."""
        of = function.outputs[: self._count], function.outputs[self._count :]
        first, more = (Function(function.tape, function.inputs, outputs) for outputs in of)
        first, more = first.before(more)
        return super().parts(first, more=more, **others)

    def both(self, at: Binding) -> tuple[tuple[Number, ...], Callable[[], tuple[Number, ...]]]:
        """The first at a point, and what gives the others."""
        batch, new, context = at.symbols.values()
        found = self.point(batch, new, context)
        parts = self._kept[batch, new][2]
        return found[: self._count], lambda: parts.run("more")(batch, new, context, *found[self._count :])


class JitFunction(Generic[C]):
    """Figures as they are said, and as code from where that pays: at many points, or after many.

    `make` makes code of them for so many new tokens, None for any.
    """

    def __init__(self, figures: FigureFunction, make: Callable[[FigureFunction, int | None], C]) -> None:
        self.figures, self.make = figures, make
        self._points = 0
        self._codes: dict[int | None, C] = {}

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding."""
        return (self.code(at) or self.figures)(at)

    def code(self, at: Binding) -> C | None:
        """The code for a binding, where that pays."""
        if type(at) is not Binding or tuple(at.symbols) != SIZES or (at.xp is not SCALARS and not at.shape):
            return None
        self._points += 1
        new = at.symbols["T"]
        always = 1 if np.ndim(new) == 0 and new == 1 else None
        # Of other lengths a grid has one, of which prices know as much as of 1 and code does not.
        many = bool(always) and prod(at.shape) >= MANY
        one = not np.ndim(new) and not np.ndim(at.symbols["B"])  # batch, with any contexts
        pays = many or (one and self._points > OFTEN)
        if not pays:
            return None
        if always not in self._codes:
            self._codes[always] = self.make(self.figures, always)
        return self._codes[always]
