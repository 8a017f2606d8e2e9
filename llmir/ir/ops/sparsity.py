"""Activations of which the largest are kept, by a cutoff for numbers that are normally distributed.

Axes: `b` sequences, `t` new tokens, `f` intermediate, `s` the two sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Moments(Op):
    """Of each token the sum over its elements, and that of their squares; 3 FLOPs an element."""

    opcode = "moments"
    kind = "norm"
    rule = "b t +f -> b t s"

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Two sums."""
        return {"s": 2}

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """3 an element: a square and two sums."""
        return 3 * operands[0].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sums."""
        (x,) = operands
        return (np.stack([x.sum(axis=-1), (x * x).sum(axis=-1)], axis=-1),)


@dataclass(frozen=True)
class GaussianTop(Op):
    """max(x − cutoff, 0), where 1 − `sparsity` of elements would stay if they were normally distributed.

    The cutoff is by the mean and the deviation of a token's, of which it takes the `moments` (Gemma 3n).
    """

    opcode = "gaussian_top"
    kind = "elementwise"
    rule = "b t f, b t s! -> b t f"
    takes = ("x", "moments")
    vector_flops = 2

    sparsity: float

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """By the mean and the deviation of all elements of a token, those of other ranks too."""
        from statistics import NormalDist  # which is slow to import, and prices do without

        x, moments = operands
        mean, square = np.moveaxis(moments / Binding()(results[0].shape[-1]), -1, 0)
        cutoff = mean + np.sqrt(np.maximum(square - mean * mean, 0)) * NormalDist().inv_cdf(self.sparsity)
        return (np.maximum(x - cutoff[..., None], 0),)
