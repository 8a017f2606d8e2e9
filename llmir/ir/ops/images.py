"""Ops of image models: patch embeddings, row ends, and image rows among token embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class PatchEmbedding(Op):
    """Multiply each patch (p × q pixels, `c` channels) by a matrix, and add the bias, if any."""

    opcode = "patch_embedding"
    kind = "gemm"
    rule = "b t c p q, c p q h -> b t h"
    takes = ("patches", "weight", "*bias")

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The bias is optional."""
        return equation(self.rule.replace(" ->", ", h ->") if operands[2:] else self.rule)

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a convolution weight, with output channels first."""
        return (shape[-1], *shape[:-1])

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product of all patches."""
        rule = self.equation(operands)
        return (operand_gemm(rule, rule.sizes(operands), 0, 1, 0),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per element for a bias."""
        return results[0].elements * len(operands[2:])

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The product plus the bias; if x is a partial sum, only one rank adds the bias."""
        patches, weight, *bias = operands
        found = np.einsum("btcpq,cpqh->bth", patches, weight, optimize=True)
        return (found + bias[0] if bias and at.leads else found,)


@dataclass(frozen=True)
class AppendRow(Op):
    """Append a learned end-of-image row to the rows of x; all images share this row."""

    opcode = "append_row"
    kind = "gather"
    rule = "b p h, n h -> b (p+n) h"
    takes = ("x", "row")

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape without the axis of length 1."""
        return (prod(shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The rows of x, then the additional row."""
        x, row = operands
        return (np.concatenate([x, np.broadcast_to(row, (len(x), *row.shape))], axis=1),)


@dataclass(frozen=True)
class PlaceImages(Op):
    """Replace the embedding of each token with id `token` by the next image embedding, in order.

    Only the replaced rows are read and written.
    """

    opcode = "place_images"
    kind = "gather"
    rule = "b t! h, b n! h, b t! -> b t! h"
    takes = ("x", "images", "ids")

    token: int

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The images, and the ids."""
        return (0, operands[1].bytes, operands[2].bytes)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The images."""
        return (operands[1].to(results[0].dtype).bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        x, images, ids = operands
        places = ids == self.token
        order = np.clip(np.cumsum(places, axis=1) - 1, 0, images.shape[1] - 1)
        rows = np.take_along_axis(images, order[..., None], axis=1)
        return (np.where(places[..., None], rows, x),)
