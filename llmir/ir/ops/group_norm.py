"""RMSNorm over the heads of a group, in two steps, since ranks may share a group.

Axes: `b` sequences, `t` new tokens, `g` groups, `r` heads of each, `d` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, product


@dataclass(frozen=True)
class SquareSum(Op):
    """Σx² over the heads of a group, which ranks that share them add up; 2 FLOPs an element."""

    opcode = "square_sum"
    kind = "norm"
    rule = "b t g r d! -> b t g"

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 an element."""
        return 2 * operands[0].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        (x,) = operands
        return (np.einsum("btgrd,btgrd->btg", x, x),)


@dataclass(frozen=True)
class GroupNorm(Op):
    """x / √(squares / count + eps) · w, RMSNorm of all heads of a group; 2 FLOPs an element."""

    opcode = "group_norm"
    kind = "norm"
    rule = "b t g r d!, b t g, g r d! -> b t g r d!"
    takes = ("x", "squares", "weight")
    vector_flops = 2

    eps: float = 1e-6

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Heads together."""
        return (prod(shape),)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name; all ranks have the sum, and know how many heads it is of."""
        x, squares, weight = operands
        count = Binding()(product(results[0].shape[3:]))
        return (x / np.sqrt(squares / count + self.eps)[..., None, None] * weight,)
