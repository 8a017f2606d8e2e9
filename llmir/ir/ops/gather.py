"""Ops that select rows or parts of an axis: embeddings, learned positions, and last tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import prod
from types import MappingProxyType

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Op
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Min, Size


@dataclass(frozen=True)
class Embedding(Op):
    """Look up token ids in an embedding table; the result has the dtype `to`.

    The op reads only the selected rows of the table.
    """

    opcode = "embedding"
    kind = "gather"
    rule = "[v] h, b t -> b t h"
    takes = ("table", "ids")

    to: str = ""

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The rule, or its variant for one id per sequence."""
        return equation(self.rule if len(operands[1].shape) > 1 else self.rule.replace("b t", "b"))

    def scale_roles(self, slot: int) -> str:
        """One row of the table per token."""
        return "" if slot else "nk"

    def giving(self, to: DType, x: DType) -> Op:
        """The op declares `to` only if it differs from the dtype of the table."""
        return replace(self, to="" if x == to else to.name)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to) if self.to else operands[0].dtype,)

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """One row for each token, and the ids."""
        table, tokens = operands
        return (table.dtype.bytes_of(tokens.elements, *table.shape[1:]), tokens.bytes)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The rows; a token id whose row is on another rank gives zeros."""
        table, tokens = operands
        local = tokens - at.origin("v")
        held = (local >= 0) & (local < len(table))
        nothing = np.zeros((1, *table.shape[1:]))
        return (np.concatenate([table, nothing])[np.where(held, local, -1)],)


@dataclass(frozen=True)
class LayerEmbedding(Embedding):
    """Look up token ids in a table with a part for each layer; an id outside the table uses the first row.

    The table has `rows` rows in the whole model.
    """

    opcode = "layer_embedding"
    rule = "[v] s h, b t -> b t s h"

    rows: int = field(kw_only=True)

    def scale_roles(self, slot: int) -> str:
        """One row of the table per token."""
        return "" if slot else "nkk"

    def stored(self, slot: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One row per token id, which contains the parts for all layers."""
        return (shape[0], prod(shape[1:]))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        table, tokens = operands
        return super().evaluate((table, np.where(tokens < self.rows, tokens, 0)), results, at)


@dataclass(frozen=True)
class Stack(Op):
    """Stack the operands along a new axis before the last one."""

    opcode = "stack"
    kind = "gather"
    takes = ("*values",)

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        axes = [f"x{i}" for i in range(len(operands[0].shape))]
        terms = ", ".join([" ".join(axes)] * len(operands))
        return equation(f"{terms} -> {' '.join((*axes[:-1], 's', axes[-1]))}")

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        return {"s": len(operands)}

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (np.stack(operands, axis=-2),)


@dataclass(frozen=True)
class Positions(Op):
    """Add a learned position embedding to each token of x; row `offset` of the table is for position 0."""

    opcode = "positions"
    kind = "gather"
    rule = "b t! h, [p]! h -> b t! h"
    takes = ("x", "table")
    vector_flops = 1
    linear = frozenset({0})

    offset: int = 0

    def scale_roles(self, slot: int) -> str:
        """One row of the table per position."""
        return "nk" if slot else ""

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The bytes of x, and one row per position, because all sequences share the rows."""
        x, table = operands
        return (x.bytes, table.dtype.bytes_of(x.shape[1], *table.shape[1:]))

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The sum of x and the rows. If x is a partial sum over ranks, only the first rank adds the rows."""
        x, table = operands
        at_table = at.cached + self.offset + np.arange(x.shape[1])
        return (x + table[at_table] if at.leads else x,)


@dataclass(frozen=True)
class LastToken(Op):
    """The last position of each sequence; an engine needs logits at this position only."""

    opcode = "last_token"
    kind = "gather"
    rule = "b [t] h -> b h"

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        return (results[0].bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The last position."""
        return (operands[0][:, -1],)


@dataclass(frozen=True)
class LastTokens(Op):
    """The last `count` tokens of each sequence, or all tokens of a shorter sequence."""

    opcode = "last_tokens"
    kind = "gather"
    rule = "b [t] * -> b k *"

    count: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        return {"k": Min.of(operands[0].shape[1], self.count)}

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        return (results[0].bytes,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (operands[0][:, -self.count :],)


@dataclass(frozen=True)
class Cut(Op):
    """A view of the first `elements` of the last axis."""

    opcode = "cut"
    kind = "gather"
    rule = "* v! -> * w"
    aliases = MappingProxyType({0: 0})

    elements: int

    def new_axes(self, operands: Sequence[Tensor]) -> dict[str, Size]:
        whole = operands[0].shape[-1]
        if isinstance(whole, int) and not 0 < self.elements <= whole:
            raise VerifyError(f"cut: {self.elements} of {whole} elements cannot be kept")
        return {"w": self.elements}

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No copy."""
        return (0,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No copy."""
        return (0,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        return (operands[0][..., : self.elements],)
