"""Figures of a step as code: what prices do to symbols is recorded once, and runs without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from llmir.backends.cost.tape import PRINTERS, Function, Outline, Tape, Within, blocks, loops, whole, within
from llmir.dim import Binding, Number
from llmir.dim.binding import once
from llmir.namespace import SCALARS

SIZES = ("B", "T", "C")  # sequences, new tokens of each, cached ones
COUNTS = ("B", "T")  # those of which there is one at least
MOST = 1 << 16  # tokens up to which code leaves out what decides no price
SHORT = 1024  # pairs of B and T from which it pays to find out what that is
LATE = ("C",)  # what changes from one step to the next
KEPT = 512  # pairs of B and T of which the early part is kept
MANY = 1 << 17  # points at once, of one new token each, from which code pays
GRID = 100_000  # points from which what the context decides is a loop of numba, where that is asked for
LONGEST = 1000  # operations of such a loop: compiling a hundred takes a second, so many most of a minute
OFTEN = 64  # single points after which it does
FEW = 0.5  # share of points that are distinct pairs, below which those are computed once
SAMPLE, MOSTLY = 1 << 12, 0.9  # points, and the share of them that are distinct, from which most pairs are

Figures = Callable[[Binding], tuple[Number, ...]]
C = TypeVar("C", bound="Code")


def recorded(new: int | None = None) -> tuple[Tape, Binding]:
    """A tape, and a binding to its symbols; `new` is T where that is always so."""
    tape = Outline(SCALARS)
    symbols: dict[str, Number] = {name: tape.symbol(name) for name in SIZES}
    return tape, Binding(**(symbols if new is None else {**symbols, "T": new}))


class Code:
    """Figures of B, T and C: what depends on B and T alone, which is kept, and then the rest.

    `new` is T where that is always so. Up to `most` tokens it is code without what decides nothing there.
    Large grids run as `by` says, "numpy" or "numba". TypeError for figures that symbols do not go through.
    """

    def __init__(self, figures: Figures, new: int | None = None, most: int = MOST, by: str = "numpy") -> None:
        self.by = by
        tape, at = recorded(new)
        self._record(Function.of(tape, SIZES, figures(at)), most)

    def _record(self, outline: Function, most: int) -> None:
        self.outline = outline
        self._keep(within(outline, COUNTS, most) if most else whole(outline))

    def _keep(self, code: Within) -> None:
        vars(self).pop("_parts", None)
        self.whole, self._counts, self._most = code
        self.early, self.late = self.whole.parted(LATE)
        self._kept: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._compiled: dict[tuple[str, str], Callable[..., tuple[Any, ...]]] = {}

    @cached_property
    def _parts(self) -> dict[str, Function]:
        """The whole in pieces: two by what does not change between steps, four by what each depends on."""
        of_new, others = self.whole.parted(["B", "C"], "t")
        of_batch, rest = others.parted(["C"])
        depends = self.whole.depending(["B"])
        of_context, last = rest.parted([name for n, name in rest.inputs.items() if n in depends], "m")
        two = {"whole": self.whole, "early": self.early, "late": self.late, "counts": self._counts}
        return {**two, "of_new": of_new, "of_batch": of_batch, "of_context": of_context, "last": last}

    @cached_property
    def beyond(self: C) -> C:
        """The code for any number of tokens."""
        code = copy(self)
        code._keep(whole(self.outline))
        return code

    def holding(self: C, batch: Number, new: Number) -> C:
        """The code for so many tokens."""
        many = isinstance(batch, np.ndarray) or isinstance(new, np.ndarray)
        counts = self.run("counts", "numpy" if many else "python")(batch, new, 0)
        ends = [end(n) for n in counts for end in (np.min, np.max)] if many else counts
        return self if not ends or (min(ends) >= 1 and max(ends) <= self._most) else self.beyond

    def __call__(self, at: Binding) -> tuple[Number, ...]:
        """The figures at a binding: numbers, or arrays of its whole shape."""
        batch, new, context = (at.symbols[name] for name in SIZES)
        return self.grid(batch, new, context) if at.shape else self.point(batch, new, context)

    def point(self, batch: int, new: int, context: int) -> tuple[Number, ...]:
        """The figures at one point, as exact as Python is."""
        kept = self._kept.get((batch, new))
        if kept is None:
            if (code := self.holding(batch, new)) is not self:
                return code.point(batch, new, context)
            kept = self._early(batch, new)
        return self.run("late", "python")(context, *kept)

    def _early(self, batch: int, new: int) -> tuple[Any, ...]:
        """What a batch of so many new tokens decides, which is kept."""
        if (batch, new) not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[batch, new] = self.run("early", "python")(batch, new)
        return self._kept[batch, new]

    def grid(self, batch: Number, new: Number, context: Number) -> tuple[Number, ...]:
        """The figures at many points; what few pairs of B and T, or few contexts, decide is computed once."""
        shape = np.broadcast_shapes(np.shape(batch), np.shape(new), np.shape(context))
        batch, new, places = _pairs(batch, new, prod(shape))
        return self.holding(batch, new)._grid(shape, (batch, new, context), places)

    def _grid(self, shape: tuple[int, ...], at: tuple[Number, ...], places: Any) -> tuple[Number, ...]:
        batch, new, context = at
        if not np.ndim(batch) and not np.ndim(new):
            return tuple(
                np.broadcast_to(x, shape)
                for x in self.run("late", self._printer("late", shape))(context, *self._early(batch, new))
            )
        values: dict[int, Any] = dict(zip(self.whole.inputs, (batch, new, context), strict=True))

        def run(part: str, places: Any = None, printer: str = "numpy") -> None:
            function = self._parts[part]
            given = [values[n] for n in function.inputs]
            if places is not None:
                few = [n in self.early.outputs for n in function.inputs]
                given = [blocks.Gathered(x, places) if is_ else x for is_, x in zip(few, given, strict=True)]
            found = zip(function.outputs, self.run(part, printer)(*given), strict=True)
            # What goes through is small, but for what is gathered.
            values.update((n, value) for n, value in found if n not in values or places is not None)

        points = prod(shape)
        if places is None and _points(batch, new) == points:
            run("whole")
        elif places is None and _points(new, context) < points:
            for part in ("of_new", "of_batch", "of_context"):
                run(part)
            run("last", printer=self._printer("last", shape))
        else:
            run("early")
            run("late", places)
        return tuple(np.broadcast_to(values[n], shape) for n in self.whole.outputs)

    def text(self, printer: str) -> str:
        """Both parts as source, `early` and `late`, for any number of tokens."""
        parts = (self.beyond.early, "early"), (self.beyond.late, "late")
        return "\n".join(PRINTERS[printer].text(*part) for part in parts)

    def run(self, part: str, printer: str) -> Callable[..., tuple[Any, ...]]:
        """A part by a printer, compiled when it is first run."""
        found = self._compiled.get((part, printer))
        if found is None:
            made = self._loop(part) if printer == "numba" else PRINTERS[printer].compiled(self._parts[part])
            found = self._compiled[part, printer] = made
        return found

    def _printer(self, part: str, shape: tuple[int, ...]) -> str:
        """That of a part which each point of a grid has for itself."""
        pays = prod(shape) >= GRID and len(self._parts[part].live) <= LONGEST
        return self.by if pays else "numpy"

    def _loop(self, part: str) -> Callable[..., tuple[Any, ...]]:
        """A part as a loop: what the context does not decide is read once for a row."""
        function, depends = self._parts[part], self.whole.depending(LATE)
        return loops.compiled(function, {name for n, name in function.inputs.items() if n not in depends})


def _points(*values: Number) -> int:
    return prod(np.broadcast_shapes(*map(np.shape, values)))


def _pairs(batch: Number, new: Number, points: int) -> tuple[Number, Number, Any]:
    """Each pair of them once, and where the points find theirs; as they are, where that would not pay."""
    shape = np.broadcast_shapes(np.shape(batch), np.shape(new))
    if prod(shape) < max(points, 2):
        return batch, new, None
    base = float(np.max(new)) + 1
    both = np.broadcast_to(np.asarray(batch * base + new, dtype=np.float64), shape)
    some = both.reshape(-1)[:: max(1, both.size // SAMPLE)]
    if len(np.unique(some)) > MOSTLY * len(some):
        return batch, new, None
    values, places = once(both)
    if len(values) > FEW * points:
        return batch, new, None
    return np.floor(values / base), values % base, places


class TwoCode(Code):
    """Figures of single points, and `more` of the same, which read what the first have come by."""

    def __init__(self, figures: Figures, more: Figures, new: int | None = None, most: int = MOST) -> None:
        tape, at = recorded(new)
        first = figures(at)
        self._count = len(first)
        self._record(Function.of(tape, SIZES, (*first, *more(at))), most)

    def _keep(self, code: Within) -> None:
        tape, inputs, outputs = code.function.tape, code.function.inputs, code.function.outputs
        first, more = (Function(tape, inputs, of) for of in (outputs[: self._count], outputs[self._count :]))
        first, self._more = first.before(more)
        super()._keep(code._replace(function=first))

    @cached_property
    def _parts(self) -> dict[str, Function]:
        return {"early": self.early, "late": self.late, "more": self._more, "counts": self._counts}

    def more(self, at: Binding, found: Sequence[Number]) -> tuple[Number, ...]:
        """The others at a point, of which the first were `found`."""
        batch, new, _ = sizes = tuple(at.symbols.values())
        code = self if (batch, new) in self._kept else self.holding(batch, new)
        return code.run("more", "python")(*sizes, *found[self._count :])


class Often(Generic[C]):
    """Figures as they are said, and as code from where that pays: at many points, or after many.

    `make` makes code of them for so many new tokens, None for any, and up to how many it is short.
    """

    def __init__(self, figures: Figures, make: Callable[[Figures, int | None, int], C]) -> None:
        self.figures, self.make = figures, make
        self._points = 0
        self._codes: dict[tuple[int | None, int], C] = {}

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
        pairs = _points(at.symbols["B"], new) if at.shape else self._points
        kind = always, MOST if pairs >= SHORT else 0
        if kind not in self._codes:
            self._codes[kind] = self.make(self.figures, *kind)
        return self._codes[kind]
