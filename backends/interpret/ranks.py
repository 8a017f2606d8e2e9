"""Values on all ranks of a mesh at once: pieces of arrays, and real collectives between them.

A spread value is a list with one array a rank. Pieces are as long as `ceildiv` says, the last ones shorter.
Routed rows keep their order and their full number on each rank that may hold them, zero where the expert is
another rank's; which rows move is then a matter of cost, not of value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from llmir.mesh import Mesh
from llmir.op import Array
from llmir.ops import collective as c
from llmir.tensor import Placement, Tensor

Spread = list[Array]


@dataclass(frozen=True)
class Ranks:
    """The ranks of a mesh, first axis outermost."""

    mesh: Mesh
    # how many rows each member of an exchange gave, by its axes and their number in all
    sent: dict[tuple[Placement, int], list[int]] = field(default_factory=dict)

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
        flat = _flat(x)
        return flat[self.piece(len(flat), rank, over)]

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

    def run(self, op: c.Collective, pieces: Spread, positions: int) -> Spread:
        """A collective on all ranks; `positions` is how many there are in a sequence."""
        do = _DO[type(op)]
        found = list(pieces)
        for group in self.groups(op.over):
            members = [pieces[i] for i in group]
            for place, i in enumerate(group):
                found[i] = do(self, op, members, place, positions)
        return found


def _flat(x: Array) -> Array:
    """Sequences × positions along the first dimension, and 1 along the second."""
    return x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:])


def _total(members: Spread) -> Array:
    result: Array = np.sum(np.stack(members), axis=0)
    return result


def _all_reduce(ranks: Ranks, op: c.Collective, members: Spread, place: int, positions: int) -> Array:
    return _total(members)


def _all_gather(ranks: Ranks, op: c.Collective, members: Spread, place: int, positions: int) -> Array:
    dim = getattr(op, "dim", 0)
    joined = np.concatenate(members, axis=max(dim, 0))
    return (
        joined.reshape(len(joined) // positions, positions, *joined.shape[2:]) if dim == c.TOKENS else joined
    )


def _keep(x: Array, dim: int, place: int, count: int) -> Array:
    """One of `count` pieces along `dim`."""
    flat = _flat(x) if dim == c.TOKENS else x
    axis = max(dim, 0)
    size = -(-flat.shape[axis] // count)
    return flat.take(
        range(min(place * size, flat.shape[axis]), min((place + 1) * size, flat.shape[axis])), axis
    )


def _slice(ranks: Ranks, op: c.Collective, members: Spread, place: int, positions: int) -> Array:
    return _keep(members[place], getattr(op, "dim", 0), place, len(members))


def _reduce_scatter(ranks: Ranks, op: c.Collective, members: Spread, place: int, positions: int) -> Array:
    return _keep(_total(members), getattr(op, "dim", 0), place, len(members))


def _all_to_all(ranks: Ranks, op: c.Collective, members: Spread, place: int, positions: int) -> Array:
    if getattr(op, "to", "") == "experts":
        ranks.sent[op.over, len(np.concatenate(members))] = [len(m) for m in members]
        return np.concatenate(members)
    # Each member has its experts' share of everybody's rows, in the order in which they were sent.
    lengths = ranks.sent[op.over, len(members[0])]
    start = sum(lengths[:place])
    return _total(members)[start : start + lengths[place]]


_DO: dict[type[c.Collective], Callable[[Ranks, c.Collective, Spread, int, int], Array]] = {
    c.AllReduce: _all_reduce,
    c.AllGather: _all_gather,
    c.Slice: _slice,
    c.ReduceScatter: _reduce_scatter,
    c.AllToAll: _all_to_all,
}
