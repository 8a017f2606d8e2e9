"""Ops that touch each element on its own. FLOPs per element: add 1, mul 1, silu 4, silu·mul 5, sigmoid 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..dim import Size
from ..dtype import DType
from ..dtype import dtype as named
from ..op import Array, Op, Place
from ..tensor import Tensor


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), which does not overflow for large negative x."""
    result: Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result


def silu(x: Array) -> Array:
    """x / (1 + e^−x), which does not overflow for large negative x."""
    result: Array = x * 0.5 * (1 + np.tanh(0.5 * x))
    return result


@dataclass(frozen=True)
class Add(Op):
    """a + b."""

    opcode = "add"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("x", "y")
    vector_flops = 1

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The sum."""
        return (operands[0] + operands[1],)


@dataclass(frozen=True)
class Mul(Op):
    """a · b, element by element."""

    opcode = "mul"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("x", "y")
    vector_flops = 1


@dataclass(frozen=True)
class Silu(Op):
    """x · sigmoid(x)."""

    opcode = "silu"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 4

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """x / (1 + e^−x)."""
        return (silu(operands[0]),)


@dataclass(frozen=True)
class Sigmoid(Op):
    """1 / (1 + e^−x)."""

    opcode = "sigmoid"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 4

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (sigmoid(operands[0]),)


@dataclass(frozen=True)
class SiluMul(Op):
    """silu(gate) · up in one pass over memory."""

    opcode = "silu_mul"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("gate", "up")
    vector_flops = 5

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        return (silu(operands[0]) * operands[1],)


@dataclass(frozen=True)
class SigmoidMul(Op):
    """x · sigmoid(gate), of one number for each row of x."""

    opcode = "sigmoid_mul"
    kind = "elementwise"
    rule = "* h, * -> * h"
    takes = ("x", "gate")
    linear = frozenset({0})

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 an element of x, and 4 of the gate."""
        return operands[0].elements + 4 * operands[1].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        x, gate = operands
        return (x * sigmoid(gate)[..., None],)


@dataclass(frozen=True)
class Cast(Op):
    """x in another element type."""

    opcode = "cast"
    kind = "elementwise"
    rule = "* -> *"
    converts = transparent = True

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """Into that type."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The type cast to."""
        return (named(self.to),)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """x itself: values are kept exact, types are about cost."""
        return (operands[0],)
