"""Index equations: the source of an op's shapes, FLOPs, bytes and shardings.

`b t h, h f -> b t f` names the axes of each operand and result. The kinds of axes are:

- *mapped*: in operands and in results (`b`, `t`, `f`);
- *contracted*: in operands only (`h`);
- *indexed*: `[v]`, looked up instead of multiplied, so FLOPs do not depend on its size;
- *windowed*: `t~`, where an element is read together with its neighbors;
- *new*: in results only (`k` of a top-k).

An axis `h!` must be whole on each rank. `+k` marks a sum over an axis that only one operand has. `(b t k)` is
one dimension that flattens several axes, and `(c + t)` is one dimension that concatenates several axes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.sizes.polynomial import Size, product

from .tensor import Placement, Tensor

_DIMENSION = re.compile(r"\(([^)]*)\)|(\[)?(\+?)(\w+)\]?([~!]?)")


@dataclass(frozen=True)
class Dimension:
    """One dimension of an operand or result: an axis, a product of axes, or a concatenation of axes."""

    axes: tuple[str, ...]
    end_to_end: bool = False

    def size(self, sizes: dict[str, Size]) -> Size:
        """The size of the dimension, computed from the sizes of its axes."""
        try:
            parts = [sizes[a] for a in self.axes]
        except KeyError as missing:
            raise VerifyError(f"no operand determines the size of axis {missing}") from None
        if self.end_to_end:
            return sum(parts[1:], start=parts[0])
        return product(parts)


@dataclass(frozen=True)
class Equation:
    """A parsed equation; `equation(text)` parses one."""

    text: str
    operands: tuple[tuple[Dimension, ...], ...]
    results: tuple[tuple[Dimension, ...], ...]
    indexed: frozenset[str]
    windowed: frozenset[str]
    whole: frozenset[str]
    summed: frozenset[str] = frozenset()

    def axes(self, side: Sequence[tuple[Dimension, ...]]) -> tuple[str, ...]:
        """The distinct axes of some operands or results, in order of appearance."""
        return tuple(dict.fromkeys(a for term in side for d in term for a in d.axes))

    def role(self, axis: str) -> str:
        """*mapped*, *contracted*, *indexed*, *windowed* or *new*.

        >>> [equation("[v] h, b t -> b t h").role(a) for a in "vh"]
        ['indexed', 'mapped']
        """
        if axis in self.indexed:
            return "indexed"
        if axis in self.windowed:
            return "windowed"
        taken, given = self._sides
        if axis not in taken:
            return "new"
        return "mapped" if axis in given else "contracted"

    @cached_property
    def _sides(self) -> tuple[frozenset[str], frozenset[str]]:
        """The axes of all operands, and those of all results."""
        return frozenset(self.axes(self.operands)), frozenset(self.axes(self.results))

    def einsum(self, operands: Sequence[int] | None = None, result: int = 0) -> str:
        """The equation in the notation of `numpy.einsum`, for some operands and one result.

        >>> equation("b t h, h f, h g -> b t f, b t g").einsum((0, 2), 1)
        'abc,cd->abd'
        """
        sides = [self.operands[i] for i in operands or range(len(self.operands))]
        letters: dict[str, str] = {}
        for axis in self.axes([*sides, self.results[result]]):
            letters[axis] = chr(ord("a") + len(letters))
        spelled = ["".join(letters[d.axes[0]] for d in term) for term in (*sides, self.results[result])]
        return f"{','.join(spelled[:-1])}->{spelled[-1]}"

    def check_product(self, left: int, right: int, result: int) -> None:
        """Raise VerifyError if an axis without the mark `+` is in one operand only and in no result."""
        a, b = (set(self.axes([self.operands[i]])) for i in (left, right))
        lone = (a ^ b) - set(self.axes([self.results[result]])) - self.indexed - self.summed
        for axis in sorted(lone):
            fact = f"axis {axis!r} is in one operand alone and not in the result"
            raise VerifyError(f'"{self.text}": {fact}; +{axis} says that it is summed')

    def sizes(self, tensors: Sequence[Tensor], **new: Size) -> dict[str, Size]:
        """The size of each axis, from the shapes of the operands; the op gives the sizes of *new* axes.

        Raises `VerifyError` if numbers of dimensions or sizes disagree.
        """
        if len(tensors) != len(self.operands):
            raise VerifyError(f'"{self.text}" takes {len(self.operands)} operands, got {len(tensors)}')
        found: dict[str, Size] = dict(new)
        compound: list[tuple[Dimension, Size]] = []
        for term, tensor in zip(self.operands, tensors, strict=True):
            if len(term) != len(tensor.shape):
                raise VerifyError(f'"{self.text}": an operand of {len(term)} axes cannot be {tensor}')
            for dimension, size in zip(term, tensor.shape, strict=True):
                if len(dimension.axes) > 1:
                    compound.append((dimension, size))
                elif found.setdefault(dimension.axes[0], size) != size:
                    axis = dimension.axes[0]
                    raise VerifyError(f'"{self.text}": axis {axis!r} is both {found[axis]} and {size}')
        for dimension, size in compound:
            if dimension.size(found) != size:
                names = " ".join(dimension.axes)
                raise VerifyError(f'"{self.text}": ({names}) is {dimension.size(found)}, not {size}')
        return found

    def layout(self, tensors: Sequence[Tensor], linear: Collection[int] = ()) -> Layout:
        """The placement of each axis on the mesh.

        Args:
            tensors: The operands.
            linear: Slots of the operands that may be partial sums.

        Raises:
            VerifyError: The placements do not match, so no rank could compute its part.
        """
        split: dict[str, Placement] = {}
        tokens: dict[tuple[str, ...], Placement] = {}
        partial: set[str] = set()
        if not any(t.spread for t in tensors):
            return Layout({}, (), (), ())
        for i, (term, tensor) in enumerate(zip(self.operands, tensors, strict=True)):
            if tensor.partial and i not in linear:
                raise VerifyError(f'"{self.text}" needs the whole sum, got {tensor}')
            partial.update(tensor.partial)
            for dimension, placement in zip(term, tensor.placements, strict=True):
                axis = " ".join(dimension.axes)
                if placement and axis in self.whole:
                    raise VerifyError(f'"{self.text}": axis {axis!r} must stay whole, got {tensor}')
                if split.setdefault(axis, placement) != placement:
                    raise VerifyError(
                        f'"{self.text}": axis {axis!r} has two different placements; '
                        f"one of its tensors is {tensor}"
                    )
            pair = tuple(d.axes[0] for d in term[:2])
            if tokens.setdefault(pair, tensor.tokens) != tensor.tokens:
                raise VerifyError(f'"{self.text}": tokens have two placements, one of them is {tensor}')
        return self._checked(split, {p: t for p, t in tokens.items() if t}, partial)

    def carries(self, pair: tuple[str, ...]) -> bool:
        """Whether the op processes each token independently, in place or as separate rows."""
        kept = all(term[:2] == _apart(pair) or any(d.axes[:2] == pair for d in term) for term in self.results)
        return kept and not any(a in self.whole or self.role(a) != "mapped" for a in pair)

    def _checked(
        self, split: dict[str, Placement], tokens: dict[tuple[str, ...], Placement], partial: set[str]
    ) -> Layout:
        pair, over = next(iter(tokens.items()), ((), ()))
        used = [name for p in (*split.values(), over) for name in p]
        if len(set(used)) != len(used):
            raise VerifyError(f'"{self.text}": two axes are split over one mesh axis')
        if both := partial & set(used):
            raise VerifyError(
                f'"{self.text}": the result is a partial sum over mesh axis {min(both)!r}, which '
                "splits an axis too"
            )
        if over:
            firsts = [tuple(d.axes[0] for d in term[:2]) for term in self.operands]
            stray = any(set(f) & set(pair) and f != pair for f in firsts)
            if len(tokens) > 1 or stray or not self.carries(pair):
                raise VerifyError(
                    f'"{self.text}": tokens must stay whole, they are sharded over {".".join(over)}'
                )
        summed = {n for a, p in split.items() if self.role(a) in ("contracted", "indexed") for n in p}
        return Layout(split, pair, over, tuple(sorted(partial | summed)))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Layout:
    """The placements of an equation's axes: `split` by axis; `tokens` splits the axes in `pair` together."""

    split: dict[str, Placement]
    pair: tuple[str, ...]
    tokens: Placement
    partial: Placement

    def of(self, term: tuple[Dimension, ...]) -> tuple[tuple[Placement, ...], Placement]:
        """The placements of a result's dimensions, and of its tokens."""
        placements = []
        for d in term:
            own = self.split.get(" ".join(d.axes), self.split.get(d.axes[0], ()))
            # A dimension of rows that flattens the tokens is split like the tokens.
            rows = self.tokens if d.axes[:2] == self.pair else ()
            placements.append((*own, *rows))
        together = term[:2] == _apart(self.pair)
        return tuple(placements), self.tokens if together else ()


def _apart(pair: tuple[str, ...]) -> tuple[Dimension, ...]:
    return tuple(Dimension((axis,)) for axis in pair)


@lru_cache(maxsize=4096)
def equation(text: str) -> Equation:
    """Parse `text`; raises `VerifyError` when it is not an equation."""
    if text.count("->") != 1:
        raise VerifyError(f'equation "{text}": expected operands -> results')
    indexed: set[str] = set()
    windowed: set[str] = set()
    whole: set[str] = set()
    summed: set[str] = set()

    def term(source: str) -> tuple[Dimension, ...]:
        if junk := _DIMENSION.sub("", source).strip():
            raise VerifyError(f'equation "{text}": cannot read "{junk}"')
        dimensions = []
        for group, bracket, plus, axis, mark in _DIMENSION.findall(source):
            if not axis:
                dimensions.append(Dimension(tuple(re.findall(r"\w+", group)), "+" in group))
                continue
            dimensions.append(Dimension((axis,)))
            if bracket:
                indexed.add(axis)
            if plus:
                summed.add(axis)
            if mark:
                (windowed if mark == "~" else whole).add(axis)
        return tuple(dimensions)

    left, right = (tuple(term(part) for part in side.split(",")) for side in text.split("->"))
    kept = {a for term in right for d in term for a in d.axes} & summed
    if kept:
        raise VerifyError(f'equation "{text}": axis {min(kept)!r} is in a result, so it is not summed')
    marked = map(frozenset, (indexed, windowed, whole, summed))
    return Equation(text, left, right, *marked)
