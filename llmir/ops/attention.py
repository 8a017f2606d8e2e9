"""The attention core, eager or fused.

Axes: `b` sequences, `t` new tokens, `c` all tokens up to now, `g` key/value heads, `r` query heads for
each of them, `d` head size, `e` head size of the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from ..dim import Max, Min, Size, ceildiv
from ..dtype import DType
from ..dtype import dtype as named
from ..op import Array, Gemm, Op, Place, operand_gemm
from ..tensor import Tensor
from .norm import softmax


def visible(queries: int, keys: int, at: Place) -> Array:
    """Which keys each query may see: [queries, keys], by global positions."""
    query = at.cached + at.origin("t") + np.arange(queries)
    result: Array = np.arange(keys) <= query[:, None]
    return result


@dataclass(frozen=True)
class AttentionScores(Op):
    """q · kᵀ · scale, all queries against all keys."""

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

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The product, scaled."""
        (scores,) = super().evaluate(operands, results, at)
        return (scores * self.scale,)


@dataclass(frozen=True)
class CausalMask(Op):
    """Scores with −∞ where a key is later than the query; 1 FLOP an element, as eager code adds it."""

    opcode = "causal_mask"
    kind = "elementwise"
    rule = "* t! c! -> * t! c!"
    vector_flops = 1

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """−∞ above the diagonal that ends at the last key."""
        (scores,) = operands
        return (np.where(visible(scores.shape[-2], scores.shape[-1], at), scores, -np.inf),)


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
    """softmax(q · kᵀ · scale) · v without the scores in memory (arXiv:2205.14135).

    Reads q, k and v once and writes the output once, in the type `to` or else q's. Every query sees all keys.
    """

    opcode = "flash_attention"
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e -> b t g r e"
    takes = ("q", "k", "v")
    widens = frozenset({1, 2})
    causal: ClassVar[bool] = False

    scale: float = 1.0
    to: str = ""

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """`to`, or that of q."""
        return (named(self.to) if self.to else operands[0].dtype,)

    @property
    def most(self) -> float:
        """Keys that a query sees at most."""
        return math.inf

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

    def seen(self, queries: int, keys: int, at: Place) -> Array:
        """Which keys each query sees."""
        return np.ones((queries, keys), dtype=bool)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As eager code does it."""
        q, k, v = operands
        scores = np.einsum("btgrd,bcgd->bgrtc", q, k, optimize=True) * self.scale
        scores = np.where(self.seen(q.shape[1], k.shape[1], at), scores, -np.inf)
        return (np.einsum("bgrtc,bcge->btgre", softmax(scores), v, optimize=True),)


@dataclass(frozen=True)
class CausalFlashAttention(FlashAttention):
    """FlashAttention in which the i-th new token sees the cache and new tokens up to itself.

    Of these it sees the last `window` keys, itself included; 0 is no window.
    """

    opcode = "causal_flash_attention"
    causal = True

    window: int = 0

    @property
    def most(self) -> float:
        """Keys that a query sees at most."""
        return self.window or math.inf

    def pairs(self, t: Size, c: Size) -> Size:
        """2·(T·(c−T) + T·(T+1)/2) = 2·T·c − T² + T without a window.

        With one of W, the first g = W − (c−T) queries, as far as there are, see one key more each, and all
        others W.
        """
        if not self.window:
            return 2 * t * c - t * t + t
        growing = Max.of(0, Min.of(t, self.window + t - c))
        return 2 * growing * (c - t) + growing * growing + growing + 2 * (t - growing) * self.window

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Of keys and values, those that some query sees."""
        if not self.window:
            return super().reads(operands, results)
        n = self.equation(operands).sizes(operands)
        seen = Min.of(n["c"], n["t"] + self.window - 1)
        return (operands[0].bytes, *(x.resized(1, seen).bytes for x in operands[1:]))

    def seen(self, queries: int, keys: int, at: Place) -> Array:
        """Keys up to the query's own, and from the first in its window on."""
        causal = visible(queries, keys, at)
        if not self.window:
            return causal
        result: Array = causal & ~visible(queries, keys, replace(at, cached=at.cached - self.window))
        return result
