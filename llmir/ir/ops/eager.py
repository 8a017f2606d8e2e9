"""The steps of a norm, each of which is a kernel of eager torch; engines have one kernel for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Square(Op):
    """x²."""

    opcode = "square"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 1

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The square."""
        return (operands[0] * operands[0],)


@dataclass(frozen=True)
class RowMean(Op):
    """The mean of each row; 1 FLOP an element of x."""

    opcode = "row_mean"
    kind = "norm"
    rule = "* h! -> *"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 an element of x."""
        return operands[0].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The mean."""
        return (np.mean(operands[0], axis=-1),)


@dataclass(frozen=True)
class Shift(Op):
    """x + amount."""

    opcode = "shift"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 1

    amount: float

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sum."""
        return (operands[0] + self.amount,)


@dataclass(frozen=True)
class InverseRoot(Op):
    """1 / √x; 2 FLOPs an element."""

    opcode = "inverse_root"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 2

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The quotient."""
        return (1 / np.sqrt(operands[0]),)


@dataclass(frozen=True)
class ScaleRows(Op):
    """x · factor, of a number for each row; 1 FLOP an element of x."""

    opcode = "scale_rows"
    kind = "elementwise"
    rule = "* h, * -> * h"
    takes = ("x", "factor")
    vector_flops = 1

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The product."""
        return (operands[0] * operands[1][..., None],)
