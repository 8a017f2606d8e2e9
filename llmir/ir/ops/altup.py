"""Several streams of hidden states, of which a layer computes on one (AltUp, arXiv:2301.13310).

Axes: `b` sequences, `t` new tokens, `n` streams, `m` those that come out, `h` hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.gemm import Gemm, operand_gemm
from llmir.ir.core.op import Array, Op, Place, spelled
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Pick(Op):
    """One of several streams, or of what layers take each a part of: `index`, or −1 for the layer's own."""

    opcode = "pick"
    kind = "gather"
    rule = "b t [n] h -> b t h"
    linear = frozenset({0})

    index: int = -1

    def numbered(self, layer: int) -> Op:
        """That of the layer."""
        return replace(self, index=layer) if self.index < 0 else self

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """What it picks."""
        return (results[0].bytes,)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (operands[0][:, :, self.index],)


@dataclass(frozen=True)
class StreamMix(Op):
    """Each stream as a sum of all, weighted token by token."""

    opcode = "stream_mix"
    kind = "elementwise"
    rule = "b t n h, b t m n -> b t m h"
    takes = ("streams", "weights")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """A product for each token."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 1, 0, 0),)


@dataclass(frozen=True)
class StreamAdd(Op):
    """x added to the streams from `first` on, to each by its weight and `offset`, or as it is."""

    opcode = "stream_add"
    kind = "elementwise"
    takes = ("streams", "x", "*weights")
    vector_flops = 2

    first: int = 0
    offset: float = 0.0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`b t n h, b t h -> b t n h`, or with weights `b t n`."""
        return equation(f"b t n h, b t h{', b t n' * (len(operands) - 2)} -> b t n h")

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sums."""
        streams, x, *weights = operands
        added = x[:, :, None] * (weights[0][..., None] + self.offset if weights else 1.0)
        chosen = np.arange(streams.shape[2])[:, None] >= self.first
        return (streams + added * chosen,)


@dataclass(frozen=True)
class ScaleBy(Op):
    """x · w, of a number for each element of a row, or of one for all."""

    opcode = "scale_by"
    kind = "elementwise"
    takes = ("x", "weight")
    vector_flops = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h, h -> * h`, or with one number `* h, [o] -> * h`."""
        one = operands[1].shape == (1,) and operands[0].shape[-1] != 1
        return spelled(f"* h, {'[o]' if one else 'h'} -> * h", len(operands[0].shape))

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The product."""
        return (operands[0] * operands[1],)
