"""Products of activations and weight matrices, described by einsum equations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import FP32, TF32, DType
from llmir.ir.core.dtype import dtype as named
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.op import Array, ExecutionPlace, Gemm, Op, operand_gemm
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


def compute_type(x: DType, *weights: DType) -> DType:
    """The dtype of a product of x and weights: x's dtype, or the dtype of a weight with higher precision.

    >>> from llmir.ir.core.dtype import BF16, INT8
    >>> print(compute_type(BF16, INT8), compute_type(INT8, INT8))
    bf16 int8
    >>> print(compute_type(BF16, FP32), compute_type(FP32, TF32))
    fp32 tf32
    """
    result = x.plain
    for weight in weights:
        if weight.bits > result.bits or (result, weight) == (FP32, TF32):
            result = weight.plain
    return result


@lru_cache(maxsize=4096)
def product_roles(einsum: str, slot: int) -> str:
    """The roles of an operand's dimensions in a product, which determine the layout of quantization scales.

    >>> product_roles("t h, h f -> t f", 0), product_roles("s h, [e] h f, s -> s f", 1)
    ('mk', 'bkn')
    """
    rule = equation(einsum)
    x = rule.axes([rule.operands[0]])

    def role(axis: str) -> str:
        if rule.role(axis) == "contracted":
            return "k"
        if not slot:
            return "m"
        return "b" if rule.role(axis) == "indexed" or axis in x else "n"

    return "".join(role(d.axes[0]) for d in rule.operands[slot])


@dataclass(frozen=True)
class Linear(Op):
    """x · W (+ bias), by an einsum that names all axes, such as `b t h, h g r d -> b t g r d`.

    With several results it is a merged projection: the operands are x, one weight per result, then optionally
    one bias per result, and `einsum` describes all of them. The kernel dequantizes weights of lower precision
    than x. The results have the dtype `to`, by default x's dtype.
    """

    opcode = "linear"
    kind = "gemm"
    takes = ("x", "*weights")

    einsum: str
    to: str = ""

    @property
    def matrices(self) -> range:
        """A weight for each result."""
        return range(1, 1 + len(equation(self.einsum).results))

    def scale_roles(self, slot: int) -> str:
        return product_roles(self.einsum, slot) if slot <= self.matrices[-1] else ""

    def giving(self, to: DType, x: DType) -> Op:
        """`to` is set if x has another dtype."""
        return replace(self, to="" if x == to else to.name)

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The op's own equation."""
        return equation(self.einsum)

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One result per weight; `VerifyError` without a weight, or if only some weights have a bias."""
        rule = equation(self.einsum)
        n = len(rule.results)
        stray = [
            axis
            for term, result in zip(rule.operands[1 + n :], rule.results, strict=False)
            for axis in set(rule.axes([term])) - set(rule.axes([result]))
        ]
        if len(rule.operands) not in (1 + n, 1 + 2 * n) or stray:
            raise VerifyError(
                f'"{self.einsum}": expected x, a weight for each result, and biases for all or none'
            )
        for i in range(n):
            rule.check_product(0, 1 + i, i)
        return super().types(operands)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return (named(self.to) if self.to else operands[0].dtype,) * len(self.equation(operands).results)

    def arithmetic(self, operands: Sequence[Tensor]) -> DType:
        """The dtype of x, or of a weight with higher precision."""
        count = len(self.equation(operands).results)
        return compute_type(operands[0].dtype, *(w.dtype for w in operands[1 : 1 + count]))

    def gemms(self, operands: Sequence[Tensor]) -> tuple[Gemm, ...]:
        """One product for each result."""
        rule = self.equation(operands)
        sizes = rule.sizes(operands)
        return tuple(operand_gemm(rule, sizes, 0, 1 + i, i) for i in range(len(rule.results)))

    def vector(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Size:
        """The bias add, 1 per element with a bias."""
        biases = len(operands) - 1 - len(results)
        return sum((t.elements for t in results[:biases]), start=0) if biases > 0 else 0

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """One einsum per result, plus the bias; if x is a partial sum, only one rank adds the bias."""
        rule, n = equation(self.einsum), len(results)
        products = [
            np.einsum(rule.einsum((0, 1 + i), i), operands[0], operands[1 + i], optimize=True)
            for i in range(n)
        ]
        biased = len(operands) > 1 + n and at.leads
        return tuple(map(np.add, products, operands[1 + n :])) if biased else tuple(products)


def merged_einsum(einsums: Iterable[str]) -> str:
    """Merge the equations of several products of the same x into one equation.

    >>> merged_einsum(["t h, h f -> t f", "t h, h g -> t g"])
    't h, h f, h g -> t f, t g'
    """
    sides = [[[t.strip() for t in side.split(",")] for side in e.split("->")] for e in einsums]
    left = [sides[0][0][0], *(w[1] for w, _ in sides), *(b for w, _ in sides for b in w[2:])]
    return f"{', '.join(left)} -> {', '.join(r[0] for _, r in sides)}"
