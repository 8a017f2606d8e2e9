"""Mixture of experts: copy token rows to experts, multiply by the experts' weights, combine the results.

Axes: `e` experts, `k` chosen per token, `s` routed rows (`b`·`t`·`k`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size, ceildiv, distinct, product
from llmir.ir.sizes.ragged import even, everyone, routed, together
from llmir.ir.sizes.routing_laws import CHANCE, law

from .collective import without
from .linear import compute_type, product_roles


@dataclass(frozen=True)
class Dispatch(Op):
    """Copy each token's row once for each chosen expert; also return the expert of each copy.

    Each rank retains only the rows of its own experts in two cases: experts are sharded over the mesh axes
    `over` but tokens are not, or tokens were already sent to the ranks of their experts. The law `routing`
    over the model's `experts` gives the number of retained rows.
    """

    opcode = "dispatch"
    kind = "moe"
    rule = "b t h, b t k -> (b t k) h, (b t k)"
    takes: ClassVar[tuple[str, ...]] = ("x", "chosen")
    copies = MappingProxyType({0: 0, 1: 1})

    experts: int
    over: tuple[str, ...] = ()
    routing: str = str(CHANCE)

    @property
    def expert_choices(self) -> int:
        """`experts`."""
        return self.experts

    def routed_by(self, law: str) -> Op:
        return replace(self, routing=law)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Rows are split like tokens, and then by expert: unevenly, unless an exchange follows."""
        found = super().types(operands)
        *tokens, top_k = operands[1].shape
        came = everyone(product(tokens)) != product(tokens)
        if came or (self.over and not found[0].placements[0]):
            rows = routed(product(tokens), top_k, self.experts, law(self.routing))
            found = tuple(t.resized(0, rows) for t in found)
        return tuple(t.laid(((*t.placements[0], *self.over), *t.placements[1:]), t.partial) for t in found)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """The dtypes of the operands; low-precision rows have separate scales."""
        return (operands[0].dtype.laid("mk"), operands[1].dtype)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Rows in the order of tokens."""
        x, chosen = operands
        rows = np.repeat(x, chosen.shape[-1], axis=1)
        return rows.reshape(chosen.size, x.shape[-1]), chosen.reshape(chosen.size)


@dataclass(frozen=True)
class ScaledDispatch(Dispatch):
    """Like `dispatch`, but first scale each copied row by the routing weight of its expert."""

    opcode = "scaled_dispatch"
    rule = "b t h, b t k, b t k -> (b t k) h, (b t k)"
    takes = ("x", "chosen", "weights")
    copies = MappingProxyType({1: 1})
    vector_flops = 1

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Rows in the order of tokens."""
        rows, chosen = super().evaluate(operands[:2], results, at)
        return rows * operands[2].reshape(-1, 1), chosen


@dataclass(frozen=True)
class GroupedLinear(Op):
    """Each routed row times the weight of its expert: `s h, [e] h f, s -> s f`.

    Operands are rows, one weight per result, the experts of the rows, and optionally one bias per result.
    `top_k` is the number of rows per token, and `to` the dtype of the results if it differs from that of the
    rows. The op reads only the weights of experts with at least one row. Under uniform routing, the expected
    number of such experts is E·(1−(1−k/E)^tokens) of E. Other `routing` laws have other formulas, as has a
    rank with a part of the experts.
    """

    opcode = "grouped_linear"
    kind = "moe"
    takes = ("x", "*weights_and_experts")
    aligned = MappingProxyType({"s": "e"})

    einsum: str
    top_k: int
    experts: int  # in the whole model; a rank may store some of them
    to: str = ""
    routing: str = str(CHANCE)

    @property
    def expert_choices(self) -> int:
        """`experts`."""
        return self.experts

    def routed_by(self, law: str) -> Op:
        return replace(self, routing=law)

    @property
    def matrices(self) -> range:
        """A weight for each result."""
        return range(1, 1 + len(equation(self.einsum).results))

    @property
    def active(self) -> Fraction:
        """The fraction top_k / experts."""
        if not 0 < self.top_k <= self.experts:
            raise VerifyError(f"grouped_linear: a token cannot meet {self.top_k} of {self.experts} experts")
        return Fraction(self.top_k, self.experts)

    def scale_roles(self, slot: int) -> str:
        return product_roles(self.einsum, slot) if slot <= self.matrices[-1] else ""

    def giving(self, to: DType, x: DType) -> Op:
        """`to` is set if rows have another dtype."""
        return replace(self, to="" if x == to else to.name)

    def remark(self, operands: Sequence[Tensor]) -> str:
        return f"{operands[1].shape[0]} experts, {self.top_k} per token"

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The op's own equation."""
        return equation(self.einsum)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Rows have the placement of their experts, so the expert axis needs no sum."""
        rule = equation(self.einsum)
        law(self.routing)  # raises an error if there is no weight
        n = len(rule.results)
        if len(rule.operands) not in (2 + n, 2 + 2 * n):
            expected = "rows, a weight for each result, the rows' experts, and biases for all or none"
            raise VerifyError(f'"{self.einsum}": expected {expected}')
        for i in range(n):
            rule.check_product(0, 1 + i, i)
        lie = operands[0].placements[0]
        held = {i for i in range(len(operands)) if i not in (0, 1 + n)}  # weights and biases
        return super().types(
            tuple(
                t.laid(((), *t.placements[1:])) if i in held and t.placements[0] == lie else t
                for i, t in enumerate(operands)
            )
        )

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to) if self.to else operands[0].dtype,) * len(self.equation(operands).results)

    def arithmetic(self, operands: Sequence[Tensor]) -> DType:
        """The dtype of the rows, or of a weight with higher precision."""
        return compute_type(operands[0].dtype, *(operands[slot].dtype for slot in self.matrices))

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each result, over all routed rows; the expert axis is indexed."""
        rule = self.equation(operands)
        sizes = rule.sizes(operands)
        return tuple(operand_gemm(rule, sizes, 0, 1 + i, i) for i in range(len(rule.results)))

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The rows once, and the weights and biases of the expected number of distinct experts."""
        whole = 0, self.matrices.stop
        return tuple(
            t.bytes
            if slot in whole
            else Tensor((1, *t.shape[1:]), t.dtype).bytes * self.touched(operands[0], t)
            for slot, t in enumerate(operands)
        )

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The bias add, 1 per element with a bias."""
        biased = len(operands) > 1 + self.matrices.stop
        return sum((t.elements for t in results), start=0) if biased else 0

    @property
    def places(self) -> int:
        """The number of stored experts in the whole model, including redundant copies."""
        return law(self.routing).places(self.experts)

    def touched(self, rows: Tensor, weight: Tensor) -> Size:
        """The expected number of experts on a rank with at least one row."""
        tokens = ceildiv(self.routed(rows, weight), self.top_k)
        return distinct(self._held(weight), self.top_k, tokens, self.experts, law(self.routing))

    def routed(self, rows: Tensor, weight: Tensor) -> Size:
        """The total rows of the ranks that share the experts, where one rank has `rows`."""
        return together(rows.shape[0], -(-self.places // self._held(weight)))

    def _held(self, weight: Tensor) -> int:
        held = weight.shape[0]
        if not isinstance(held, int) or not 0 < held <= self.places:
            raise VerifyError(f"grouped_linear: a rank cannot hold {held} of {self.places} experts")
        return held

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """Compute expert by expert; rows of experts on other ranks are zero."""
        end = self.matrices.stop
        rows, weights, chosen, biases = operands[0], operands[1:end], operands[end], operands[end + 1 :]
        held = [chosen - at.origin("e") == e for e in range(len(weights[0]))]

        def product(weight: Array, bias: Array | None) -> Array:
            result = np.zeros((len(rows), weight.shape[-1]))
            for e, mine in enumerate(held):
                result[mine] = rows[mine] @ weight[e] + (0 if bias is None else bias[e])
            return result

        # One rank adds the bias to a partial sum.
        added = biases if biases and at.leads else (None,) * len(weights)
        return tuple(map(product, weights, added))


@dataclass(frozen=True)
class Combine(Op):
    """Add up each token's routed rows, multiplied by their weights; 2 FLOPs per routed element.

    If each rank has only the rows of its own experts over the mesh axes `over`, the result is a partial sum
    over these axes.
    """

    opcode = "combine"
    kind = "moe"
    rule = "(b t k) h, b t k -> b t h"
    takes = ("rows", "weights")
    linear = frozenset({0})
    combines = True

    over: tuple[str, ...] = ()

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The resulting tokens have the placement of the routing weights."""
        rows, weights = operands
        kept = without(rows.placements[0], self.over, rows) if self.over else rows.placements[0]
        if kept != (*weights.placements[0], *weights.tokens):
            raise VerifyError(f"combine: rows {rows} do not lie as their weights {weights} do")
        *tokens, top_k = weights.shape
        if even(rows.shape[0]) != everyone(product(tokens)) * top_k:
            raise VerifyError(f"combine: {rows} are not {top_k} rows of each token of {weights}")
        whole = rows.resized(0, product(weights.shape)).laid(((), *rows.placements[1:]))
        (found,) = super().types((whole, weights.laid()))
        partial = tuple(sorted({*rows.partial, *self.over}))
        return (found.laid((*weights.placements[:2], ()), partial, weights.tokens),)

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """A multiply and an add."""
        return 2 * operands[0].elements

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        rows, weights = operands
        return (np.einsum("btkh,btk->bth", rows.reshape(*weights.shape, rows.shape[-1]), weights),)


@dataclass(frozen=True)
class SumExperts(Combine):
    """Like `combine`, without weighting: rows were weighted before the experts."""

    opcode = "sum_experts"

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """1 per routed element."""
        return operands[0].elements

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The rows only."""
        return (operands[0].bytes, 0)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        rows, weights = operands
        return (rows.reshape(*weights.shape, rows.shape[-1]).sum(axis=2),)
