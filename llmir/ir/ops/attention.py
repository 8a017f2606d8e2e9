"""Attention over keys and values: scores, mask and mix as separate ops, or one fused op.

Axes: `b` sequences, `t` new tokens, `c` all tokens so far, `g` key/value heads, `r` query heads for each
key/value head, `d` head size, `e` head size of the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.masks import Mask, mask
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, ceildiv

from .elementwise import SoftCap, soft_cap
from .norm import softmax


def mask_scores(scores: Array, by: Mask, heads: Mapping[str, int], at: ExecutionPlace) -> Array:
    """Apply a mask to `scores` of shape [b, *heads, t, c]; `heads`: head counts in the whole model."""
    queries, keys = scores.shape[-2:]
    query = (at.cached + at.origin("t") + np.arange(queries))[:, None]
    key = by.positions(keys, at.cached + (at.new or queries))
    number = np.zeros((1, 1), dtype=int)  # one number for each head
    for (axis, size), local in zip(heads.items(), scores.shape[1:-2], strict=True):
        number = number[..., None, :, :] * size + at.origin(axis) + np.arange(local)[:, None, None]
    bias = by.bias(number, math.prod(heads.values()), query, key)
    return np.where(by.sees(query, key), scores + bias, -np.inf)


@dataclass(frozen=True)
class AttentionScores(Op):
    """q · kᵀ · scale, for all pairs of a query and a key."""

    opcode = "attention_scores"
    kind = "attention"
    rule = "b t g r d, b c g d -> b g r t c"
    takes = ("q", "k")
    alike = MappingProxyType({1: 0})

    scale: float = 1.0

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each sequence and key/value head."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product, scaled."""
        (scores,) = super().evaluate(operands, results, at)
        return (scores * self.scale,)


@dataclass(frozen=True)
class AttentionMask(Op):
    """Set scores to −∞ where the mask hides a key from a query, and add the bias of the mask.

    Eager code adds the mask to the scores: 1 FLOP per element, plus the FLOPs of the bias.
    """

    opcode = "attention_mask"
    kind = "elementwise"
    rule = "* t! c! -> * t! c!"

    mask: str

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mask(self.mask)
        return super().types(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element, plus the bias of the mask (2 for ALiBi)."""
        return results[0].elements * (1 + mask(self.mask).bias_flops)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        axes = [d.axes[0] for d in self.equation(results).results[0]]
        heads = dict(zip(axes[1:-2], map(Binding(), results[0].shape[1:-2]), strict=True))
        return (mask_scores(operands[0], mask(self.mask), heads, at),)


@dataclass(frozen=True)
class AttentionMix(Op):
    """probabilities · v."""

    opcode = "attention_mix"
    kind = "attention"
    rule = "b g r t c, b c g e -> b t g r e"
    takes = ("probabilities", "v")
    alike = MappingProxyType({1: 0})

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each sequence and key/value head."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)


@dataclass(frozen=True)
class FlashAttention(Op):
    """softmax(q · kᵀ · scale) · v over the pairs that a mask allows, without scores in memory.

    This is flash attention (arXiv:2205.14135). Scores are soft-capped unless `cap` is 0, and the softmax may
    have sinks. The op reads q once, and the keys and values that at least one query sees. It writes the
    output once, in the dtype `to`, or in the dtype of q.
    """

    opcode = "flash_attention"
    lowered = True
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e -> b t g r e"
    takes = ("q", "k", "v", "*sinks")
    widens = frozenset({1, 2})

    mask: str
    scale: float = 1.0
    cap: float = 0.0
    to: str = ""

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The rule, with the axes of the sinks if the op has sinks."""
        return equation(self.rule.replace(" ->", ", g r ->") if operands[3:] else self.rule)

    @property
    def pattern(self) -> Mask:
        """The mask, which determines the numbers of pairs and keys."""
        return mask(self.mask)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        mask(self.mask)
        return super().types(operands)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to) if self.to else operands[0].dtype,)

    def remark(self, operands: Sequence[Tensor]) -> str:
        """The mask, if it is not the causal mask."""
        return "" if self.mask == "causal" else self.mask

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The two full products of eager code; `matrix` counts only the FLOPs of visible pairs."""
        rule = self.equation(operands)
        n = rule.sizes(operands)
        batch, rows = n["b"] * n["g"], n["r"] * n["t"]
        return (Gemm(rows, n["c"], n["d"], batch), Gemm(rows, n["e"], n["c"], batch))

    def _pairs(self, n: Mapping[str, Size]) -> Size:
        """Twice the pairs of one query head."""
        return self.pattern.pairs(n["t"], n["c"] - n["t"])

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """2·(d + e) for each query head and each pair that the mask allows."""
        n = self.equation(operands).sizes(operands)
        return n["b"] * n["g"] * n["r"] * (n["d"] + n["e"]) * self._pairs(n)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """Per pair and query head 5 (softmax), 2 (ALiBi), 6 (cap), half pairs rounded up; 5 per sink."""
        n = self.equation(operands).sizes(operands)
        each = 5 + mask(self.mask).bias_flops + SoftCap.vector_flops * bool(self.cap)
        sinks = 5 * n["t"] * len(operands[3:])
        return n["b"] * n["g"] * n["r"] * (each * ceildiv(self._pairs(n), 2) + sinks)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Only the keys and values that at least one query sees."""
        n = self.equation(operands).sizes(operands)
        seen = self.pattern.keys(n["t"], n["c"] - n["t"])
        q, k, v, *sinks = operands
        return (q.bytes, *(x.resized(1, seen).bytes for x in (k, v)), *(x.bytes for x in sinks))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unfused computation, as in eager code."""
        q, k, v, *sinks = operands
        scores = np.einsum("btgrd,bcgd->bgrtc", q, k, optimize=True) * self.scale
        scores = soft_cap(scores, self.cap) if self.cap else scores
        g, r = map(Binding(), results[0].shape[2:4])
        scores = mask_scores(scores, mask(self.mask), {"g": g, "r": r}, at)
        return (np.einsum("bgrtc,bcge->btgre", softmax(scores, *sinks), v, optimize=True),)
