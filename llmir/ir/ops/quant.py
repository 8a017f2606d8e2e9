"""Into narrow element types and back."""

from __future__ import annotations

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
class Quantize(Op):
    """x in the narrow type `to`, whose scales are found on the way; 2 FLOPs an element (maximum, scaling).

    `static` scales were found before, by calibration: a kernel that looks for none does 1 (scaling). The
    interpreter takes the scales that fit x best in either case.
    """

    opcode = "quantize"
    kind = "elementwise"
    rule = "* -> *"
    moves = converts = True
    vector_flops = 2

    to: str
    static: bool = False

    def giving(self, to: DType, x: DType) -> Op:
        """Into that type."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The narrow type."""
        return (named(self.to),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Scaling, and a maximum where the scale is not known."""
        return (1 if self.static else 2) * results[0].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """What is left of x."""
        return (rounded(operands[0], results[0].dtype),)


@dataclass(frozen=True)
class Dequantize(Op):
    """x out of its narrow type, times its scales; 1 FLOP an element."""

    opcode = "dequantize"
    kind = "elementwise"
    rule = "* -> *"
    moves = converts = True
    vector_flops = 1

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """Into that type."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The wide type."""
        return (named(self.to),)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """x itself: what the narrow type lost is lost already."""
        return (operands[0],)
