"""State-space scans (Mamba, Mamba-2), and the short convolution before them.

A scan stores one state per sequence and channel. Every token decays this state and adds to it.

Axes: `b` sequences, `t` new tokens, `g` groups, `r` heads per group, `d` head size, `n` state size, `f`
channels. Axes of the convolution: `v` tokens before the new tokens, `w` taps; all other axes are channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import DType
from llmir.ir.core.equation import Equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, spell_equation
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Max, Min, Size, ceildiv

from .elementwise import silu

# --- Scans ---


def softplus(x: Array) -> Array:
    """log(1 + eˣ)."""
    result: Array = np.logaddexp(0, x)
    return result


@dataclass(frozen=True)
class Scan(Op):
    """Base class of scans; the last operand is the state, and the second result is the new state.

    Matrix products process `chunk` tokens at once. With `chunk` 1, the op is the equivalent recurrence.
    """

    kind = "scan"
    usual: ClassVar[int] = 1  # the default chunk of kernels

    chunk: int = 1

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.chunk < 1:
            raise VerifyError(f"{self.opcode}: chunk: expected an integer from 1 up, got {self.chunk}")
        return super().types(operands)

    @property
    def chunked(self) -> Op | None:
        """The op with the default chunk."""
        return replace(self, chunk=self.usual) if self.chunk == 1 else None

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtypes of x and of the state."""
        return operands[0].dtype, operands[-1].dtype

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """All axes of heads flattened into one dimension."""
        return (prod(shape),)

    def chunks(self, tokens: Size) -> tuple[Size, Size]:
        """The number of chunks and the tokens per chunk; kernels pad the last chunk to full length."""
        length = Min.of(tokens, self.chunk)
        return ceildiv(tokens, self.chunk), length

    def between(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The elements of all states between chunks; 0 for one token, which updates only the final state."""
        tokens = operands[0].shape[1]
        return Min.of(tokens - 1, 1) * self.chunks(tokens)[0] * results[1].elements if self.chunk > 1 else 0

    def pieces(self, tokens: int) -> Iterator[slice]:
        """The tokens of each chunk, as slices."""
        return (slice(i, min(i + self.chunk, tokens)) for i in range(0, tokens, self.chunk))


def decays(steps: Array) -> tuple[Array, Array, Array]:
    """Decay factors from log-decays [b, l, …]: from the start to each token, between tokens, and to the end.

    Factors between tokens have shape [b, l, s, …], with zeros where s is after l.
    """
    total = np.cumsum(steps, axis=1)
    seen = np.tril(np.ones((steps.shape[1],) * 2, dtype=bool)).reshape(
        (1, *(steps.shape[1],) * 2, *(1,) * (steps.ndim - 2))
    )
    between = np.where(seen, total[:, :, None] - total[:, None], -np.inf)
    return np.exp(total), np.exp(between), np.exp(total[:, -1:] - total)


@dataclass(frozen=True)
class SelectiveScan(Op):
    """Mamba's scan: h ← e^(Δ·A)·h + Δ·b·x, y = c·h + skip·x, Δ = softplus(dt) (arXiv:2312.00752, alg. 2)."""

    opcode = "selective_scan"
    kind = "scan"
    rule = "b t! f, b t! f, b t! n!, b t! n!, f n!, f, b f n! -> b t! f, b f n!"
    takes = ("x", "dt", "b", "c", "a_log", "skip", "state")
    aliases = MappingProxyType({1: 6})

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return operands[0].dtype, operands[-1].dtype

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """8 per token and state element (decay 2, input 2, state 2, output 2)."""
        return 8 * operands[0].elements * operands[4].shape[1]

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Compute token by token."""
        x, dt, b, c, a_log, skip, state = operands
        step, y = softplus(dt), np.empty_like(x)
        for t in range(x.shape[1]):
            decay = np.exp(-np.exp(a_log) * step[:, t, :, None])
            state = decay * state + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
            y[:, t] = np.einsum("bfn,bn->bf", state, c[:, t])
        return y + skip * x, state


@dataclass(frozen=True)
class SsdScan(Scan):
    """Mamba-2's scan: h ← e^(−Δ·e^a)·h + Δ·x·bᵀ, y = h·c + skip·x (arXiv:2405.21060, section 6).

    Δ is softplus(dt + dt_bias), limited to at least `least`, and a is one number per head.
    """

    opcode = "ssd_scan"
    rule = "b t! g r d, b t! g r, b t! g n!, b t! g n!, g r, g r, g r, b g r d n! -> b t! g r d, b g r d n!"
    takes = ("x", "dt", "b", "c", "a_log", "dt_bias", "skip", "state")
    aliases = MappingProxyType({1: 7})
    usual = 256  # chunk_size of state-spaces/mamba and of most configs

    least: float = 0.0

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """For each chunk: c·bᵀ for each group; for each head the result by x, c by the state, x by b."""
        if self.chunk == 1:
            return ()
        n = self.equation(operands).sizes(operands)
        count, length = self.chunks(n["t"])
        groups, heads = n["b"] * count * n["g"], n["b"] * count * n["g"] * n["r"]
        return (
            Gemm(length, length, n["n"], groups),
            Gemm(length, n["d"], length, heads),
            Gemm(length, n["d"], n["n"], heads),
            Gemm(n["d"], n["n"], length, heads),
        )

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """6 per token and state element (decay 1, input 2, state 1, output 2); fewer with chunks."""
        n = self.equation(operands).sizes(operands)
        if self.chunk == 1:
            return 6 * operands[0].elements * n["n"]
        count, length = self.chunks(n["t"])
        masks = 3 * length * length * n["b"] * count * n["g"] * n["r"]
        return masks + 4 * operands[0].elements + 2 * count * results[1].elements

    def workspace(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """State updates of the chunks in fp32, states in c's dtype, and c·bᵀ in fp32.

        This follows `_mamba_chunk_scan_combined_fwd` of state-spaces/mamba, with steps and decays in fp32.
        """
        states = self.between(operands, results)
        if not states:
            return 0
        x, dt, _, c = operands[:4]
        count, length = self.chunks(x.shape[1])
        wide = c.dtype.bits // 8
        squares = Min.of(x.shape[1] - 1, 1) * count * x.shape[0] * x.shape[2] * length * length
        return wide * states + 4 * Max.of(states, squares) + 8 * dt.elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Chunk by chunk."""
        x, dt, b, c, a_log, dt_bias, skip, state = operands
        step, y = np.maximum(softplus(dt + dt_bias), self.least), np.empty_like(x)
        for part in self.pieces(x.shape[1]):
            start, between, end = decays(-np.exp(a_log) * step[:, part])
            new = step[:, part, :, :, None] * x[:, part]
            scores = np.einsum("blgn,bsgn,blsgr->blsgr", c[:, part], b[:, part], between, optimize=True)
            y[:, part] = np.einsum("blsgr,bsgrd->blgrd", scores, new) + np.einsum(
                "blgr,blgn,bgrdn->blgrd", start, c[:, part], state, optimize=True
            )
            added = np.einsum("bsgr,bsgrd,bsgn->bgrdn", end, new, b[:, part], optimize=True)
            state = start[:, -1, :, :, None, None] * state + added
        return y + skip[..., None] * x, state


# --- Short convolutions ---


@dataclass(frozen=True)
class CausalConv(Op):
    """Σ weight[j] · x[t − w + 1 + j] (+ bias) per channel; the state contains the last w − 1 tokens."""

    opcode = "causal_conv"
    kind = "scan"
    takes = ("x", "weight", "state", "*bias")
    aliases = MappingProxyType({1: 2})
    activation_flops: ClassVar[int] = 0

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The bias is optional."""
        bias = ", *" * (len(operands) - 3)
        return spell_equation(f"b t! *, * w!, b v! *{bias} -> b t! *, b v! *", len(operands[0].shape))

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        n = self.equation(operands).sizes(operands)
        if n["v"] + 1 != n["w"]:
            raise VerifyError(f"a state of {n['v']} tokens for {n['w']} taps, expected one less than taps")
        return super().types(operands)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtypes of x and of the state."""
        return operands[0].dtype, operands[2].dtype

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """[channels, 1, taps], as in a depthwise `Conv1d` of PyTorch."""
        return (prod(shape[:-1]), 1, shape[-1]) if slot == 1 else (prod(shape),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """2 per tap and element; 1 per element for a bias, 4 for silu."""
        biases = len(operands) - 3
        return results[0].elements * (2 * operands[1].shape[-1] + biases + self.activation_flops)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The weighted sum of the stored and the new tokens."""
        x, weight, state, *bias = operands
        line, tokens = np.concatenate([state, x], axis=1), x.shape[1]
        taps = (line[:, j : j + tokens] * weight[..., j] for j in range(weight.shape[-1]))
        y: Array = sum(taps, start=np.zeros_like(x))
        return sum(bias, start=y), line[:, tokens:]


@dataclass(frozen=True)
class CausalConvSilu(CausalConv):
    """`causal_conv` followed by silu, in one kernel."""

    opcode = "causal_conv_silu"
    lowered = True
    activation_flops = 4

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The convolution, then silu."""
        y, state = super().evaluate(operands, results, at)
        return silu(y), state
