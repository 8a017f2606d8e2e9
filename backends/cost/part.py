"""The price of a product of attention that is not fused, beside what the fused kernel takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmir.backends.work.basis import Basis
from llmir.base.array_namespace import Number
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Dim

from .op_time import Price


@dataclass(frozen=True)
class Part(Price):
    """No less than its share of what the engine's fused attention takes for these tokens and keys.

    Scores and their mix with the values are half of its work each, and read half of its keys and values; what
    an engine fuses with care it does not do faster apart, as a product with weights would.
    """

    own: Price
    fused: Price
    share: float = 0.5

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """What both depend on."""
        both: Any = (self.own, self.fused)
        return tuple(size for price in both for size in price.sizes)

    @property
    def basis(self) -> Basis:
        """Of the product."""
        return self.own.basis

    @property
    def error(self) -> float | None:
        """Of the product."""
        return self.own.error

    @property
    def lent(self) -> float:
        """Of the product."""
        return self.own.lent

    @property
    def beyond(self) -> float:
        """Of the product."""
        return self.own.beyond

    def time(self, at: Binding) -> Number:
        """The longer."""
        return at.xp.maximum(self.own.time(at), self.share * self.fused.time(at))

    def in_graph(self, at: Binding, hidden: float) -> tuple[Number, Number]:
        """The longer, alone and in a graph."""
        pairs = zip(self.own.in_graph(at, hidden), self.fused.in_graph(at, hidden), strict=True)
        alone, together = (at.xp.maximum(time, self.share * whole) for time, whole in pairs)
        return alone, together

    def least(self, at: Binding) -> Number:
        """Seconds of the product's roofline."""
        return self.own.least(at)

    def due(self, at: Binding) -> tuple[Number, Number]:
        """The longer, and what the product is due to."""
        return self.time(at), self.own.due(at)[1]
