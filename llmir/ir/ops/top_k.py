"""Routers: the experts with the largest scores, optionally within groups, with a bias, or by a table."""

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
    """The `k` largest of each row and which they were; 1 FLOP (a comparison) a candidate.

    A bias, if there is one, is added for the choice alone (arXiv:2408.15664). Of `groups` of neighbours only
    the `kept` groups are chosen from whose `best` largest sum highest (arXiv:2405.04434, 2412.19437). With
    `normalize`, the chosen values are divided by their sum. They are multiplied by `scale`.
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
        """What is compared: x as it comes."""
        return x

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """With a bias for each candidate, or without."""
        return equation(self.rule if len(operands) == 1 else "b t e!, e! -> b t k, b t k")

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """`k` of at most those `e` that the kept groups have."""
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
        """Values as they come, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 a candidate, another within groups if there are several, the add of a bias, and the score."""
        compared = min(self.groups, 2)
        return (self.scoring + compared + len(operands) - 1) * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The largest first."""
        scores = self.score(operands[0])
        ranked = self._limited(scores + operands[1] if len(operands) > 1 else scores)
        chosen = np.argsort(-ranked, axis=-1, kind="stable")[..., : self.k]
        values = np.take_along_axis(scores, chosen, axis=-1)
        total = values.sum(axis=-1, keepdims=True) if self.normalize else 1.0
        return values / total * self.scale, chosen

    def _limited(self, scores: Array) -> Array:
        """−∞ outside of the groups that are kept."""
        *rows, candidates = scores.shape
        grouped = scores.reshape(*rows, self.groups, candidates // self.groups)
        highest = np.sort(grouped, axis=-1)[..., -self.best :].sum(axis=-1)
        order = np.argsort(-highest, axis=-1, kind="stable")
        rank = np.argsort(order, axis=-1, kind="stable")[..., None]
        limited: Array = np.where(rank < self.kept, grouped, -np.inf).reshape(scores.shape)
        return limited


@dataclass(frozen=True)
class SoftmaxTopK(TopK):
    """softmax and top-k in one kernel, as engines route; the softmax takes 5 FLOPs a candidate.

    Its attributes and its bias are those of `top_k`.
    """

    opcode = "softmax_top_k"
    lowered = True
    scoring = 5

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32 weights, as scores are in fp32, and 32-bit indices."""
        return (FP32, INT32)

    def score(self, x: Array) -> Array:
        """Over all candidates."""
        return softmax(x)


@dataclass(frozen=True)
class SigmoidTopK(SoftmaxTopK):
    """sigmoid and top-k in one kernel; the sigmoid takes 4 FLOPs a candidate.

    Its attributes and its bias are those of `top_k`.
    """

    opcode = "sigmoid_top_k"
    scoring = 4

    def score(self, x: Array) -> Array:
        """Of each candidate by itself."""
        return sigmoid(x)


@dataclass(frozen=True)
class SqrtSoftplusTopK(SoftmaxTopK):
    """√softplus and top-k in one kernel; the score takes 6 FLOPs a candidate.

    Its attributes and its bias are those of `top_k`.
    """

    opcode = "sqrt_softplus_top_k"
    scoring = 6

    def score(self, x: Array) -> Array:
        """Of each candidate by itself."""
        return sqrt_softplus(x)


@dataclass(frozen=True)
class HashTopK(Op):
    """The experts that a table says of each token, by its id, and their scores, divided by their sum.

    They are multiplied by `scale`; 2 FLOPs an expert (arXiv:2106.04426 chooses so).
    """

    opcode = "hash_top_k"
    kind = "moe"
    rule = "b t e!, [v]! k, b t -> b t k, b t k"
    takes = ("x", "table", "ids")
    vector_flops = 2

    scale: float = 1.0

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Values as they come, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """A row of the table for each token, and the scores that it names."""
        _, table, ids = operands
        return (results[0].bytes, table.dtype.bytes_of(ids.elements, *table.shape[1:]), ids.bytes)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """As in its name."""
        scores, table, ids = operands
        chosen = table[ids.astype(int)].astype(int)
        values = np.take_along_axis(scores, chosen, axis=-1)
        return values / values.sum(axis=-1, keepdims=True) * self.scale, chosen


@dataclass(frozen=True)
class SparseMixer(Op):
    """Two experts, one after the other, as Phi-3.5-MoE chooses (arXiv:2409.12136, at inference).

    The weight of each is a softmax over the candidates left that are within 2·jitter of the largest, to the
    larger of its own score and that one.
    """

    opcode = "sparse_mixer"
    kind = "moe"
    rule = "b t e! -> b t k, b t k"

    jitter: float

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Two, of as many or more."""
        candidates = operands[0].shape[-1]
        if isinstance(candidates, int) and candidates < 2:
            raise VerifyError(f"sparse_mixer: cannot choose 2 of {candidates}")
        return {"k": 2}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Values as they come, and 32-bit indices."""
        return (operands[0].dtype, INT32)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """22 a candidate: twice a maximum, a size and the larger, a difference's share, a test, a softmax."""
        return 22 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The largest, and the largest of the others."""
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
    """The weights of the chosen experts, each times the number of its expert (Gemma 4)."""

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
    """One of the places of each of the `experts` that tokens chose, which lie in so many `places`.

    Those beyond the experts hold the first ones again. Its two tables, of how many copies an expert has and
    of where they are, stay in the GPU's cache: of them an entry each is read.
    """

    opcode = "pick_replica"
    kind = "moe"
    rule = "b t k -> b t k"
    takes = ("chosen",)
    vector_flops = 1

    experts: int
    places: int

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """What was chosen, and two entries of four bytes for each."""
        (chosen,) = operands
        return (chosen.bytes + 2 * INT32.bytes_of(*chosen.shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The copies of an expert in turn."""
        (chosen,) = operands
        count = (self.places - 1 - chosen) // self.experts + 1
        return (chosen + self.experts * (np.arange(chosen.size).reshape(chosen.shape) % count),)
