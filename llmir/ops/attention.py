"""Attention: positions, the cache, and the core, eager or fused.

Axes: `b` sequences, `t` new tokens, `c` all tokens up to now, `g` key/value heads, `r` query heads for
each of them, `d` head size, `e` head size of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..dim import Size, ceildiv
from ..op import Gemm, Op, operand_gemm
from ..tensor import Tensor


@dataclass(frozen=True)
class Rope(Op):
    """Rotary positions on the last axis; 6 FLOPs a pair member (arXiv:2104.09864, eq. 34).

    `scaling` is none, linear, dynamic, llama3 or yarn, and `factors` its numbers in the order of HF's
    documentation. They change values, never costs.
    """

    opcode = "rope"
    kind = "elementwise"
    rule = "b t * d! -> b t * d!"
    vector_flops = 6

    theta: float = 10000.0
    scaling: str = "none"
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Append(Op):
    """A cache with the new tokens' rows written at its end, in place."""

    opcode = "append"
    kind = "elementwise"
    rule = "b p g d, b t g d -> b (p+t) g d"
    aliases = MappingProxyType({0: 0})

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The new rows only."""
        return (0, operands[1].bytes)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The new rows only."""
        return (operands[1].bytes,)


@dataclass(frozen=True)
class RopeAppend(Op):
    """Rotate q and k, and write k and v to their caches, in one kernel.

    Operands q, k, v, key cache, value cache; results rotated q, key cache, value cache.
    """

    opcode = "rope_append"
    kind = "elementwise"
    rule = "b t g r d!, b t g d!, b t g e, b p g d!, b p g e -> b t g r d!, b (p+t) g d!, b (p+t) g e"
    aliases = MappingProxyType({0: 0, 1: 3, 2: 4})

    theta: float = 10000.0
    scaling: str = "none"
    factors: tuple[float, ...] = ()

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """That of the rotations of q and k."""
        return Rope.vector_flops * (operands[0].elements + operands[1].elements)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """q, k and v; nothing of the caches."""
        return (*(t.bytes for t in operands[:3]), 0, 0)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """q, and the new rows of the caches."""
        return tuple(t.bytes for t in operands[:3])


@dataclass(frozen=True)
class AttentionScores(Op):
    """q · kᵀ · scale, all queries against all keys."""

    opcode = "attention_scores"
    kind = "attention"
    rule = "b t g r d, b c g d -> b g r t c"

    scale: float = 1.0

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each sequence and key/value head."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)


@dataclass(frozen=True)
class CausalMask(Op):
    """Scores with −∞ where a key is later than the query; 1 FLOP an element, as eager code adds it."""

    opcode = "causal_mask"
    kind = "elementwise"
    rule = "* t! c! -> * t! c!"
    vector_flops = 1


@dataclass(frozen=True)
class AttentionMix(Op):
    """probabilities · v."""

    opcode = "attention_mix"
    kind = "attention"
    rule = "b g r t c, b c g e -> b t g r e"

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each sequence and key/value head."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)


@dataclass(frozen=True)
class FlashAttention(Op):
    """softmax(q · kᵀ · scale) · v without the scores in memory (arXiv:2205.14135).

    Reads q, k and v once and writes the output once. Every query sees every key.
    """

    opcode = "flash_attention"
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e -> b t g r e"

    scale: float = 1.0

    def pairs(self, t: Size, c: Size) -> Size:
        """Twice the query-key pairs of one head (twice, so that half a square stays whole)."""
        return 2 * t * c

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The two products of eager code; `matrix` counts the part that is done."""
        rule = self.equation(operands)
        n = rule.sizes(operands)
        batch, rows = n["b"] * n["g"], n["r"] * n["t"]
        return (Gemm(rows, n["c"], n["d"], batch), Gemm(rows, n["e"], n["c"], batch))

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """2·(d + e) for each pair and query head."""
        n = self.equation(operands).sizes(operands)
        return n["b"] * n["g"] * n["r"] * (n["d"] + n["e"]) * self.pairs(n["t"], n["c"])

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The softmax, 5 for each pair and query head (counted in half-pairs, rounded up)."""
        n = self.equation(operands).sizes(operands)
        return 5 * n["b"] * n["g"] * n["r"] * ceildiv(self.pairs(n["t"], n["c"]), 2)


@dataclass(frozen=True)
class CausalFlashAttention(FlashAttention):
    """FlashAttention in which the i-th new token sees the cache and new tokens up to itself."""

    opcode = "causal_flash_attention"

    def pairs(self, t: Size, c: Size) -> Size:
        """2·(T·(c−T) + T·(T+1)/2) = 2·T·c − T² + T."""
        return 2 * t * c - t * t + t
