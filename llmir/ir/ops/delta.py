"""Linear attention with a matrix state per head: the gated delta rule and lightning attention.

Axes: `b` sequences, `t` new tokens, `g` key heads, `r` value heads for each key head, `d` key size, `e` value
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size

from .scan import Scan, decays, softplus


@dataclass(frozen=True)
class L2Norm(Op):
    """x / √(Σx² + eps) over the last axis; 3 FLOPs per element (square, sum, scale)."""

    opcode = "l2_norm"
    kind = "norm"
    rule = "* d! -> * d!"
    vector_flops = 3

    eps: float = 1e-6

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        (x,) = operands
        return (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + self.eps),)


@dataclass(frozen=True)
class DecayGate(Op):
    """−e^a · softplus(x + bias): the logarithm of the decay factor of each head."""

    opcode = "decay_gate"
    kind = "elementwise"
    rule = "b t g r, g r, g r -> b t g r"
    takes = ("x", "a_log", "bias")
    vector_flops = 6

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """All axes of heads flattened into one dimension."""
        return (prod(shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, a_log, bias = operands
        return (-np.exp(a_log).reshape(*a_log.shape, *(1,) * (x.ndim - 4)) * softplus(x + bias),)


@dataclass(frozen=True)
class KeyDecayGate(DecayGate):
    """Like `decay_gate`, with one decay factor for each element of a head's keys (KDA, arXiv:2510.26692)."""

    opcode = "key_decay_gate"
    rule = "b t g r d, g r, g r d -> b t g r d"

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of heads flattened into one dimension; `a` has the axes of `x`."""
        return (1, 1, prod(shape), 1) if slot == 1 else (prod(shape),)


@dataclass(frozen=True)
class GatedDelta(Scan):
    """The gated delta rule (arXiv:2412.06464): S ← α·S, S ← S + β·k·(v − Sᵀk)ᵀ, y = Sᵀq·scale.

    α is e^decay, for each head or for each row of S (KDA, arXiv:2510.26692). Chunks use the WY form
    (arXiv:2412.06464, section 3.3).
    """

    opcode = "gated_delta"
    takes = ("q", "k", "v", "decay", "beta", "state")
    aliases = MappingProxyType({1: 5})
    usual = 64  # the default of chunk_gated_delta_rule and chunk_kda in fla-org/flash-linear-attention

    scale: float = 1.0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The equation, for one decay factor per head or per element of the keys."""
        d = " d" * (len(operands[3].shape) - 4)
        terms = f"b t! g d!, b t! g d!, b t! g r e, b t! g r{d}, b t! g r, b g r d e"
        return equation(f"{terms} -> b t! g r e, b g r d e")

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """For each chunk and head: k·kᵀ, q·kᵀ, the inverse by k and by v, k and q by S, scores by v, kᵀ·v.

        The inversion of the triangular matrix, chunk²/3 more per token, is not counted.
        """
        if self.chunk == 1:
            return ()
        n = self.equation(operands).sizes(operands)
        count, length = self.chunks(n["t"])
        heads = n["b"] * count * n["g"] * n["r"]
        square, keys = Gemm(length, length, n["d"], heads), Gemm(length, n["d"], length, heads)
        values, reads = Gemm(length, n["e"], length, heads), Gemm(length, n["e"], n["d"], heads)
        return (square, square, keys, values, reads, reads, values, Gemm(n["d"], n["e"], length, heads))

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """7 per token and state element (decay 1, S·k 2, input 2, output 2); fewer if tokens form chunks."""
        n = self.equation(operands).sizes(operands)
        if self.chunk == 1:
            return 7 * results[0].elements * n["d"]
        count, length = self.chunks(n["t"])
        masks = 6 * length * length * n["b"] * count * n["g"] * n["r"]
        return masks + 2 * results[0].elements + 2 * count * results[1].elements

    def workspace(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The intermediate tensors of a chunked computation.

        These are h, A, w, u and v_new in the dtype of k, and g in fp32, as in `chunk_gated_delta_rule_fwd` of
        flash-linear-attention.
        """
        states = self.between(operands, results)
        if not states:
            return 0
        _, k, v, decay, beta = operands[:5]
        each = k.shape[-1] + 2 * v.shape[-1] + self.chunk
        return (k.dtype.bits // 8) * (states + each * beta.elements) + 4 * decay.elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Chunk by chunk."""
        q, k, v, decay, beta, state = operands
        decay, y = decay if decay.ndim > 4 else decay[..., None], np.empty_like(v)
        for part in self.pieces(v.shape[1]):
            start, between, end = decays(decay[:, part])
            here, asked = k[:, part], q[:, part] * self.scale
            shape = (*beta.shape[2:], here.shape[-1])
            weight = np.broadcast_to(between, (*between.shape[:3], *shape))
            alike = np.einsum("blgd,bsgd,blsgrd->bgrls", here, here, weight, optimize=True)
            seen = np.einsum("blgd,bsgd,blsgrd->bgrls", asked, here, weight, optimize=True)
            writes = np.moveaxis(beta[:, part], 1, -1)[..., None]
            known = np.einsum("blgrd,bgrde->blgre", start * here[:, :, :, None], state, optimize=True)
            due = writes * np.moveaxis(v[:, part] - known, 1, -2)
            new = np.linalg.solve(np.eye(alike.shape[-1]) + writes * np.tril(alike, -1), due)
            y[:, part] = np.einsum("bgrls,bgrse->blgre", seen, new) + np.einsum(
                "blgrd,bgrde->blgre", start * asked[:, :, :, None], state, optimize=True
            )
            added = np.einsum("bsgrd,bgrse->bgrde", end * here[:, :, :, None], new, optimize=True)
            state = start[:, -1, ..., None] * state + added
        return y, state


@dataclass(frozen=True)
class Lightning(Scan):
    """Lightning attention (arXiv:2401.04658): S ← λ·S + k·vᵀ, y = Sᵀq, with a constant λ = e^−slope per head.

    Slopes are the ALiBi slopes, times one minus the fraction of layers before this layer (MiniMax-01,
    arXiv:2501.08313).
    """

    opcode = "lightning_attention"
    rule = "b t! g r d!, b t! g r d!, b t! g r e, b g r d e -> b t! g r e, b g r d e"
    takes = ("q", "k", "v", "state")
    aliases = MappingProxyType({1: 3})
    usual = 256  # block_size of MiniMax-01

    layers: int = 1
    layer: int = -1  # the number of the layer that contains the op

    def numbered(self, layer: int) -> Op:
        return replace(self, layer=layer) if self.layer < 0 else self

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """For each chunk and head: q·kᵀ, scores by v, q by S, kᵀ·v."""
        if self.chunk == 1:
            return ()
        n = self.equation(operands).sizes(operands)
        count, length = self.chunks(n["t"])
        heads = n["b"] * count * n["g"] * n["r"]
        return (
            Gemm(length, length, n["d"], heads),
            Gemm(length, n["e"], length, heads),
            Gemm(length, n["e"], n["d"], heads),
            Gemm(n["d"], n["e"], length, heads),
        )

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """5 per token and state element (decay 1, input 2, output 2); fewer if tokens form chunks."""
        n = self.equation(operands).sizes(operands)
        if self.chunk == 1:
            return 5 * results[0].elements * n["d"]
        count, length = self.chunks(n["t"])
        return length * length * n["b"] * count * n["g"] * n["r"] + 2 * count * results[1].elements

    def workspace(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The state update of each chunk, in fp32, as in vLLM's `lightning_attn.py`."""
        return 4 * self.between(operands, results)

    def slopes(self, first: int, count: int, heads: float) -> Array:
        """The slopes of `count` heads from number `first` on, out of `heads`."""
        rates: Array = 2.0 ** (-8 / heads * (1 + first + np.arange(count)))
        return rates * (1 - max(self.layer, 0) / (self.layers - 1 + 1e-5) + 1e-5)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Compute chunk by chunk. There is only one group, so `r` numbers all heads."""
        q, k, v, state = operands
        heads, y = Binding()(results[0].shape[3]), np.empty_like(v)
        slopes = self.slopes(at.origin("r"), v.shape[3], heads)
        for part in self.pieces(v.shape[1]):
            steps = np.broadcast_to(-slopes, (1, v[:, part].shape[1], len(slopes)))
            start, between, end = decays(steps)
            seen = np.einsum("blgrd,bsgrd,alsr->bgrls", q[:, part], k[:, part], between, optimize=True)
            y[:, part] = np.einsum("bgrls,bsgre->blgre", seen, v[:, part]) + np.einsum(
                "alr,blgrd,bgrde->blgre", start, q[:, part], state, optimize=True
            )
            added = np.einsum("asr,bsgrd,bsgre->bgrde", end, k[:, part], v[:, part], optimize=True)
            state = start[0, -1, :, None, None] * state + added
        return y, state
