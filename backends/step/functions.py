"""Results of a step as functions of B, T and C: recorded once on a tape, then run as code.

`FunctionParts` splits a function by the inputs on which values depend, so that values shared by many points
are computed once. `StepFunction` caches the part that depends on B and T, and evaluates the part that depends
on C. `StepFunctionPair` returns some results first and the others later from the same evaluation.
`JitFunction` calls the original function until compiled code is worth its cost: for many points, or after
many calls.
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

STEP_SYMBOLS = ("C",)  # symbols that change between steps
GRID = 100_000  # number of points from which numba evaluates the part of the context, if requested
LONGEST = (
    1000  # operations of a numba loop: compiling a hundred takes a second, and this number most of a minute
)
FEW = 0.5  # share of distinct pairs below which they are computed once
EXACT = 1 << 53  # whole numbers up to which a float64 is exact
SAMPLE, MOSTLY = (
    1 << 12,
    0.9,
)  # number of points, and the share of distinct pairs, from which pairs count as distinct


class FunctionParts:
    """The parts of a function, each compiled by a printer on first use.

    There are two parts for values that change between steps or do not, and four parts by dependencies;
    `others` are related functions of all sizes. `by` is the printer for large grids.
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
        """The outputs at many points; `places` contains the indices of their pairs of B and T."""
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
            # Intermediate values are small, except gathered ones.
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
        """The printer for a part whose values differ at each point of a grid."""
        pays = prod(shape) >= GRID and len(self[part].live) <= LONGEST
        return self.by if pays else "numpy"

    def _loop(self, part: str) -> Callable[..., tuple[Any, ...]]:
        """A part as a loop; values that do not depend on the context are read once per row."""
        function, depends = self[part], self.function.depending(STEP_SYMBOLS)
        return numba.compiled(function, {name for n, name in function.inputs.items() if n not in depends})


def point_count(*values: Number) -> int:
    """The number of points after broadcasting."""
    return prod(np.broadcast_shapes(*map(np.shape, values)))


def distinct_pairs(batch: Number, new: Number, points: int) -> tuple[Number, Number, Any]:
    """The distinct pairs, and the index of each point's pair; if that is not faster, the points
    themselves.
    """
    shape = np.broadcast_shapes(np.shape(batch), np.shape(new))
    if prod(shape) < max(points, 2):
        return batch, new, None
    base = float(np.max(new)) + 1
    if base * (float(np.max(batch)) + 1) > EXACT:  # a float could not distinguish pairs
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

SIZES = ("B", "T", "C")  # sequences, new tokens of each, and cached tokens of each
COUNTS = ("B", "T")  # symbols with a minimum of 1
MOST = 1 << 16  # tokens up to which code drops branches that affect no time
SOON = 64  # pairs of B and T after which shorter code is worth its compilation
CACHED_PAIRS = 512  # pairs of B and T with a cached early part
MANY = 1 << 17  # number of points with one new token from which code is faster
OFTEN = 64  # single points after which code is faster

FigureFunction = Callable[[Binding], tuple[Number, ...]]
C = TypeVar("C", bound="StepFunction")


def record_tape(new: int | None = None) -> tuple[Tape, Binding]:
    """A tape, and a binding to its symbols; if T is constant, `new` is its value."""
    tape = Outline(SCALARS)
    symbols: dict[str, Number] = {name: tape.symbol(name) for name in SIZES}
    return tape, Binding(**(symbols if new is None else {**symbols, "T": new}))


class StepFunction:
    """Results as a function of B, T and C, with a cached part for B and T.

    For the first single points, the original kernels are called. After `after` pairs of B and T, code for up
    to `MOST` tokens is used; it omits branches that the bounds exclude. `new` is T if it is constant. `by`
    selects how large grids are evaluated: "numpy" or "numba". TypeError if the results do not accept symbols.
    """

    def __init__(
        self, figures: FigureFunction, new: int | None = None, after: int = SOON, by: str = "numpy"
    ) -> None:
        tape, at = record_tape(new)
        self.outline, self.by, self.after = Function.of(tape, SIZES, figures(at)), by, after
        self._pairs = 0  # requested up to now
        self._kept: dict[tuple[int, int], tuple[Callable[..., Any], tuple[Any, ...], FunctionParts]] = {}

    def parts(self, function: Function, **others: Function) -> FunctionParts:
        """The parts of the function."""
        return FunctionParts(function, others, self.by)

    @cached_property
    def called(self) -> FunctionParts:
        """The code with separate calls of unchanged kernels; it is quick to build, and used for single
        points.
        """
        return self.parts(self.outline)

    @cached_property
    def short(self) -> FunctionParts:
        """The code without branches that never apply while `holds` is true."""
        function, holds = prune(self.outline, COUNTS, MOST)
        return self.parts(function, holds=holds)

    @cached_property
    def whole(self) -> FunctionParts:
        """The code with all kernels inlined."""
        return self.parts(inline_calls(self.outline))

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding: numbers, or arrays of its whole shape."""
        batch, new, context = (at.symbols[name] for name in SIZES)
        return self.grid(batch, new, context) if at.shape else self.point(batch, new, context)

    def point(self, batch: int, new: int, context: int) -> tuple[Number, ...]:
        """The figures at one point, with the precision of Python numbers."""
        late, kept, _ = self._kept.get((batch, new)) or self._early(batch, new)
        found: tuple[Number, ...] = late(context, *kept)
        return found

    def _early(self, batch: int, new: int) -> tuple[Callable[..., Any], tuple[Any, ...], FunctionParts]:
        """The results for a pair of B and T, and the functions that continue from them."""
        self._pairs += 1
        short = self._pairs > self.after and self.short.run("holds")(batch, new, 0)[0]
        parts = self.short if short else self.called
        found = parts.run("late"), parts.run("early")(batch, new), parts
        if len(self._kept) >= CACHED_PAIRS:
            self._kept.clear()
        self._kept[batch, new] = found
        return found

    def grid(self, batch: Number, new: Number, context: Number) -> tuple[Number, ...]:
        """The results at many points; if there are few distinct pairs of B and T, or contexts, each is
        evaluated once.
        """
        shape = np.broadcast_shapes(np.shape(batch), np.shape(new), np.shape(context))
        batch, new, places = distinct_pairs(batch, new, prod(shape))
        self._pairs += point_count(batch, new)
        short = self._pairs > self.after and np.all(self.short.run("holds", "numpy")(batch, new, 0)[0])
        return (self.short if short else self.whole).grid(shape, (batch, new, context), places)


class StepFunctionPair(StepFunction):
    """Figures of single points, and `more` figures that reuse the values of the first."""

    def __init__(
        self, figures: FigureFunction, more: FigureFunction, new: int | None = None, after: int = SOON
    ) -> None:
        def both(at: Binding) -> tuple[Number, ...]:
            first = figures(at)
            self._count = len(first)
            return (*first, *more(at))

        super().__init__(both, new, after)

    def parts(self, function: Function, **others: Function) -> FunctionParts:
        """The parts that compute the first results, and the parts that compute `more`."""
        of = function.outputs[: self._count], function.outputs[self._count :]
        first, more = (Function(function.tape, function.inputs, outputs) for outputs in of)
        first, more = first.before(more)
        return super().parts(first, more=more, **others)

    def both(self, at: Binding) -> tuple[tuple[Number, ...], Callable[[], tuple[Number, ...]]]:
        """The first results at a point, and a function that returns the others."""
        batch, new, context = at.symbols.values()
        found = self.point(batch, new, context)
        parts = self._kept[batch, new][2]
        return found[: self._count], lambda: parts.run("more")(batch, new, context, *found[self._count :])


class JitFunction(Generic[C]):
    """Calls the original function, or compiled code if that is faster: for many points, or after many calls.

    `make` compiles the code for a number of new tokens; None means any number.
    """

    def __init__(self, figures: FigureFunction, make: Callable[[FigureFunction, int | None], C]) -> None:
        self.figures, self.make = figures, make
        self._points = 0
        self._codes: dict[int | None, C] = {}

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding."""
        return (self.code(at) or self.figures)(at)

    def code(self, at: Binding) -> C | None:
        """The code for a binding, if code is faster than direct evaluation."""
        if type(at) is not Binding or tuple(at.symbols) != SIZES or (at.xp is not SCALARS and not at.shape):
            return None
        self._points += 1
        new = at.symbols["T"]
        always = 1 if np.ndim(new) == 0 and new == 1 else None
        # A grid contains another length; recorded times support it, but this code does not.
        many = bool(always) and prod(at.shape) >= MANY
        one = not np.ndim(new) and not np.ndim(at.symbols["B"])  # batch, with any contexts
        pays = many or (one and self._points > OFTEN)
        if not pays:
            return None
        if always not in self._codes:
            self._codes[always] = self.make(self.figures, always)
        return self._codes[always]
