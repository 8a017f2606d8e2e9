"""Tensor types: a shape of global sizes, an element type, and the placement on mesh axes."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

from llmir.base.arguments import refuse
from llmir.base.errors import ParseError, VerifyError
from llmir.base.values import Immutable
from llmir.ir.sizes.polynomial import Dim, Size, ceildiv, parse, product
from llmir.ir.sizes.ragged import most

from .dtype import DType, dtype
from .mesh import Mesh

# Larger values are typing errors. A product of MOST_DIMENSIONS sizes of MOST_SIZE is still a finite float64.
LARGEST, MOST_DIMENSIONS = 1 << 48, 16

Placement = tuple[str, ...]  # the mesh axes that split one dimension, outermost first


class Tensor(Immutable):
    """A tensor type: global shape, dtype, and placement on mesh axes.

    The axes `placements[i]` split dimension i. Over the axes in `partial`, each rank has one summand. The
    axes in `tokens` split the first two dimensions (sequences × positions) together, as one axis of tokens.

    >>> print(Tensor((4, 28672), dtype("bf16"), ((), ("tp",))))
    bf16[4, 28672@tp]
    """

    shape: tuple[Size, ...]
    dtype: DType
    placements: tuple[Placement, ...]
    partial: Placement
    tokens: Placement
    _key: tuple[Any, ...]
    _hash: int

    def __init__(
        self,
        shape: Iterable[Size],
        dtype: DType,
        placements: Iterable[Placement] = (),
        partial: Placement = (),
        tokens: Placement = (),
    ) -> None:
        try:
            sizes = tuple(map(_checked, shape))
        except TypeError:
            refuse("shape", shape, "a list of sizes", VerifyError)
        if len(sizes) > MOST_DIMENSIONS:
            raise VerifyError(f"a tensor of {len(sizes):,} dimensions: the limit is {MOST_DIMENSIONS}")
        key = (sizes, dtype, tuple(placements) or ((),) * len(sizes), partial, tokens)
        vars(self).update(zip(("shape", "dtype", "placements", "partial", "tokens"), key, strict=True))
        vars(self).update(_key=key, _hash=hash(key))
        if dtype.roles and len(dtype.roles) != len(sizes):
            raise VerifyError(f"{dtype} has scales over {len(dtype.roles)} dimensions, got {self}")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Tensor) and self._key == other._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, self._key

    @cached_property
    def elements(self) -> Size:
        """The number of elements."""
        return product(self.shape)

    @cached_property
    def bytes(self) -> Size:
        """The size in bytes, including scales."""
        return self.dtype.bytes_of(*self.shape)

    def to(self, dtype: DType) -> Tensor:
        """The type with another dtype."""
        return Tensor(self.shape, dtype, self.placements, self.partial, self.tokens)

    def resized(self, dim: int, size: Size) -> Tensor:
        """The type with another size of one dimension."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return Tensor(shape, self.dtype, self.placements, self.partial, self.tokens)

    def local(self, mesh: Mesh) -> Tensor:
        """The type on the rank with the largest part: each split size is divided and rounded up.

        For a dimension of routed rows, the size is the number of rows on that rank. If sequences and
        positions are split together, the first dimension counts tokens, and the second is 1.
        """
        return _local(self, mesh) if self.spread else self

    @cached_property
    def spread(self) -> Placement:
        """Every mesh axis that splits the value, or over which the value is a partial sum."""
        return (*(axis for p in self.placements for axis in p), *self.tokens, *self.partial)

    def laid(
        self, placements: Iterable[Placement] = (), partial: Placement = (), tokens: Placement = ()
    ) -> Tensor:
        """The type with another placement."""
        where = tuple(placements) or ((),) * len(self.shape), partial, tokens
        return self if where == self._key[2:] else Tensor(self.shape, self.dtype, *where)

    def __str__(self) -> str:
        laid = zip(self.shape, self.placements, strict=True)
        sizes = (f"{n}@{'.'.join(p)}" if p else str(n) for n, p in laid)
        tokens = f"~{'.'.join(self.tokens)}" if self.tokens else ""
        return f"{self.dtype}[{', '.join(sizes)}]{tokens}" + "".join(f"+{axis}" for axis in self.partial)

    __repr__ = __str__


@lru_cache(maxsize=1 << 14)
def _local(type: Tensor, mesh: Mesh) -> Tensor:
    laid = zip(type.shape, type.placements, strict=True)
    shape = [most(n, mesh.size(p)) if p else n for n, p in laid]
    if type.tokens:
        shape[:2] = ceildiv(shape[0] * shape[1], mesh.size(type.tokens)), 1
    return Tensor(shape, type.dtype)


def _checked(size: object) -> Size:
    """A size of a dimension: a positive Python integer, or a polynomial that can be positive."""
    if type(size) is int and 0 < size <= LARGEST:
        return size
    if isinstance(size, Dim) and any(c > 0 for _, c in size.terms):
        return size
    if not isinstance(size, (bool, Dim)):
        with suppress(TypeError):  # not an integer
            if 0 < (whole := operator.index(size)) <= LARGEST:  # type: ignore[arg-type]
                return whole
    refuse("a dimension", size, "an integer from 1 to 2**48, or a size in symbols", VerifyError)


_TYPE = re.compile(r"\s*([\w.]+)\[(.*)\](?:~([\w.]+))?((?:\+\w+)*)\s*")


_MARK = re.compile(r'[\[\](){},"\\]')
_DEEPEST = 32


def split_commas(text: str) -> list[str]:
    """Split a text at commas outside brackets and strings; a blank text has no parts.

    >>> split_commas('a, (b, c), "d, e"')
    ['a', ' (b, c)', ' "d, e"']
    """
    parts, start, depth, string, escaped = [], 0, 0, False, -1
    for found in _MARK.finditer(text):
        mark, i = found[0], found.start()
        if string and i != escaped:
            escaped = i + 1 if mark == "\\" else -1
            string = mark != '"'
        elif mark == '"':
            string = True
        elif mark in "([{":
            depth += 1
            if depth > _DEEPEST:
                raise ParseError(f"nested more than {_DEEPEST} deep")
        elif mark in ")]}":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]] if text.strip() else []


def parse_tensor(text: str) -> Tensor:
    """Parse a tensor type from its text form.

    Args:
        text: The text, such as `bf16[B, T, 28672@tp]`.

    Returns:
        The type.

    Raises:
        ParseError: The text is not a type.

    >>> str(parse_tensor("bf16[B, 8]"))
    'bf16[B, 8]'
    """
    found = _TYPE.fullmatch(text)
    if not found:
        raise ParseError(f"type {text!r}: expected the form bf16[B, T, 4096]")
    sizes = [part.partition("@") for part in split_commas(found[2])]
    return Tensor(
        (parse(size) for size, _, _ in sizes),
        dtype(found[1]),
        tuple(tuple(p.strip().split(".")) if p else () for _, _, p in sizes),
        tuple(found[4].split("+")[1:]),
        tuple(found[3].split(".")) if found[3] else (),
    )
