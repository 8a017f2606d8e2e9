"""Sizes: integers, or polynomials in named symbols whose value is asked for last.

The symbols of a language model are `B` sequences, `T` new tokens per sequence and `C` tokens already
cached. All symbols are non-negative. Besides symbols, a polynomial may hold `atoms`, functions of sizes such
as `ceildiv(a, b)`.

>>> B, T = Dim.symbol("B"), Dim.symbol("T")
>>> print(2 * T * (B + 3))
2*B*T + 6*T
>>> Binding(B=4, T=10)(2 * T * (B + 3))
140
"""

from ..namespace import Number
from .atoms import (
    ATOMS,
    Atom,
    Busiest,
    CeilDiv,
    Distinct,
    Max,
    Min,
    OfDecode,
    OfPrefill,
    Reached,
    Routed,
    Sent,
    ceildiv,
    distinct,
    maximum,
    minimum,
)
from .binding import Binding, Mixed
from .polynomial import (
    B,
    C,
    Dim,
    Size,
    T,
    at_most,
    falls,
    grown,
    monomials,
    product,
    products,
    put,
    sole,
    symbols,
    weighted,
)
from .text import parse
from .uneven import Uneven

__all__ = [
    "ATOMS",
    "Atom",
    "B",
    "Binding",
    "Busiest",
    "C",
    "CeilDiv",
    "Dim",
    "Distinct",
    "Max",
    "Min",
    "Mixed",
    "Number",
    "OfDecode",
    "OfPrefill",
    "Reached",
    "Routed",
    "Sent",
    "Size",
    "T",
    "Uneven",
    "at_most",
    "ceildiv",
    "distinct",
    "falls",
    "grown",
    "maximum",
    "minimum",
    "monomials",
    "parse",
    "product",
    "products",
    "put",
    "sole",
    "symbols",
    "weighted",
]
