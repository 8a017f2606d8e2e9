"""What sums begin with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Zeros(Op):
    """As large as x, which is not read, and nothing but zeros: what is added to a first residual.

    They may be a partial sum over the mesh axes `over`. No kernel makes them: an engine's first layer is told
    that there is nothing to add.
    """

    opcode = "zeros"
    kind = "elementwise"
    rule = "* -> *"
    zero = True

    linear = frozenset({0})  # x, of which the shape alone counts, may be a partial sum

    over: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """It does not."""
        return False

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """That of x, whole or partial as stated."""
        (y,) = super().types(operands)
        return (y.laid(y.placements, self.over, y.tokens),)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Nothing."""
        return (0,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Nothing."""
        return (0,)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """Zeros."""
        return (np.zeros_like(operands[0]),)
