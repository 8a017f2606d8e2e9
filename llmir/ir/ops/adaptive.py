"""Adaptive norms: what is said of a sequence scales and shifts each of its tokens (arXiv:2212.09748)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.op import Array, Op, Place
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Sinusoid(Op):
    """Cosines, then sines, of a timestep times `elements`/2 frequencies from 1 to 1/10,000; 2 FLOPs each."""

    opcode = "sinusoid"
    kind = "elementwise"
    rule = "b -> b f"
    takes = ("timestep",)
    vector_flops = 2

    elements: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        """As many as `elements`."""
        if self.elements < 4 or self.elements % 2:
            raise VerifyError(f"sinusoid: elements: expected an even number from 4 up, got {self.elements}")
        return {"f": self.elements}

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As diffusers' Timesteps with the cosines first and a shift of 1."""
        half = self.elements // 2
        angles = operands[0][:, None] * 10000.0 ** (-np.arange(half) / (half - 1))
        return (np.concatenate([np.cos(angles), np.sin(angles)], axis=-1),)


@dataclass(frozen=True)
class Modulate(Op):
    """x · (1 + scale) + shift, of one scale and shift for all tokens of a sequence."""

    opcode = "modulate"
    kind = "elementwise"
    rule = "b t h, b h, b h -> b t h"
    takes = ("x", "scale", "shift")
    vector_flops = 2

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """As in its name."""
        x, scale, shift = operands
        return (x * (1 + scale[:, None]) + shift[:, None],)


@dataclass(frozen=True)
class SequenceMul(Op):
    """x · factor, of one factor for all tokens of a sequence."""

    opcode = "sequence_mul"
    kind = "elementwise"
    rule = "b t h, b h -> b t h"
    takes = ("x", "factor")
    linear = frozenset({0})
    vector_flops = 1

    def evaluate(self, operands: Sequence[Array], results: Sequence[Tensor], at: Place) -> tuple[Array, ...]:
        """The product."""
        x, factor = operands
        return (x * factor[:, None],)
