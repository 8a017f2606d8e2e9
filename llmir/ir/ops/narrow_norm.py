"""Norms that give narrow rows, which a product reads next."""

from __future__ import annotations

from collections.abc import Sequence

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.op import Array, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .norm import AddRmsNorm, RmsNorm
from .quant import Quantize
from .rounding import rounded


@dataclass(frozen=True)
class RmsNormQuantize(RmsNorm):
    """rms_norm(x) as `quantize` narrows it, into the type `to`; the FLOPs of both."""

    opcode = "rms_norm_quantize"

    to: str = ""
    static: bool = False

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The narrow type."""
        return (named(self.to),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Those of the norm and of narrowing."""
        return super().vector(operands, results) + Quantize(self.to, self.static).vector(operands, results)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """What is left of the norm."""
        (y,) = super().evaluate(operands, results, at)
        return (rounded(y, results[0].dtype),)


@dataclass(frozen=True)
class AddRmsNormQuantize(AddRmsNorm):
    """(x + y, rms_norm(x + y) as `quantize` narrows it, into `to`): the residual is updated in place."""

    opcode = "add_rms_norm_quantize"
    vector_flops = 0  # as many as it says below

    to: str = ""
    static: bool = False

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The residual's, and the narrow type."""
        return operands[0].dtype, named(self.to)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Those of the sum, the norm and narrowing."""
        return AddRmsNorm.vector_flops * results[0].elements + Quantize(self.to, self.static).vector(
            operands, results[1:]
        )

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sum, and what is left of its norm."""
        total, y = super().evaluate(operands, results, at)
        return total, rounded(y, results[1].dtype)
