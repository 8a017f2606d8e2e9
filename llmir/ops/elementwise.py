"""Ops that touch each element on its own. FLOPs per element: add 1, mul 1, silu 4, silu·mul 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtype import DType
from ..dtype import dtype as named
from ..op import Op
from ..tensor import Tensor


@dataclass(frozen=True)
class Add(Op):
    """a + b."""

    opcode = "add"
    kind = "elementwise"
    rule = "*, * -> *"
    vector_flops = 1


@dataclass(frozen=True)
class Mul(Op):
    """a · b, element by element."""

    opcode = "mul"
    kind = "elementwise"
    rule = "*, * -> *"
    vector_flops = 1


@dataclass(frozen=True)
class Silu(Op):
    """x · sigmoid(x)."""

    opcode = "silu"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 4


@dataclass(frozen=True)
class SiluMul(Op):
    """silu(gate) · up in one pass over memory."""

    opcode = "silu_mul"
    kind = "elementwise"
    rule = "*, * -> *"
    vector_flops = 5


@dataclass(frozen=True)
class Cast(Op):
    """x in another element type."""

    opcode = "cast"
    kind = "elementwise"
    rule = "* -> *"

    to: str

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The type cast to."""
        return (named(self.to),)
