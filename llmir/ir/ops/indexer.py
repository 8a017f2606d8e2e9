"""The indexer of sparse attention over latents (DeepSeek-V3.2, arXiv:2512.02556): which keys a query sees.

Axes: `b` sequences, `t` new tokens, `c` all tokens up to now, `i` heads of the indexer, `y` their size, `g`
heads of the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.gemm import Gemm
from llmir.ir.core.masks import Mask, mask
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .attention import masked


def chosen(index: Array, k: int, by: Mask, at: Place) -> Array:
    """Which keys are among the k of a query that score highest and that it sees by a mask: [b, t, c]."""
    ranked = masked(index[:, None], by, {"g": 1}, at)[:, 0]
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., :k]
    found = np.zeros(index.shape, dtype=bool)
    np.put_along_axis(found, order, True, axis=-1)
    seen: Array = found & np.isfinite(ranked)  # of few keys, not all that are chosen are seen
    return seen


@dataclass(frozen=True)
class IndexScores(Op):
    """Σ over heads of weight · relu(q · kᵀ) · scale, of keys that all heads share, in fp32.

    Of the products 2·m·n·k, and 1 a head and pair for relu.
    """

    opcode = "index_scores"
    kind = "attention"
    rule = "b t i y, b c y, b t i -> b t c"
    takes = ("q", "k", "weights")
    alike = MappingProxyType({1: 0})

    scale: float = 1.0

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """That of q and k, and that of the weights."""
        n = self.equation(operands).sizes(operands)
        return (
            Gemm(n["t"] * n["i"], n["c"], n["y"], n["b"]),
            Gemm(1, n["c"], n["i"], n["b"] * n["t"]),
        )

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """relu, 1 a head and pair."""
        return results[0].elements * operands[0].shape[2]

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        q, k, weights = operands
        scores = np.maximum(np.einsum("btiy,bcy->btic", q, k, optimize=True), 0)
        return (np.einsum("btic,bti->btc", scores, weights, optimize=True) * self.scale,)


@dataclass(frozen=True)
class SelectKeys(Op):
    """Scores with −∞ where a key is not among the `top_k` of highest index that a query sees by `mask`.

    1 FLOP (a comparison) for each candidate, and 1 for each score.
    """

    opcode = "select_keys"
    kind = "elementwise"
    rule = "b g t! c!, b t! c! -> b g t! c!"
    takes = ("scores", "index")

    top_k: int
    mask: str

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of the scores; `VerifyError` for fewer keys than one."""
        if self.top_k < 1:
            raise VerifyError(f"select_keys: cannot select {self.top_k} keys")
        return super().types(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """One for each candidate, and for each score."""
        return operands[0].elements + operands[1].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """−∞ elsewhere."""
        scores, index = operands
        return (np.where(chosen(index, self.top_k, mask(self.mask), at)[:, None], scores, -np.inf),)
