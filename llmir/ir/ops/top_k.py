"""Routers: select experts with the largest scores (optionally by group, or with a bias), or by a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, INT32, DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .elementwise import sigmoid, sqrt_softplus
from .norm import softmax


@dataclass(frozen=True)
class TopK(Op):
    """The `k` largest values of each row and their indices; 1 FLOP (a comparison) per candidate.

    A bias, if present, affects only the choice (arXiv:2408.15664). With `groups` of neighboring values,
    candidates come from `kept` groups. These groups have the largest sums of their `best` highest values
    (arXiv:2405.04434, 2412.19437). With `normalize`, the chosen values are divided by their sum. They are
    then multiplied by `scale`.
    """

    opcode = "top_k"
    kind = "moe"
    rule = "b t e! -> b t k, b t k"
    takes = ("x", "*bias")
    scoring = 0  # FLOPs of a candidate's score

    k: int
    normalize: bool = False
    groups: int = 1
    kept: int = 1
    best: int = 1
    scale: float = 1.0

    def score(self, x: Array) -> Array:
        """The compared value: x itself by default."""
        return x

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The bias for each candidate is optional."""
        return equation(self.rule if len(operands) == 1 else "b t e!, e! -> b t k, b t k")

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        candidates = operands[0].shape[-1]
        if not 1 <= self.kept <= self.groups:
            raise VerifyError(f"{self.opcode}: cannot keep {self.kept} of {self.groups} groups")
        if isinstance(candidates, int):
            each = candidates // self.groups
            if candidates % self.groups or not 1 <= self.best <= each:
                fact = f"{candidates} candidates are not {self.groups} groups of {self.best} or more"
                raise VerifyError(f"{self.opcode}: {fact}")
            if not 1 <= self.k <= each * self.kept:
                raise VerifyError(f"{self.opcode}: cannot choose {self.k} of {each * self.kept}")
        return {"k": self.k}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Values as computed, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per candidate, 1 more if there are groups, 1 for a bias, and the FLOPs of the score."""
        compared = min(self.groups, 2)
        return (self.scoring + compared + len(operands) - 1) * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The values and indices, the largest value first."""
        scores = self.score(operands[0])
        ranked = self._limited(scores + operands[1] if len(operands) > 1 else scores)
        chosen = np.argsort(-ranked, axis=-1, kind="stable")[..., : self.k]
        values = np.take_along_axis(scores, chosen, axis=-1)
        total = values.sum(axis=-1, keepdims=True) if self.normalize else 1.0
        return values / total * self.scale, chosen

    def _limited(self, scores: Array) -> Array:
        """The scores, with −∞ outside the chosen groups."""
        *rows, candidates = scores.shape
        grouped = scores.reshape(*rows, self.groups, candidates // self.groups)
        highest = np.sort(grouped, axis=-1)[..., -self.best :].sum(axis=-1)
        order = np.argsort(-highest, axis=-1, kind="stable")
        rank = np.argsort(order, axis=-1, kind="stable")[..., None]
        limited: Array = np.where(rank < self.kept, grouped, -np.inf).reshape(scores.shape)
        return limited


@dataclass(frozen=True)
class SoftmaxTopK(TopK):
    """softmax and top-k in one kernel, as in engines; the softmax takes 5 FLOPs per candidate.

    The attributes and the bias have the same meaning as in `top_k`.
    """

    opcode = "softmax_top_k"
    lowered = True
    scoring = 5

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32 weights, as scores are in fp32, and 32-bit indices."""
        return (FP32, INT32)

    def score(self, x: Array) -> Array:
        """The softmax over all candidates."""
        return softmax(x)


@dataclass(frozen=True)
class SigmoidTopK(SoftmaxTopK):
    """sigmoid and top-k in one kernel; the sigmoid takes 4 FLOPs per candidate.

    The attributes and the bias have the same meaning as in `top_k`.
    """

    opcode = "sigmoid_top_k"
    scoring = 4

    def score(self, x: Array) -> Array:
        return sigmoid(x)


@dataclass(frozen=True)
class SqrtSoftplusTopK(SoftmaxTopK):
    """√softplus and top-k in one kernel; the score takes 6 FLOPs per candidate.

    The attributes and the bias have the same meaning as in `top_k`.
    """

    opcode = "sqrt_softplus_top_k"
    scoring = 6

    def score(self, x: Array) -> Array:
        return sqrt_softplus(x)


@dataclass(frozen=True)
class HashTopK(Op):
    """Look up the experts of each token id in a table, and divide their scores by the sum of the scores.

    The scores are multiplied by `scale`; 2 FLOPs per expert (hash routing, arXiv:2106.04426).
    """

    opcode = "hash_top_k"
    kind = "moe"
    rule = "b t e!, [v]! k, b t -> b t k, b t k"
    takes = ("x", "table", "ids")
    vector_flops = 2

    scale: float = 1.0

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Values as computed, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """One row of the table per token, and the scores of the experts in that row."""
        _, table, ids = operands
        return (results[0].bytes, table.dtype.bytes_of(ids.elements, *table.shape[1:]), ids.bytes)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        scores, table, ids = operands
        chosen = table[ids.astype(int)].astype(int)
        values = np.take_along_axis(scores, chosen, axis=-1)
        return values / values.sum(axis=-1, keepdims=True) * self.scale, chosen


@dataclass(frozen=True)
class SparseMixer(Op):
    """Choose two experts in sequence, as in Phi-3.5-MoE (arXiv:2409.12136, at inference).

    The weight of a chosen expert is a softmax over remaining candidates near the largest score. A candidate
    is near if its difference from the largest score is at most 2·jitter, relative to the larger magnitude.
    """

    opcode = "sparse_mixer"
    kind = "moe"
    rule = "b t e! -> b t k, b t k"

    jitter: float

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        candidates = operands[0].shape[-1]
        if isinstance(candidates, int) and candidates < 2:
            raise VerifyError(f"sparse_mixer: cannot choose 2 of {candidates}")
        return {"k": 2}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Values as computed, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """22 per candidate, 11 for each of two choices."""
        return 22 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The expert with the largest score, and the expert with the largest remaining score."""
        (scores,) = operands
        left, weights, chosen = scores, [], []
        for _ in range(2):
            best = left.argmax(axis=-1)[..., None]
            top = np.take_along_axis(left, best, axis=-1)
            far = (top - scores) / np.maximum(np.abs(scores), top) > 2 * self.jitter
            near = softmax(np.where(far, -np.inf, left))
            weights.append(np.take_along_axis(near, best, axis=-1))
            chosen.append(best)
            left = np.where(np.arange(scores.shape[-1]) == best, -np.inf, left)
        return np.concatenate(weights, axis=-1), np.concatenate(chosen, axis=-1)


@dataclass(frozen=True)
class ExpertScale(Op):
    """Multiply the weight of each chosen expert by the learned scale of this expert (Gemma 4)."""

    opcode = "expert_scale"
    kind = "moe"
    rule = "b t k, b t k, [e] -> b t k"
    takes = ("weights", "chosen", "scales")
    vector_flops = 1

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The products."""
        weights, chosen, scales = operands
        return (weights * scales[chosen.astype(int)],)


@dataclass(frozen=True)
class PickReplica(Op):
    """Choose one stored copy of each chosen expert; `experts` experts have `places` copies in total.

    Two tables give the number of copies and the places of the copies for each expert. The tables stay in the
    GPU's cache, and the op reads one entry of each table per choice.
    """

    opcode = "pick_replica"
    kind = "moe"
    rule = "b t k -> b t k"
    takes = ("chosen",)
    vector_flops = 1

    experts: int
    places: int

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The chosen experts, and two table entries of four bytes for each chosen expert."""
        (chosen,) = operands
        return (chosen.bytes + 2 * INT32.bytes_of(*chosen.shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The copies of each expert in rotation."""
        (chosen,) = operands
        count = (self.places - 1 - chosen) // self.experts + 1
        return (chosen + self.experts * (np.arange(chosen.size).reshape(chosen.shape) % count),)
