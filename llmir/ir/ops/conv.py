"""The short convolution before a scan, over the last few tokens.

Axes: `b` sequences, `t` new tokens, `v` tokens before them, `w` taps; what is left are channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import DType
from llmir.ir.core.equation import Equation
from llmir.ir.core.op import Array, Op, Place, spelled
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .elementwise import silu


@dataclass(frozen=True)
class CausalConv(Op):
    """Σ weight[j] · x[t − w + 1 + j] (+ bias), channel by channel; its state is the last w − 1 tokens."""

    opcode = "causal_conv"
    kind = "scan"
    takes = ("x", "weight", "state", "*bias")
    aliases = MappingProxyType({1: 2})
    activation_flops: ClassVar[int] = 0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """With a bias or without."""
        bias = ", *" * (len(operands) - 3)
        return spelled(f"b t! *, * w!, b v! *{bias} -> b t! *, b v! *", len(operands[0].shape))

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As the equation says; `VerifyError` unless the state has a token less than there are taps."""
        n = self.equation(operands).sizes(operands)
        if n["v"] + 1 != n["w"]:
            raise VerifyError(f"a state of {n['v']} tokens for {n['w']} taps, expected one less than taps")
        return super().types(operands)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Those of x and of the state."""
        return operands[0].dtype, operands[2].dtype

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Channels together, and an axis for the one channel that each reads."""
        return (prod(shape[:-1]), 1, shape[-1]) if slot == 1 else (prod(shape),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 a tap and element; 1 an element for a bias, 4 for silu."""
        biases = len(operands) - 3
        return results[0].elements * (2 * operands[1].shape[-1] + biases + self.activation_flops)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The tokens kept and the new ones, weighted."""
        x, weight, state, *bias = operands
        line, tokens = np.concatenate([state, x], axis=1), x.shape[1]
        taps = (line[:, j : j + tokens] * weight[..., j] for j in range(weight.shape[-1]))
        y: Array = sum(taps, start=np.zeros_like(x))
        return sum(bias, start=y), line[:, tokens:]


@dataclass(frozen=True)
class CausalConvSilu(CausalConv):
    """The same, through silu, in one kernel."""

    opcode = "causal_conv_silu"
    activation_flops = 4

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The convolution, then silu."""
        y, state = super().evaluate(operands, results, at)
        return silu(y), state
