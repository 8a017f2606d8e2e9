"""The points of a report: what was asked for, and the sizes of a micro-batch there."""

from __future__ import annotations

from functools import cached_property

from llmir.base.array_namespace import Number
from llmir.base.values import Immutable, figure
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding


class Points(Immutable):
    """`batch` sequences with `new` tokens each and `context` cached.

    Of very many points these are packed, and made when they are asked for.
    """

    program: Program
    _points: Binding

    @cached_property
    def at(self) -> Binding:
        """The sizes of a micro-batch."""
        return Binding.keeping(**self._points.symbols)

    @figure
    def batch(self) -> Number:
        """Sequences."""
        return self.at.symbols["B"] * self.program.micro_batches

    @figure
    def new(self) -> Number:
        """New tokens of each."""
        return self.at.symbols["T"]

    @figure
    def context(self) -> Number:
        """Cached tokens of each."""
        return self.at.symbols["C"]
