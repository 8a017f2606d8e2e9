"""Ops of beam search: the best candidates of each row of logits, and the reordering of caches."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, INT32, DType
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

MOST = 1024  # most beams of a request


@dataclass(frozen=True)
class LogSoftmaxTopK(Op):
    """The `k` largest log-probabilities of each row of logits and which they are, in one kernel.

    The softmax takes 5 FLOPs per candidate, its comparison one.
    """

    opcode = "log_softmax_top_k"
    kind = "elementwise"
    proposes = True
    rule = "* e! -> * k, * k"
    takes = ("logits",)

    k: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        candidates = operands[0].shape[-1]
        if self.k < 1 or (isinstance(candidates, int) and self.k > candidates):
            raise VerifyError(f"{self.opcode}: cannot choose {self.k} of {candidates}")
        return {"k": self.k}

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """fp32 values and 32-bit indices."""
        return (FP32, INT32)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """6 a candidate."""
        return 6 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The largest first."""
        (logits,) = operands
        below = logits - logits.max(axis=-1, keepdims=True)
        scores = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
        chosen = np.argsort(-scores, axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(scores, chosen, axis=-1), chosen


@dataclass(frozen=True)
class Reorder(Op):
    """A cache with its sequences copied to the beams that continue them, as `index_select` does.

    The order has no effect on the cost, so the interpreter leaves each sequence in place. The next step uses
    the copy. The temporary coexistence of both caches is not counted.
    """

    opcode = "reorder"
    kind = "gather"
    rule = "b * -> b *"
    takes = ("cache",)
    aliases = MappingProxyType({0: 0})

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache."""
        return (operands[0].bytes,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache."""
        return (results[0].bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (operands[0].copy(),)
