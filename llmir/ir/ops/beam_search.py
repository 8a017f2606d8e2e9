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

MOST = 1024  # the largest number of beams per request


@dataclass(frozen=True)
class LogSoftmaxTopK(Op):
    """The `k` largest log-probabilities of each row of logits and their indices, in one kernel.

    The softmax takes 5 FLOPs per candidate, and the comparison takes 1.
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
        """6 per candidate."""
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
    """Copy each sequence of a cache to the beams that continue the sequence, as `index_select` does.

    The order has no effect on the cost, so the interpreter leaves each sequence in place. The next step uses
    the copy. Memory estimates do not count the short time in which both caches exist.
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
