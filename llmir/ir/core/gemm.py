"""Matrix products inside of ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llmir.ir.sizes.polynomial import Size, product

from .equation import Equation


class Gemm(NamedTuple):
    """A matrix product `[batch] m×k · k×n`, in elements."""

    m: Size
    n: Size
    k: Size
    batch: Size = 1


def operand_gemm(rule: Equation, sizes: Mapping[str, Size], left: int, right: int, result: int) -> Gemm:
    """The matrix product of two operands of `rule` into one result, by the roles of the axes."""
    a, b = (rule.axes([rule.operands[i]]) for i in (left, right))
    out = rule.axes([rule.results[result]])
    over = [x for x in dict.fromkeys((*a, *b)) if x not in rule.indexed]
    shared = {x for x in over if x in a and x in b}
    return Gemm(
        m=product(sizes[x] for x in over if x in a and x in out and x not in shared),
        n=product(sizes[x] for x in over if x in b and x in out and x not in shared),
        k=product(sizes[x] for x in over if x not in out),
        batch=product(sizes[x] for x in over if x in shared and x in out),
    )
