"""Values side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dim import Size
from ..op import Array, Op, Place
from ..tensor import Tensor


@dataclass(frozen=True)
class Stack(Op):
    """Two values of each token as one, for a product of both (as torch.cat has them)."""

    opcode = "stack"
    kind = "elementwise"
    rule = "b t h, b t h -> b t s h"
    takes = ("x", "y")

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """Two."""
        return {"s": 2}

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """Copies."""
        return (np.stack(operands, axis=2),)
