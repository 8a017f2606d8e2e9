"""How a checkpoint lays out a tensor: axes in order, those that run together in brackets.

Pieces of one tensor lie end to end along what follows a `+` in a dimension: that of one piece after that of
another. With nothing behind it, it counts the pieces: gate and up in one tensor of [experts, in, out], every
second column of which is gate's, are `expert embed (mlp +)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llmir.errors import VerifyError

_DIMENSION = re.compile(r"\(([^()]*)\)|(\+?\w+|\+)")


@dataclass(frozen=True)
class Layout:
    """Of each dimension, the axes that run together in it, outermost first."""

    dimensions: tuple[tuple[str, ...], ...]

    @property
    def joined(self) -> int:
        """The dimension along which pieces lie: the first, unless one is marked."""
        return next((i for i, d in enumerate(self.dimensions) if any("+" in a for a in d)), 0)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """That of one piece; an axis that it has not is one element long."""
        return tuple(math.prod(sizes.get(a.removeprefix("+"), 1) for a in d) for d in self.dimensions)


@lru_cache(maxsize=256)
def layout(text: str) -> Layout:
    """The layout that `text` says; `VerifyError` if it says none.

    >>> layout("expert embed (mlp +)").shape({"expert": 4, "embed": 8, "mlp": 6}), layout("a (b +)").joined
    ((4, 8, 6), 1)
    """
    found = [tuple((group or axis).split()) for group, axis in _DIMENSION.findall(text)]
    if not found or _DIMENSION.sub("", text).strip() or text.count("+") > 1:
        raise VerifyError(f"layout {text!r}: expected axes such as expert embed (mlp +)")
    return Layout(tuple(found))


def linear(roles: Sequence[tuple[str, str]]) -> Layout:
    """That of torch's Linear, of axes and their roles in a product: indexed ones, results together, inputs.

    >>> linear([("embed", "contracted"), ("heads", "mapped"), ("head_dim", "mapped")])
    Layout(dimensions=(('+heads', 'head_dim'), ('embed',)))
    """

    def of(role: str) -> tuple[str, ...]:
        return tuple(axis for axis, own in roles if own == role)

    results = tuple(f"+{axis}" if i == 0 else axis for i, axis in enumerate(of("mapped")))
    inputs = [of("contracted")] if of("contracted") else []
    return Layout((*((axis,) for axis in of("indexed")), results, *inputs))
