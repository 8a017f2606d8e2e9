"""Values on all ranks of a mesh at once: pieces of arrays, and real collectives between them.

A spread value is a list with one array a rank. Pieces are as long as `ceildiv` says, the last ones shorter.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, Meeting, Op
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.ops.collective import flat

Spread = list[Array]


@dataclass(frozen=True)
class Ranks:
    """The ranks of a mesh, first axis outermost."""

    mesh: Mesh

    @cached_property
    def all(self) -> list[dict[str, int]]:
        """Each rank's coordinate on each axis."""
        names = [name for name, _ in self.mesh.axes]
        sizes = [range(size) for _, size in self.mesh.axes]
        return [dict(zip(names, at, strict=True)) for at in itertools.product(*sizes)]

    def index(self, rank: dict[str, int], over: Placement) -> int:
        """Which of the pieces over some axes a rank has."""
        place = 0
        for axis in over:
            place = place * self.mesh.size((axis,)) + rank[axis]
        return place

    def piece(self, length: int, rank: dict[str, int], over: Placement) -> slice:
        """That piece of a dimension."""
        size = -(-length // self.mesh.size(over))
        start = min(self.index(rank, over) * size, length)
        return slice(start, min(start + size, length))

    def local(self, whole: Array, type: Tensor, rank: dict[str, int]) -> Array:
        """What a rank holds of a global array."""
        lengths = zip(whole.shape, type.placements, strict=True)
        part = whole[tuple(self.piece(n, rank, p) for n, p in lengths)]
        return self.tokens(part, rank, type.tokens) if type.tokens else part

    def tokens(self, x: Array, rank: dict[str, int], over: Placement) -> Array:
        """A rank's piece of sequences × positions, laid along the first dimension."""
        whole = flat(x)
        return whole[self.piece(len(whole), rank, over)]

    def spread(self, whole: Array, type: Tensor) -> Spread:
        """A global array on all ranks."""
        return [self.local(whole, type, rank) for rank in self.all]

    def whole(self, pieces: Spread, type: Tensor, shape: tuple[int, ...]) -> Array:
        """The global array of these pieces; `type` is not a partial sum and its tokens are whole."""
        found = np.zeros(shape)
        for rank, piece in zip(self.all, pieces, strict=True):
            lengths = zip(shape, type.placements, strict=True)
            found[tuple(self.piece(n, rank, p) for n, p in lengths)] = piece
        return found

    def groups(self, over: Placement) -> list[list[int]]:
        """The ranks that differ in `over` only, in the order of their pieces."""
        found: dict[tuple[int, ...], list[int]] = {}
        for i, rank in enumerate(self.all):
            found.setdefault(tuple(v for k, v in rank.items() if k not in over), []).append(i)
        return [sorted(g, key=lambda i: self.index(self.all[i], over)) for g in found.values()]

    def run(self, op: Op, pieces: Spread, at: Meeting) -> Spread:
        """A collective on all ranks."""
        found = list(pieces)
        for group in self.groups(op.joins):
            members = [pieces[i] for i in group]
            for place, i in enumerate(group):
                found[i] = op.meet(members, place, at)
        return found
