"""Kernels as code whose inputs are their parameters: what a fit asks for hundreds of times.

A kernel is recorded once, on symbols of its parameters and of what rows differ in. What shapes alone decide
is then computed once, what parameters alone decide once for all rows, and the rest in blocks that stay in
cache. The arithmetic is the kernel's own, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from llmir.backends.kernels.base import Kernel, Shape, parameters
from llmir.backends.silicon.rows import Array
from llmir.backends.tape import numpy, python
from llmir.backends.tape.record import Function, Tape
from llmir.base.array_namespace import SCALARS
from llmir.hw.device import Device

from .clock import Clock, Term

BLOCK = 1 << 13  # rows: a fit's code holds some twenty buffers at once, of 64 KiB each
MANY = 1 << 12  # rows from which code is quicker than the kernel
Run = Callable[..., Array]


class Compiled:
    """Seconds of the rows of a clock, by any kernels of the families that are fitted."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._known: dict[tuple[Any, ...], Run] = {}  # by term, family and choices of the kernel

    def __call__(self, kernels: Mapping[str, Kernel]) -> Array:
        """What `Clock.seconds` says."""
        return self.clock.seconds(kernels, self.term)

    def term(self, term: Term, kernel: Kernel, device: Device) -> Array:
        """What `Term.seconds` says."""
        if len(term.rows) < MANY:
            return term.seconds(kernel, device)
        chosen = {p.name: getattr(kernel, p.name) for p in parameters(type(kernel)) if p.choices}
        key = id(term), type(kernel), *chosen.values()
        if key not in self._known:
            try:
                self._known[key] = compiled(term, type(kernel), chosen, device)
            except TypeError:  # ranks choose the link that they are joined by
                self._known[key] = partial(term.seconds, device=device)
        return self._known[key](kernel)


def compiled(term: Term, kind: type[Kernel], chosen: Mapping[str, float], device: Device) -> Run:
    """Seconds of a term as a function of a kernel of that class whose choices are these."""
    tape, columns = Tape(SCALARS), {"least": term.least}
    names = [p.name for p in parameters(kind) if p.name not in chosen]
    inputs = {name: f"p{i}" for i, name in enumerate(names)}
    kernel = kind(**chosen, **{name: tape.symbol(symbol) for name, symbol in inputs.items()})
    shape = _symbols(tape, term.call.shape, columns)
    seconds = getattr(kernel, term.call.part)(device, shape, tape.namespace)
    whole = Function.of(
        tape, [*columns, *inputs.values()], [tape.namespace.maximum(seconds, tape.symbol("least"))]
    )
    of_shapes, rest = whole.parted(inputs.values(), "s")
    of_parameters, mixed = rest.parted([n for n in rest.inputs.values() if n not in inputs.values()], "q")
    given = dict(zip(of_shapes.inputs, columns.values(), strict=True))
    given |= dict(zip(of_shapes.outputs, numpy.compiled(of_shapes)(*given.values()), strict=True))
    alone, run = python.compiled(of_parameters), numpy.compiled(mixed, BLOCK)

    def times(kernel: Kernel) -> Array:
        known = dict(zip(of_parameters.outputs, alone(*(getattr(kernel, n) for n in names)), strict=True))
        (found,) = run(*(known[n] if n in known else given[n] for n in mixed.inputs))
        return np.broadcast_to(found, term.least.shape)

    return times


def _symbols(tape: Tape, shape: Any, columns: dict[str, Array], prefix: str = "x") -> Any:
    """The shape with a symbol for each column, which goes to `columns`; a number where all rows agree."""
    found: dict[str, Any] = {}
    for name, value in vars(shape).items():
        if isinstance(value, Shape):
            found[name] = _symbols(tape, value, columns, f"{prefix}_{name}")
        elif isinstance(value, np.ndarray):
            first = float(value[0])
            if (value == first).all():
                found[name] = int(first) if first.is_integer() else first
            else:
                columns[f"{prefix}_{name}"] = value
                found[name] = tape.symbol(f"{prefix}_{name}")
    return replace(shape, **found)
