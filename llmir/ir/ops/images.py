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
    """Each patch of p × q pixels and `c` channels times a matrix (+ bias): a convolution by whole patches."""

    opcode = "patch_embedding"
    kind = "gemm"
    rule = "b t c p q, c p q h -> b t h"
    takes = ("patches", "weight", "*bias")

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The bias is optional."""
        return equation(self.rule.replace(" ->", ", h ->") if operands[2:] else self.rule)

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Like convolutions: outputs first."""
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
        """The product, and the bias (of a partial sum, added by one rank)."""
        patches, weight, *bias = operands
        found = np.einsum("btcpq,cpqh->bth", patches, weight, optimize=True)
        return (found + bias[0] if bias and at.leads else found,)


@dataclass(frozen=True)
class AppendRow(Op):
    """The rows of x, followed by one row that is the same for each image: a learned end of an image."""

    opcode = "append_row"
    kind = "gather"
    rule = "b p h, n h -> b (p+n) h"
    takes = ("x", "row")

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Without the axis of the single row."""
        return (prod(shape),)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """One below the other."""
        x, row = operands
        return (np.concatenate([x, np.broadcast_to(row, (len(x), *row.shape))], axis=1),)


@dataclass(frozen=True)
class PlaceImages(Op):
    """Embeddings of tokens, with image embeddings in order at the positions of the id `token`.

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
