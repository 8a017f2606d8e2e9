"""Ops for several residual streams: hyper-connections (arXiv:2512.24880) and AltUp (arXiv:2301.13310).

With hyper-connections, a sublayer reads a weighted sum of the streams. A doubly stochastic matrix then mixes
the streams, and the sublayer's output is added to each stream with a separate weight. With AltUp, a layer
computes on one of several streams; the other streams are predicted and then corrected.

Axes: `b` sequences, `t` new tokens, `n` streams, `m` streams after the op, `h` hidden, `k` mixing weights per
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm, spell_equation
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .elementwise import sigmoid
from .norm import softmax

# --- Hyper-connections ---


@dataclass(frozen=True)
class SplitStreams(Op):
    """Copy x to `streams` streams."""

    opcode = "split_streams"
    kind = "elementwise"
    rule = "b t h -> b t n h"

    streams: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """`n` streams."""
        return {"n": self.streams}

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Copies."""
        return (np.repeat(operands[0][:, :, None], self.streams, axis=2),)


@dataclass(frozen=True)
class JoinStreams(Op):
    """Weighted sum of streams; each weight is sigmoid(logit · scale + base) + eps.

    Logits are a function of normalized streams: an earlier product computes them from the raw streams, and
    this op divides them by the RMS. FLOPs: 2 per element for the squares, 2 per element for the sum, 6 per
    logit.
    """

    opcode = "join_streams"
    kind = "norm"
    rule = "b t n! h!, b t k!, k!, s! -> b t h!"
    takes = ("streams", "logits", "base", "scale")

    eps: float = 1e-6
    norm_eps: float = 1e-6

    def count(self, streams: int) -> tuple[int, ...]:
        """The number of logits in each part of the logits; each part has one scale."""
        return (streams,)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found, streams = super().types(operands), operands[0].shape[2]
        parts = self.count(streams) if isinstance(streams, int) else ()
        if operands[1].shape[-1] != sum(parts) or operands[3].shape[0] != len(parts):
            fact = f"{operands[1].shape[-1]} logits and {operands[3].shape[0]} scales for {streams} streams"
            raise VerifyError(f"{self.opcode}: {fact}, expected {sum(parts)} and {len(parts)}")
        return found

    def arithmetic(self, operands: Sequence[Tensor]) -> DType:
        """fp32."""
        return FP32

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """4 per element (squares and weighted sum), and 6 per logit."""
        return 4 * operands[0].elements + 6 * operands[1].elements

    def weights(self, operands: Sequence[Array]) -> list[Array]:
        """The parts of logit · scale + base, in fp32."""
        streams, logits, base, scale = operands
        mean = np.mean(streams**2, axis=(2, 3))[..., None]
        parts = self.count(streams.shape[2])
        scales = np.repeat(scale, parts)
        found = logits / np.sqrt(mean + self.norm_eps) * scales + base
        return np.split(found, np.cumsum(parts)[:-1], axis=-1)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum."""
        into = sigmoid(self.weights(operands)[0]) + self.eps
        return (np.einsum("btnh,btn->bth", operands[0], into),)


@dataclass(frozen=True)
class EnterStreams(JoinStreams):
    """`join_streams`, plus the inputs of `leave_streams`: a weight per stream and a mixing matrix.

    The weights are 2 · sigmoid. The matrix is a softmax over rows; then its columns and rows are alternately
    divided by their sums, `iterations` times in total (Sinkhorn and Knopp), at 2 FLOPs per element.
    """

    opcode = "enter_streams"
    rule = "b t n! h!, b t k!, k!, s! -> b t h!, b t n!, b t n! m"

    iterations: int = 20

    def count(self, streams: int) -> tuple[int, ...]:
        """An input weight and an output weight per stream, and the elements of the matrix."""
        return (streams, streams, streams * streams)

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        return {"m": operands[0].shape[2]}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The sum of the streams, with weights in fp32."""
        return operands[0].dtype, FP32, FP32

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The FLOPs of `join_streams`, plus 2 per matrix element for each division."""
        return super().vector(operands, results[:1]) + 4 * self.iterations * results[2].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum, the weights, the matrix."""
        streams = operands[0]
        into, out, mix = self.weights(operands)
        x = np.einsum("btnh,btn->bth", streams, sigmoid(into) + self.eps)
        count = streams.shape[2]
        matrix = softmax(mix.reshape((*mix.shape[:2], count, count))) + self.eps
        matrix = matrix / (matrix.sum(axis=-2, keepdims=True) + self.eps)
        for _ in range(self.iterations - 1):
            for axis in (-1, -2):
                matrix = matrix / (matrix.sum(axis=axis, keepdims=True) + self.eps)
        return x, 2 * sigmoid(out), matrix


@dataclass(frozen=True)
class LeaveStreams(Op):
    """Mix the streams by a matrix, and add x to each stream with its weight."""

    opcode = "leave_streams"
    kind = "elementwise"
    rule = "b t n! h, b t h, b t m!, b t n! m! -> b t m! h"
    takes = ("streams", "x", "weights", "matrix")

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per element for each mixed stream, and 2 for x."""
        return 2 * results[0].elements * (operands[0].shape[2] + 1)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        streams, x, weights, matrix = operands
        mixed = np.einsum("btnh,btnm->btmh", streams, matrix)
        return (mixed + np.einsum("bth,btm->btmh", x, weights),)


# --- Alternating updates ---


@dataclass(frozen=True)
class Pick(Op):
    """Select stream `index`, or for −1 the part of the current layer from a value with one part per layer."""

    opcode = "pick"
    kind = "gather"
    rule = "b t [n] h -> b t h"
    linear = frozenset({0})

    index: int = -1

    def numbered(self, layer: int) -> Op:
        return replace(self, index=layer) if self.index < 0 else self

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        return (results[0].bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (operands[0][:, :, self.index],)


@dataclass(frozen=True)
class StreamMix(Op):
    """Replace each stream by a sum of all streams, with separate weights for each token."""

    opcode = "stream_mix"
    kind = "elementwise"
    rule = "b t n h, b t m n -> b t m h"
    takes = ("streams", "weights")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product per token."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 1, 0, 0),)


@dataclass(frozen=True)
class StreamAdd(Op):
    """Add x · (weight + `offset`), or x if there are no weights, to each stream from `first` on."""

    opcode = "stream_add"
    kind = "elementwise"
    takes = ("streams", "x", "*weights")
    vector_flops = 2

    first: int = 0
    offset: float = 0.0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`b t n h, b t h -> b t n h`, with an additional operand `b t n` if there are weights."""
        return equation(f"b t n h, b t h{', b t n' * (len(operands) - 2)} -> b t n h")

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sums."""
        streams, x, *weights = operands
        added = x[:, :, None] * (weights[0][..., None] + self.offset if weights else 1.0)
        chosen = np.arange(streams.shape[2])[:, None] >= self.first
        return (streams + added * chosen,)


@dataclass(frozen=True)
class ScaleBy(Op):
    """x · w, where w has one number per element of a row, or one number in total."""

    opcode = "scale_by"
    kind = "elementwise"
    takes = ("x", "weight")
    vector_flops = 1

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """`* h, h -> * h`, or `* h, [o] -> * h` if w has one number."""
        one = operands[1].shape == (1,) and operands[0].shape[-1] != 1
        return spell_equation(f"* h, {'[o]' if one else 'h'} -> * h", len(operands[0].shape))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product."""
        return (operands[0] * operands[1],)
