"""Elementwise ops: arithmetic, activations, gated activations, casts, and activation sparsity.

FLOPs per element: add, mul, scale 1; silu, sigmoid 4; silu·mul 5; soft cap 6; gelu 8; relu 1; xIELU 6;
clamped GLU 11.

`GaussianTop` retains the largest activations. Its cutoff assumes normally distributed activations, and
follows from the sums that `Moments` computes. Axes of `Moments`: `b` sequences, `t` new tokens, `f`
intermediate size, `s` the two sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import erf
from typing import ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation
from llmir.ir.core.op import Array, ExecutionPlace, Op, spell_equation
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

# --- Arithmetic and activations ---


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^−x), which does not overflow for large negative x."""
    result: Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result


def silu(x: Array) -> Array:
    """x / (1 + e^−x), which does not overflow for large negative x."""
    result: Array = x * 0.5 * (1 + np.tanh(0.5 * x))
    return result


def sqrt_softplus(x: Array) -> Array:
    """√ln(1 + e^x), which does not overflow for large x."""
    result: Array = np.sqrt(np.logaddexp(0, x))
    return result


def soft_cap(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap)."""
    result: Array = np.tanh(x / cap) * cap
    return result


@dataclass(frozen=True)
class Add(Op):
    """a + b."""

    opcode = "add"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("x", "y")
    vector_flops = 1
    linear = frozenset({0, 1})
    additive = True

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum."""
        return (operands[0] + operands[1],)


@dataclass(frozen=True)
class Subtract(Op):
    """a − b."""

    opcode = "subtract"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("x", "y")
    vector_flops = 1
    linear = frozenset({0, 1})
    additive = True

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The difference."""
        return (operands[0] - operands[1],)


@dataclass(frozen=True)
class Mul(Op):
    """a · b, element by element."""

    opcode = "mul"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("x", "y")
    vector_flops = 1


class Activation(Op, ABC):
    """Base class of activations: a function of each element, with its number of FLOPs."""

    kind = "elementwise"
    rule = "* -> *"

    @staticmethod
    @abstractmethod
    def function(x: Array) -> Array:
        """The function in NumPy."""

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The function."""
        return (self.function(operands[0]),)


@dataclass(frozen=True)
class Silu(Activation):
    """x · sigmoid(x)."""

    opcode = "silu"
    vector_flops = 4
    function = staticmethod(silu)


@dataclass(frozen=True)
class Gelu(Activation):
    """x · Φ(x), where Φ is the normal distribution function (arXiv:1606.08415)."""

    opcode = "gelu"
    vector_flops = 8

    @staticmethod
    def function(x: Array) -> Array:
        result: Array = x * 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2)))
        return result


@dataclass(frozen=True)
class GeluTanh(Activation):
    """x · Φ(x), with Φ approximated by a hyperbolic tangent (arXiv:1606.08415, section 2)."""

    opcode = "gelu_tanh"
    vector_flops = 8

    @staticmethod
    def function(x: Array) -> Array:
        """x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))."""
        result: Array = x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return result


@dataclass(frozen=True)
class Relu(Activation):
    """max(x, 0)."""

    opcode = "relu"
    vector_flops = 1

    @staticmethod
    def function(x: Array) -> Array:
        return np.maximum(x, 0)


@dataclass(frozen=True)
class ReluSquared(Activation):
    """max(x, 0)² (arXiv:2109.08668)."""

    opcode = "relu2"
    vector_flops = 2

    @staticmethod
    def function(x: Array) -> Array:
        result: Array = np.maximum(x, 0) ** 2
        return result


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + e^−x)."""

    opcode = "sigmoid"
    vector_flops = 4
    function = staticmethod(sigmoid)


@dataclass(frozen=True)
class Tanh(Activation):
    """The hyperbolic tangent."""

    opcode = "tanh"
    vector_flops = 4

    @staticmethod
    def function(x: Array) -> Array:
        result: Array = np.tanh(x)
        return result


@dataclass(frozen=True)
class SqrtSoftplus(Activation):
    """√ln(1 + e^x), the scoring function of DeepSeek-V4's router."""

    opcode = "sqrt_softplus"
    vector_flops = 6
    function = staticmethod(sqrt_softplus)


@dataclass(frozen=True)
class Xielu(Op):
    """αp·x² + x/2 where x is above 0, else αn·(e^min(x, −10⁻⁶) − 1 − x) + x/2 (arXiv:2411.13010).

    αp is the softplus of the first parameter, and αn is 1/2 plus the softplus of the second parameter. The
    longer branch takes 6 FLOPs.
    """

    opcode = "xielu"
    kind = "elementwise"
    rule = "*, a!, a! -> *"
    takes = ("x", "positive", "negative")
    vector_flops = 6

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, (above, below) = operands[0], (np.logaddexp(0, operand) for operand in operands[1:])
        bent = (np.expm1(np.minimum(x, -1e-6)) - x) * (0.5 + below)
        return (np.where(x > 0, above * x * x, bent) + 0.5 * x,)


class GatedActivation(Op):
    """Base class of gated activations: an activation of a gate times another value, in one pass."""

    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("gate", "up")
    lowered = True
    of: ClassVar[type[Activation]]

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (self.of.function(operands[0]) * operands[1],)


@dataclass(frozen=True)
class SiluMul(GatedActivation):
    """silu(gate) · up in one pass over memory."""

    opcode = "silu_mul"
    vector_flops = 5
    of = Silu


@dataclass(frozen=True)
class GeluMul(GatedActivation):
    """gelu(gate) · up in one pass over memory."""

    opcode = "gelu_mul"
    vector_flops = 9
    of = Gelu


@dataclass(frozen=True)
class GeluTanhMul(GatedActivation):
    """gelu_tanh(gate) · up in one pass over memory."""

    opcode = "gelu_tanh_mul"
    vector_flops = 9
    of = GeluTanh


@dataclass(frozen=True)
class ClampedGlu(Op):
    """g · sigmoid(slope · g) · (u + offset), with g = min(gate, limit) and u = up clipped to ±limit.

    The offset of gpt-oss is 1 (arXiv:2508.10925).
    """

    opcode = "clamped_glu"
    kind = "elementwise"
    rule = "*, * -> *"
    takes = ("gate", "up")
    vector_flops = 11

    limit: float
    slope: float
    offset: float = 1.0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        gate, up = np.minimum(operands[0], self.limit), np.clip(operands[1], -self.limit, self.limit)
        return (gate * sigmoid(self.slope * gate) * (up + self.offset),)


@dataclass(frozen=True)
class SigmoidMul(Op):
    """x · sigmoid(gate), with a gate for each element of x or for each row."""

    opcode = "sigmoid_mul"
    kind = "elementwise"
    takes = ("x", "gate")
    linear = frozenset({0})

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The gate has the dimensions of x, or all except the last."""
        rank = len(operands[0].shape)
        return spell_equation("*, * -> *" if len(operands[1].shape) == rank else "* h, * -> * h", rank)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element of x, and 4 per element of the gate."""
        return operands[0].elements + 4 * operands[1].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, gate = operands
        return (x * sigmoid(gate if gate.ndim == x.ndim else gate[..., None]),)


@dataclass(frozen=True)
class Cast(Op):
    """x in another element type."""

    opcode = "cast"
    kind = "elementwise"
    rule = "* -> *"
    converts = transparent = True

    to: str

    def giving(self, to: DType, x: DType) -> Op:
        """The op with this result dtype."""
        return replace(self, to=to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtype of the cast."""
        return (named(self.to),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """x itself: the interpreter ignores casts, which affect only the cost."""
        return (operands[0],)


@dataclass(frozen=True)
class Scale(Op):
    """x · factor."""

    opcode = "scale"
    kind = "elementwise"
    rule = "* -> *"
    linear = frozenset({0})
    vector_flops = 1

    factor: float

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        return (operands[0] * self.factor,)


@dataclass(frozen=True)
class Clip(Op):
    """x clipped to ±limit; 2 FLOPs per element (two comparisons)."""

    opcode = "clip"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 2

    limit: float

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (np.clip(operands[0], -self.limit, self.limit),)


@dataclass(frozen=True)
class SoftCap(Op):
    """cap · tanh(x / cap) (arXiv:2408.00118, section 2)."""

    opcode = "soft_cap"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 6

    cap: float

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (soft_cap(operands[0], self.cap),)


# --- Activation sparsity ---


@dataclass(frozen=True)
class Moments(Op):
    """The sum and the sum of squares over the elements of each token; 3 FLOPs per element."""

    opcode = "moments"
    kind = "norm"
    rule = "b t +f -> b t s"

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Two sums."""
        return {"s": 2}

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """3 per element: a square and two sums."""
        return 3 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sums."""
        (x,) = operands
        return (np.stack([x.sum(axis=-1), (x * x).sum(axis=-1)], axis=-1),)


@dataclass(frozen=True)
class GaussianTop(Op):
    """max(x − cutoff, 0); the cutoff sets a fraction `sparsity` of normally distributed elements to 0.

    The cutoff follows from the mean and standard deviation of the token's elements, computed from `moments`
    (Gemma 3n).
    """

    opcode = "gaussian_top"
    kind = "elementwise"
    rule = "b t f, b t s! -> b t f"
    takes = ("x", "moments")
    vector_flops = 2

    sparsity: float

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The result; mean and deviation include the elements of a token on other ranks."""
        from statistics import NormalDist  # slow to import, and not needed by estimates

        x, moments = operands
        mean, square = np.moveaxis(moments / Binding()(results[0].shape[-1]), -1, 0)
        cutoff = mean + np.sqrt(np.maximum(square - mean * mean, 0)) * NormalDist().inv_cdf(self.sparsity)
        return (np.maximum(x - cutoff[..., None], 0),)
