"""Ops that reduce over an axis which must therefore stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..dim import Binding, Size, product
from ..dtype import FP32, DType
from ..op import Array, Op, Place
from ..tensor import Tensor


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / √(mean(x²) + eps) · weight, over the last axis."""
    result: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def softmax(x: Array) -> Array:
    """Over the last axis; −∞ is a probability of 0."""
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = powers / np.sum(powers, axis=-1, keepdims=True)
    return result


@dataclass(frozen=True)
class RmsNorm(Op):
    """x / rms(x) · w over the last axis; 4 FLOPs an element (square, sum, scale, weight)."""

    opcode = "rms_norm"
    kind = "norm"
    rule = "* h!, h! -> * h!"
    takes = ("x", "weight")
    vector_flops = 4

    eps: float = 1e-6

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (rms_norm(operands[0], operands[1], self.eps),)


@dataclass(frozen=True)
class AddRmsNorm(Op):
    """(x + y, rms_norm(x + y)): the residual is updated in place."""

    opcode = "add_rms_norm"
    kind = "norm"
    rule = "* h!, * h!, h! -> * h!, * h!"
    takes = ("x", "y", "weight")
    vector_flops = 5
    aliases = MappingProxyType({0: 0})

    eps: float = 1e-6

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sum, and its norm."""
        total = operands[0] + operands[1]
        return total, rms_norm(total, operands[2], self.eps)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x − mean) / deviation · w + b over the last axis; 7 FLOPs an element.

    Those of a sum, a difference, a square and its sum, a scale, the weight and the bias.
    """

    opcode = "layer_norm"
    kind = "norm"
    rule = "* h!, h!, h! -> * h!"
    takes = ("x", "weight", "bias")
    vector_flops = 7

    eps: float = 1e-5

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        x, weight, bias = operands
        centred = x - np.mean(x, axis=-1, keepdims=True)
        deviation = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        return (centred / deviation * weight + bias,)


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

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name; all ranks have the sum, and know how many heads it is of."""
        x, squares, weight = operands
        count = Binding()(product(results[0].shape[3:]))
        return (x / np.sqrt(squares / count + self.eps)[..., None, None] * weight,)


@dataclass(frozen=True)
class Softmax(Op):
    """Over the last axis; 5 FLOPs an element (max, subtract, exp, sum, divide)."""

    opcode = "softmax"
    kind = "elementwise"
    rule = "* c! -> * c!"
    vector_flops = 5

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (softmax(operands[0]),)
