"""Norms and softmax: ops that reduce over an axis. Each rank needs the whole axis.

- RMSNorm, LayerNorm, softmax, and the fusion of a norm with a residual add
- adaptive norms: a condition of each sequence scales and shifts its tokens (arXiv:2212.09748)
- single steps of a norm, which are separate kernels in eager PyTorch
- RMSNorm over the heads of a group in two steps, for groups that several ranks share
- norms with low-precision results, and norms fused with an all-reduce

Axes: `b` sequences, `t` new tokens, `g` groups, `r` heads per group, `d` head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, RankGroup, Work, spell_equation
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, product

from .collective import AllReduce, summed, total
from .quant import Quantize, round_trip

# --- Norms and softmax ---


def rms_norm(x: Array, weight: Array | float, eps: float, over: int = 1) -> Array:
    """x / √(mean(x²) + eps) · weight, over the last axes."""
    axes = tuple(range(-over, 0))
    result: Array = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + eps) * weight
    return result


def softmax(x: Array, sinks: Array | None = None) -> Array:
    """Softmax over the last axis; −∞ gives 0. With `sinks` of shape [g, r], x has shape [b, g, r, t, c]."""
    if sinks is not None:
        column = np.broadcast_to(sinks[..., None, None], (*x.shape[:-1], 1))
        return softmax(np.concatenate([x, column], axis=-1))[..., :-1]
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    result: Array = powers / np.sum(powers, axis=-1, keepdims=True)
    return result


def _over(operands: Sequence[Tensor], over: int, inputs: int = 1) -> Equation:
    """The equation of a norm over the last `over` axes, with its learned scale and bias."""
    rank = len(operands[0].shape)
    learned = max((len(t.shape) for t in operands[inputs:]), default=over)
    if not over <= learned <= rank:
        raise VerifyError(f"a norm over {over} axes has weights of {learned}, and rows of {rank}")
    names = ["h", *(f"h{i}" for i in range(1, rank))]
    axes = [f"{name}!" if i < over else name for i, name in enumerate(names)][::-1]
    rows, weight = " ".join(axes), " ".join(axes[rank - learned :])
    terms = [rows] * inputs + [weight] * (len(operands) - inputs)
    return equation(f"{', '.join(terms)} -> {', '.join([rows] * inputs)}")


def _stored(over: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The checkpoint shape of a weight: normalized axes flattened to one, and earlier axes to another."""
    heads = shape[: len(shape) - over]
    return (*((prod(heads),) if heads else ()), prod(shape[len(shape) - over :]))


@dataclass(frozen=True)
class RmsNorm(Op):
    """x / rms(x) · (w + offset) over the last `over` axes; 4 FLOPs per element.

    The FLOPs are a square, a sum, a scale and the weight. `w` is optional (3 FLOPs without it), and may have
    additional leading axes. Gemma's offset is 1.
    """

    opcode = "rms_norm"
    kind = "norm"
    takes = ("x", "*weight")

    eps: float = 1e-6
    offset: float = 0.0
    over: int = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h!, h! -> * h!`."""
        return _over(operands, self.over)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """3 per element, and 1 for the weight."""
        return (2 + len(operands)) * results[0].elements

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The normalized axes flattened to one, and the axes of heads to another."""
        return _stored(self.over, shape)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, *weight = operands
        return (rms_norm(x, weight[0] + self.offset if weight else 1.0, self.eps, self.over),)


@dataclass(frozen=True)
class MatchRms(Op):
    """x · rms(y) / rms(x): x scaled to the RMS of y; mean squares are at least `least`; 6 FLOPs each."""

    opcode = "match_rms"
    kind = "norm"
    rule = "* h!, * h! -> * h!"
    takes = ("x", "y")
    vector_flops = 6

    least: float = 1e-5

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The quotient."""
        ours, due = (np.mean(x * x, axis=-1, keepdims=True) for x in operands)
        return (operands[0] * np.sqrt(due / np.maximum(ours, self.least)),)


@dataclass(frozen=True)
class AddRmsNorm(Op):
    """(x + y, rms_norm(x + y)); the sum overwrites the residual in place."""

    opcode = "add_rms_norm"
    lowered = True
    kind = "norm"
    rule = "* h!, * h!, h! -> * h!, * h!"
    takes = ("x", "y", "weight")
    vector_flops = 5
    aliases = MappingProxyType({0: 0})

    eps: float = 1e-6
    offset: float = 0.0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum, and its norm."""
        total = operands[0] + operands[1]
        return total, rms_norm(total, operands[2] + self.offset, self.eps)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x − mean) / deviation · (w + offset) + b over the last `over` axes; 7 FLOPs per element.

    The FLOPs are a sum, a difference, a square and its sum, a scale, the weight and the bias. `b`, or both
    `w` and `b`, may be absent. Both may have additional leading axes.
    """

    opcode = "layer_norm"
    kind = "norm"
    takes = ("x", "*learned")

    eps: float = 1e-5
    offset: float = 0.0
    over: int = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h!, h!, h! -> * h!`."""
        return _over(operands, self.over)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 per element, and 1 for each of weight and bias."""
        return (4 + len(operands)) * results[0].elements

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The normalized axes flattened to one, and the axes of heads to another."""
        return _stored(self.over, shape)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, *learned = operands
        axes = tuple(range(-self.over, 0))
        centred = x - np.mean(x, axis=axes, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + self.eps)
        scaled = normed * (learned[0] + self.offset) if learned else normed
        return (scaled + learned[1] if learned[1:] else scaled,)


@dataclass(frozen=True)
class Softmax(Op):
    """Softmax over the last axis; 5 FLOPs per element (max, subtract, exp, sum, divide).

    For attention scores, `sinks` are learned additional scores, one per head (arXiv:2309.17453, as in
    gpt-oss). A sink contributes to the sum of each row, but not to the result.
    """

    opcode = "softmax"
    kind = "elementwise"
    takes = ("x", "*sinks")
    _rules = ("* c! -> * c!", "b g r t c!, g r -> b g r t c")

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* c! -> * c!`."""
        return spell_equation(self._rules[len(operands) - 1], len(operands[0].shape))

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sinks of all heads in one dimension."""
        return (prod(shape),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 per element, including the sinks."""
        *rows, columns = results[0].shape
        return 5 * product(rows) * (columns + len(operands) - 1)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (softmax(*operands),)


# --- Adaptive norms ---


@dataclass(frozen=True)
class Sinusoid(Op):
    """Cosines, then sines, of a timestep times `elements`/2 frequencies from 1 to 1/10,000; 2 FLOPs each."""

    opcode = "sinusoid"
    kind = "elementwise"
    rule = "b -> b f"
    takes = ("timestep",)
    vector_flops = 2

    elements: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        if self.elements < 4 or self.elements % 2:
            raise VerifyError(f"sinusoid: elements: expected an even number from 4 up, got {self.elements}")
        return {"f": self.elements}

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The result of diffusers' `Timesteps` with cosines first and a frequency shift of 1."""
        half = self.elements // 2
        angles = operands[0][:, None] * 10000.0 ** (-np.arange(half) / (half - 1))
        return (np.concatenate([np.cos(angles), np.sin(angles)], axis=-1),)


@dataclass(frozen=True)
class Modulate(Op):
    """x · (1 + scale) + shift, with one scale and shift for all tokens of a sequence."""

    opcode = "modulate"
    kind = "elementwise"
    rule = "b t h, b h, b h -> b t h"
    takes = ("x", "scale", "shift")
    vector_flops = 2

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, scale, shift = operands
        return (x * (1 + scale[:, None]) + shift[:, None],)


@dataclass(frozen=True)
class SequenceMul(Op):
    """x · factor, with one factor for all tokens of a sequence."""

    opcode = "sequence_mul"
    kind = "elementwise"
    rule = "b t h, b h -> b t h"
    takes = ("x", "factor")
    linear = frozenset({0})
    vector_flops = 1

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        x, factor = operands
        return (x * factor[:, None],)


# --- Single steps of a norm ---


@dataclass(frozen=True)
class Square(Op):
    """x²."""

    opcode = "square"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 1

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The square."""
        return (operands[0] * operands[0],)


@dataclass(frozen=True)
class RowMean(Op):
    """The mean of each row; 1 FLOP per element of x."""

    opcode = "row_mean"
    lowered = True
    kind = "norm"
    rule = "* h! -> *"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element of x."""
        return operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
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

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum."""
        return (operands[0] + self.amount,)


@dataclass(frozen=True)
class InverseRoot(Op):
    """1 / √x; 2 FLOPs per element."""

    opcode = "inverse_root"
    kind = "elementwise"
    rule = "* -> *"
    vector_flops = 2

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The quotient."""
        return (1 / np.sqrt(operands[0]),)


@dataclass(frozen=True)
class ScaleRows(Op):
    """x · factor, with one factor per row; 1 FLOP per element of x."""

    opcode = "scale_rows"
    kind = "elementwise"
    rule = "* h, * -> * h"
    takes = ("x", "factor")
    vector_flops = 1

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        return (operands[0] * operands[1][..., None],)


# --- Norms of groups of heads ---


@dataclass(frozen=True)
class SquareSum(Op):
    """Σx² over a group's heads on this rank; the ranks of the group add up the sums; 2 FLOPs per element."""

    opcode = "square_sum"
    kind = "norm"
    rule = "b t g r d! -> b t g"

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per element."""
        return 2 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        (x,) = operands
        return (np.einsum("btgrd,btgrd->btg", x, x),)


@dataclass(frozen=True)
class GroupNorm(Op):
    """x / √(squares / count + eps) · w, RMSNorm over all heads of a group; 2 FLOPs per element."""

    opcode = "group_norm"
    kind = "norm"
    rule = "b t g r d!, b t g, g r d! -> b t g r d!"
    takes = ("x", "squares", "weight")
    vector_flops = 2

    eps: float = 1e-6

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Heads together."""
        return (prod(shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The norm; each rank divides the total sum of squares by the number of elements on all ranks."""
        x, squares, weight = operands
        count = Binding()(product(results[0].shape[3:]))
        return (x / np.sqrt(squares / count + self.eps)[..., None, None] * weight,)


@dataclass(frozen=True)
class PairSquares(Op):
    """Σq² and Σk² of each token over this rank's heads; the ranks add up the sums; 2 FLOPs per element."""

    opcode = "pair_squares"
    kind = "norm"
    rule = "b t g r d!, b t g d! -> b t s"
    takes = ("q", "k")

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Two sums."""
        return {"s": 2}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """None: the op does not multiply q by k."""
        return ()

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """None."""
        return 0

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per element."""
        return 2 * (operands[0].elements + operands[1].elements)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sums; of the ranks that have queries of one group, only the first counts the group's keys."""
        q, k = operands
        keys = np.einsum("btgd,btgd->bt", k, k) * (at.origin("r") == 0)
        return (np.stack([np.einsum("btgrd,btgrd->bt", q, q), keys], axis=-1),)


@dataclass(frozen=True)
class PairNorm(Op):
    """RMSNorm of q and k over all heads of a token, given their `squares`; 2 FLOPs per element."""

    opcode = "pair_norm"
    kind = "norm"
    rule = "b t g r d!, b t g d!, b t s!, g r d!, g d! -> b t g r d!, b t g d!"
    takes = ("q", "k", "squares", "q_weight", "k_weight")

    eps: float = 1e-6

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per element of both."""
        return 2 * (results[0].elements + results[1].elements)

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """All heads together."""
        return (prod(shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The norms; each rank divides the total sums by the number of elements on all ranks."""
        *rows, squares, q_weight, k_weight = operands
        found = []
        for i, (x, weight) in enumerate(zip(rows, (q_weight, k_weight), strict=True)):
            mean = squares[..., i] / Binding()(product(results[i].shape[2:]))
            root = np.sqrt(mean + self.eps).reshape(*mean.shape, *(1,) * (x.ndim - 2))
            found.append(x / root * weight)
        return tuple(found)


# --- Norms with low-precision results ---


@dataclass(frozen=True)
class RmsNormQuantize(RmsNorm):
    """rms_norm(x), quantized to the dtype `to`; the FLOPs are those of the norm and of the quantization."""

    opcode = "rms_norm_quantize"
    lowered = True

    to: str = ""
    static: bool = False

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The FLOPs of the norm and of the quantization."""
        return super().vector(operands, results) + Quantize(self.to, self.static).vector(operands, results)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The norm, rounded to the dtype."""
        (y,) = super().evaluate(operands, results, at)
        return (round_trip(y, results[0].dtype),)


@dataclass(frozen=True)
class AddRmsNormQuantize(AddRmsNorm):
    """(x + y, rms_norm(x + y) quantized to `to`); the sum overwrites the residual in place."""

    opcode = "add_rms_norm_quantize"
    vector_flops = 0  # computed below

    to: str = ""
    static: bool = False

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return operands[0].dtype, named(self.to)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The FLOPs of the sum, the norm and the quantization."""
        return AddRmsNorm.vector_flops * results[0].elements + Quantize(self.to, self.static).vector(
            operands, results[1:]
        )

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum, and its norm rounded to the dtype."""
        total, y = super().evaluate(operands, results, at)
        return total, round_trip(y, results[1].dtype)


# --- Norms fused with an all-reduce ---


@dataclass(frozen=True)
class AllReduceAddRmsNorm(AddRmsNorm):
    """All-reduce y over the mesh axes `over`, then return (y + x, rms_norm(y + x)), in one kernel."""

    opcode = "all_reduce_add_rms_norm"
    takes = ("y", "x", "weight")
    aliases = MappingProxyType({0: 1})
    exchanges = True
    share = AllReduce.share

    over: tuple[str, ...] = ()

    @property
    def joins(self) -> tuple[str, ...]:
        """The axes `over`."""
        return self.over

    def owed(self, operands: Sequence[Tensor]) -> list[Placement]:
        """The first operand is a partial sum over `over`."""
        return [self.over, (), ()]

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The result types for the total of the first operand."""
        y, *others = operands
        return super().types((y.laid(y.placements, summed(y, self.over), y.tokens), *others))

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The work of the add and the norm, plus the bytes of an all_reduce."""
        sent = AllReduce(self.over).work(operands[:1], results[:1], mesh)
        own = super().work(operands, results, mesh)
        return replace(own, wire=sent.wire, payload=sent.payload, group=sent.group, pattern=sent.pattern)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The results, computed from the total of the first operand."""
        return total(members)


@dataclass(frozen=True)
class AllReduceAddRmsNormQuantize(AllReduceAddRmsNorm, AddRmsNormQuantize):
    """All-reduce y over the axes `over`, then return (y + x, rms_norm(y + x) quantized), in one kernel."""

    opcode = "all_reduce_add_rms_norm_quantize"
