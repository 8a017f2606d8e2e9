"""The attention core, eager or fused.

Axes: `b` sequences, `t` new tokens, `c` all tokens up to now, `g` key/value heads, `r` query heads for
each of them, `d` head size, `e` head size of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..dim import Size, ceildiv, product
from ..dtype import DType
from ..dtype import dtype as named
from ..masks import mask
from ..op import Array, Gemm, Op, Place, operand_gemm
from ..tensor import Tensor
from .norm import softmax


def visible(stated: str, queries: int, keys: int, at: Place) -> Array:
    """Which keys each query sees by a mask: [queries, keys]. The keys are those up to the last new token."""
    query = at.cached + at.origin("t") + np.arange(queries)
    key = at.cached + (at.new or queries) - keys + np.arange(keys)
    return mask(stated).sees(query[:, None], key)


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
class AttentionMask(Op):
    """Scores with −∞ where a query does not see a key; 1 FLOP an element, as eager code adds it."""

    opcode = "attention_mask"
    kind = "elementwise"
    rule = "* t! c! -> * t! c!"
    vector_flops = 1

    mask: str

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of the scores; `VerifyError` for no mask."""
        mask(self.mask)
        return super().types(operands)

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """−∞ where the mask says so."""
        (scores,) = operands
        seen = visible(self.mask, scores.shape[-2], scores.shape[-1], at)
        return (np.where(seen, scores, -np.inf),)


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
    """softmax(q · kᵀ · scale) · v without the scores in memory (arXiv:2205.14135), of the pairs of a mask.

    Reads q once, of k and v what some query sees, and writes the output once, in the type `to` or else q's.
    """

    opcode = "flash_attention"
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e -> b t g r e"
    takes = ("q", "k", "v")
    widens = frozenset({1, 2})

    mask: str
    scale: float = 1.0
    to: str = ""

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As the equation says; `VerifyError` for no mask."""
        mask(self.mask)
        return super().types(operands)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """`to`, or that of q."""
        return (named(self.to) if self.to else operands[0].dtype,)

    def remark(self, operands: Sequence[Tensor]) -> str:
        """The mask, where it is not what all decoders have."""
        return "" if self.mask == "causal" else self.mask

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """The two products of eager code; `matrix` counts the part that is done."""
        rule = self.equation(operands)
        n = rule.sizes(operands)
        batch, rows = n["b"] * n["g"], n["r"] * n["t"]
        return (Gemm(rows, n["c"], n["d"], batch), Gemm(rows, n["e"], n["c"], batch))

    def _pairs(self, n: Mapping[str, Size]) -> Size:
        """Twice the pairs of one query head."""
        return mask(self.mask).pairs(n["t"], n["c"] - n["t"])

    def _softmax(self, n: Mapping[str, Size], *heads: str) -> Size:
        return 5 * product(n[axis] for axis in heads) * ceildiv(self._pairs(n), 2)

    def matrix(self, operands: Sequence[Tensor]) -> Size:
        """2·(d + e) for each pair that the mask leaves, and query head."""
        n = self.equation(operands).sizes(operands)
        return n["b"] * n["g"] * n["r"] * (n["d"] + n["e"]) * self._pairs(n)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The softmax, 5 for each such pair and query head (counted in half-pairs, rounded up)."""
        return self._softmax(self.equation(operands).sizes(operands), "b", "g", "r")

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """Of keys and values, those that some query sees."""
        n = self.equation(operands).sizes(operands)
        seen = mask(self.mask).keys(n["t"], n["c"] - n["t"])
        return (operands[0].bytes, *(x.resized(1, seen).bytes for x in operands[1:]))

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As eager code does it."""
        q, k, v = operands
        scores = np.einsum("btgrd,bcgd->bgrtc", q, k, optimize=True) * self.scale
        scores = np.where(visible(self.mask, q.shape[1], k.shape[1], at), scores, -np.inf)
        return (np.einsum("bgrtc,bcge->btgre", softmax(scores), v, optimize=True),)
