"""Attention over blocks of keys that an index chooses (MiniMax-M3): a head of it for each key/value head.

Axes: `b` sequences, `t` new tokens, `c` all tokens up to now, `n` blocks of them, `g` key/value heads, `r`
query heads for each of them, `y` head size of the index, `d` and `e` those of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.gemm import Gemm
from llmir.ir.core.masks import ChosenBlocks, Mask, mask
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.atoms import ceildiv
from llmir.ir.sizes.polynomial import Size

from .attention import FlashAttention, masked
from .norm import softmax


def chosen_blocks(blocks: Array, keys: int, by: ChosenBlocks, local: int, at: Place) -> Array:
    """Whether a key is in one of the blocks of a query that score highest, of [b, g, t, n]: [b, g, t, c].

    The last `local` ones up to the query's own are among them.
    """
    own = ((at.cached + at.origin("t") + np.arange(blocks.shape[2])) // by.length)[:, None]
    number = np.arange(blocks.shape[3])
    ranked = np.where((number <= own) & (number > own - local), np.inf, blocks)
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., : by.width]
    found = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(found, order, True, axis=-1)
    seen: Array = np.repeat(found & (number <= own), by.length, axis=-1)[..., :keys]
    return seen


@dataclass(frozen=True)
class BlockScores(Op):
    """Of each block of `length` keys the largest q · kᵀ that a query sees, in fp32; keys are shared by heads.

    Of the product 2·m·n·k, and 1 (a comparison) a head and pair.
    """

    opcode = "block_scores"
    kind = "attention"
    rule = "b t g y, b c! y -> b g t n"
    takes = ("q", "k")

    length: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """As many blocks as there are, the last maybe not whole; `VerifyError` for blocks of none."""
        if self.length < 1:
            raise VerifyError(f"block_scores: expected keys from 1 up, got {self.length}")
        return {"n": ceildiv(operands[1].shape[1], self.length)}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32."""
        return (FP32,)

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """All heads at once, as keys are theirs together."""
        n = self.equation(operands).sizes(operands, n=0)
        return (Gemm(n["t"] * n["g"], n["c"], n["y"], n["b"]),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 a head and pair."""
        n = self.equation(operands).sizes(operands, n=0)
        return n["b"] * n["t"] * n["g"] * n["c"]

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """−∞ of blocks that are to come."""
        q, k = operands
        scores = masked(np.einsum("btgy,bcy->bgtc", q, k, optimize=True), mask("causal"), {"g": 1}, at)
        fill = [(0, 0)] * 3 + [(0, -scores.shape[-1] % self.length)]
        padded = np.pad(scores, fill, constant_values=-np.inf)
        return (padded.reshape((*scores.shape[:3], -1, self.length)).max(axis=-1),)


@dataclass(frozen=True)
class SelectBlocks(Op):
    """Scores with −∞ where a key is in none of the `top_k` blocks of highest index, of `length` keys each.

    The last `local` blocks up to a query's own are always chosen. 1 FLOP (a comparison) for each candidate,
    and 1 for each score.
    """

    opcode = "select_blocks"
    kind = "elementwise"
    rule = "b g r t! c!, b g t! n! -> b g r t! c!"
    takes = ("scores", "index")

    length: int
    top_k: int
    local: int = 1

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of the scores; `VerifyError` unless a query's own block is one of those chosen."""
        checked(self.opcode, self.length, self.top_k, self.local)
        return super().types(operands)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """One for each candidate, and for each score."""
        return operands[0].elements + operands[1].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """−∞ elsewhere."""
        scores, index = operands
        seen = chosen_blocks(index, scores.shape[-1], ChosenBlocks(self.length, self.top_k), self.local, at)
        return (np.where(seen[:, :, None], scores, -np.inf),)


def checked(opcode: str, length: int, top_k: int, local: int) -> None:
    """`VerifyError` for blocks that cannot be chosen."""
    if length < 1 or not 1 <= local <= top_k:
        raise VerifyError(
            f"{opcode}: cannot choose {top_k} blocks of {length} keys, {local} of them the last"
        )


@dataclass(frozen=True)
class BlockSparseAttention(FlashAttention):
    """That of each query over the keys alone of the blocks that an index says, as `select_blocks` has it.

    The index is the last operand; its largest are found inside, by a comparison for each candidate.
    """

    opcode = "block_sparse_attention"
    kind = "attention"
    rule = "b t g r d, b c! g d, b c! g e, b g t n! -> b t g r e"
    takes = ("q", "k", "v", "index")

    length: int = field(kw_only=True)
    top_k: int = field(kw_only=True)
    local: int = field(default=1, kw_only=True)

    @property
    def pattern(self) -> Mask:
        """A query's own block up to itself, and the others that are chosen."""
        return ChosenBlocks(self.length, self.top_k)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As the equation says; `VerifyError` unless a query's own block is one of those chosen."""
        checked(self.opcode, self.length, self.top_k, self.local)
        return super().types(operands)

    def remark(self, operands: Sequence[Tensor]) -> str:
        """How many keys a query sees."""
        return f"{self.top_k} blocks of {self.length} keys a query"

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The rule, in which the last axes are the index's."""
        return equation(self.rule)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """For each pair and query head 5 (softmax), half-pairs rounded up; 1 a candidate."""
        n = self.equation(operands).sizes(operands)
        return 5 * n["b"] * n["g"] * n["r"] * ceildiv(self._pairs(n), 2) + operands[3].elements

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As eager code does it."""
        q, k, v, index = operands
        scores = np.einsum("btgrd,bcgd->bgrtc", q, k, optimize=True) * self.scale
        scores = masked(scores, mask(self.mask), {"g": 1, "r": 1}, at)
        seen = chosen_blocks(index, k.shape[1], ChosenBlocks(self.length, self.top_k), self.local, at)
        weights = softmax(np.where(seen[:, :, None], scores, -np.inf))
        return (np.einsum("bgrtc,bcge->btgre", weights, v, optimize=True),)
