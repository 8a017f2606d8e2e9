"""The functions that cost formulas may call in addition to operators, as one record for each kind of number.

A formula receives the namespace for its arguments as `xp` and calls no other functions. The same lines then
run on numbers (`SCALARS`), on arrays (`ARRAYS`), and on recorded symbols, which have a separate namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .dataclass import dataclass

Number = Any  # an int, a float, a float64 array, or a recorded symbol


@dataclass(frozen=True, eq=False)
class Namespace:
    """Elementwise functions of numbers, with the semantics of NumPy."""

    minimum: Callable[[Number, Number], Number]
    maximum: Callable[[Number, Number], Number]
    where: Callable[[Number, Number, Number], Number]  # a switch of the hardware or an engine
    ceil: Callable[[Number], Number]
    floor: Callable[[Number], Number]
    ceildiv: Callable[[Number, Number], Number]  # the quotient rounded up, exact of integers
    sqrt: Callable[[Number], Number]
    cbrt: Callable[[Number], Number]
    hypot: Callable[[Number, Number], Number]
    expm1: Callable[[Number], Number]


ARRAYS = Namespace(
    minimum=np.minimum,
    maximum=np.maximum,
    where=np.where,
    ceil=np.ceil,
    floor=np.floor,
    ceildiv=lambda a, b: np.ceil(a / b),  # `//` on float64 is 40 times slower
    sqrt=np.sqrt,
    cbrt=np.cbrt,
    hypot=np.hypot,
    expm1=np.expm1,
)

SCALARS = Namespace(
    minimum=lambda a, b: b if b < a else a,
    maximum=lambda a, b: b if b > a else a,
    where=lambda condition, a, b: a if condition else b,
    ceil=math.ceil,
    floor=math.floor,
    ceildiv=lambda a, b: -(-a // b),
    sqrt=math.sqrt,
    cbrt=getattr(math, "cbrt", lambda a: a ** (1 / 3)),  # Python has it from 3.11 on
    hypot=math.hypot,
    expm1=math.expm1,
)


def namespace(*values: Number) -> Namespace:
    """The namespace for some values: for arrays if one is an array, for symbols if one is a symbol.

    >>> namespace(3, 4.0) is SCALARS, namespace(3, np.arange(2.0)) is ARRAYS
    (True, True)
    """
    found = SCALARS
    for value in values:
        if isinstance(value, np.ndarray):
            found = ARRAYS
        elif isinstance(own := getattr(value, "namespace", None), Namespace):
            return own
    return found


def always(condition: Number) -> bool:
    """Whether a condition is known to be true at all points; False for a symbol."""
    if isinstance(condition, bool):
        return condition
    return namespace(condition) in (SCALARS, ARRAYS) and bool(np.all(condition))


def never(condition: Number) -> bool:
    """Whether a condition is known to be false at all points; False for a symbol."""
    if isinstance(condition, bool):
        return not condition
    return namespace(condition) in (SCALARS, ARRAYS) and not np.any(condition)
