"""Into the element type in which a value travels between ranks, and back."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import replace

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .rounding import rounded


@dataclass(frozen=True)
class Conversion(Op, ABC):
    """x in the type `to`, before or after it travels."""

    kind = "elementwise"
    rule = "* -> *"
    moves = relays = converts = True
    linear = frozenset({0})

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """Into that type."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The type that travels, or to compute with."""
        return (named(self.to),)


@dataclass(frozen=True)
class Compress(Conversion):
    """x as it travels: what each rank holds, in the type `to`, a narrow one with scales found on the way.

    Of a partial sum that is each rank's summand; the sum is then one of rounded summands.
    """

    opcode = "compress"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """As `quantize`, 2 an element; none into a wide type, which is a cast."""
        return 2 * results[0].elements if results[0].dtype.low else 0

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """What is left of what this rank holds."""
        return (rounded(operands[0], results[0].dtype),)


@dataclass(frozen=True)
class Decompress(Conversion):
    """x as it arrived, in the type `to` again."""

    opcode = "decompress"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """As `dequantize`, 1 an element; none out of a wide type, which is a cast."""
        return results[0].elements if operands[0].dtype.low else 0

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """x itself: what the type that travelled lost is lost already."""
        return (operands[0],)
