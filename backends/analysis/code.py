"""Figures of a step as code: what prices do to symbols is recorded once, and runs without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from llmir.backends.cost.tape import PRINTERS, Function, Tape, blocks
from llmir.dim import Binding, Number
from llmir.dim.binding import once
from llmir.namespace import SCALARS

SIZES = ("B", "T", "C")  # sequences, new tokens of each, cached ones
LATE = ("C",)  # what changes from one step to the next
KEPT = 512  # pairs of B and T of which the early part is kept
MANY = 1 << 17  # points at once, of one new token each, from which code pays
OFTEN = 64  # single points after which it does
FEW = 0.5  # share of points that are distinct pairs, below which those are computed once

Figures = Callable[[Binding], tuple[Number, ...]]
C = TypeVar("C", bound="Code")


def recorded(new: int | None = None) -> tuple[Tape, Binding]:
    """A tape, and a binding to its symbols; `new` is T where that is always so."""
    tape = Tape(SCALARS)
    symbols: dict[str, Number] = {name: tape.symbol(name) for name in SIZES}
    return tape, Binding(**(symbols if new is None else {**symbols, "T": new}))


class Code:
    """Figures of B, T and C: what depends on B and T alone, which is kept, and then the rest.

    `new` is T where that is always so. TypeError for figures that symbols do not go through.
    """

    def __init__(self, figures: Figures, new: int | None = None) -> None:
        tape, at = recorded(new)
        self._keep(Function.of(tape, SIZES, figures(at)))

    def _keep(self, whole: Function) -> None:
        self.whole = whole
        self.early, self.late = whole.parted(LATE)
        self._kept: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._compiled: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {}

    @cached_property
    def _parts(self) -> dict[str, Function]:
        """The whole in pieces: two by what does not change between steps, four by what each depends on."""
        of_new, others = self.whole.parted(["B", "C"], "t")
        of_batch, rest = others.parted(["C"])
        depends = self.whole.depending(["B"])
        of_context, last = rest.parted([name for n, name in rest.inputs.items() if n in depends], "m")
        two = {"whole": self.whole, "early": self.early, "late": self.late}
        return {**two, "of_new": of_new, "of_batch": of_batch, "of_context": of_context, "last": last}

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding: numbers, or arrays of its whole shape."""
        batch, new, context = (at.symbols[name] for name in SIZES)
        return self.grid(batch, new, context) if at.shape else self.point(batch, new, context)

    def point(self, batch: int, new: int, context: int) -> tuple[Number, ...]:
        """The figures at one point, as exact as Python is."""
        kept = self._kept.get((batch, new))
        if kept is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            kept = self._kept[batch, new] = self.run("early", "python")(batch, new)
        return self.run("late", "python")(context, *kept)

    def grid(self, batch: Number, new: Number, context: Number) -> tuple[Number, ...]:
        """The figures at many points; what few pairs of B and T, or few contexts, decide is computed once."""
        shape = np.broadcast_shapes(np.shape(batch), np.shape(new), np.shape(context))
        batch, new, places = _pairs(batch, new, prod(shape))
        values: dict[int, Any] = dict(zip(self.whole.inputs, (batch, new, context), strict=True))

        def run(part: str, places: Any = None) -> None:
            function = self._parts[part]
            given = [values[n] for n in function.inputs]
            if places is not None:
                few = [n in self.early.outputs for n in function.inputs]
                given = [blocks.Gathered(x, places) if is_ else x for is_, x in zip(few, given, strict=True)]
            values.update(zip(function.outputs, self.run(part, "numpy")(*given), strict=True))

        points = prod(shape)
        if places is None and _points(batch, new) == points:
            run("whole")
        elif places is None and _points(new, context) < points:
            for part in ("of_new", "of_batch", "of_context", "last"):
                run(part)
        else:
            run("early")
            run("late", places)
        return tuple(np.broadcast_to(values[n], shape) for n in self.whole.outputs)

    def text(self, printer: str) -> str:
        """Both parts as source, `early` and `late`."""
        parts = (self.early, "early"), (self.late, "late")
        return "\n".join(PRINTERS[printer].text(*part) for part in parts)

    def run(self, part: str, printer: str) -> Callable[..., tuple[Any, ...]]:
        """A part by a printer, compiled when it is first run."""
        found = self._compiled.get((part, printer))
        if found is None:
            found = self._compiled[part, printer] = PRINTERS[printer].compiled(self._parts[part])
        return found


def _points(*values: Number) -> int:
    return prod(np.broadcast_shapes(*map(np.shape, values)))


def _pairs(batch: Number, new: Number, points: int) -> tuple[Number, Number, Any]:
    """Each pair of them once, and where the points find theirs; as they are, where that would not pay."""
    shape = np.broadcast_shapes(np.shape(batch), np.shape(new))
    if prod(shape) < max(points, 2):
        return batch, new, None
    base = float(np.max(new)) + 1
    values, places = once(np.broadcast_to(np.asarray(batch * base + new, dtype=np.float64), shape))
    if len(values) > FEW * points:
        return batch, new, None
    return np.floor(values / base), values % base, places


class TwoCode(Code):
    """Figures of single points, and `more` of the same, which read what the first have come by."""

    def __init__(self, figures: Figures, more: Figures, new: int | None = None) -> None:
        tape, at = recorded(new)
        first, others = (Function.of(tape, SIZES, each(at)) for each in (figures, more))
        self._count = len(first.outputs)
        first, self._more = first.before(others)
        self._keep(first)

    @cached_property
    def _parts(self) -> dict[str, Function]:
        return {"early": self.early, "late": self.late, "more": self._more}

    def more(self, at: Binding, found: Sequence[Number]) -> tuple[Number, ...]:
        """The others at a point, of which the first were `found`."""
        return self.run("more", "python")(*at.symbols.values(), *found[self._count :])


class Often(Generic[C]):
    """Figures as they are said, and as code from where that pays: at many points, or after many.

    `make` makes code of them for so many new tokens, None for any.
    """

    def __init__(self, figures: Figures, make: Callable[[Figures, int | None], C]) -> None:
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
        pays = always and prod(at.shape) >= MANY if at.shape else self._points > OFTEN
        if not pays:
            return None
        if always not in self._codes:
            self._codes[always] = self.make(self.figures, always)
        return self._codes[always]
