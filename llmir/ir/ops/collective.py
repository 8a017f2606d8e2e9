"""Collectives: ops that change the placement of a value on ranks, and leave the value unchanged.

Wire bytes assume a ring of `n` ranks. A gather, a scatter or an exchange sends (n−1)/n of the payload, and an
all_reduce sends twice as much (Thakur, Rabenseifner & Gropp 2005, section 4). The cost model chooses the
algorithm that transfers the payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import INT8, DType, dtype
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, Op, RankGroup, Work
from llmir.ir.core.tensor import Placement, Tensor
from llmir.ir.sizes.polynomial import Size, ceildiv
from llmir.ir.sizes.ragged import even, routed
from llmir.ir.sizes.routing_laws import CHANCE, law

TOKENS = -1  # value of `dim` for the token axis, which combines the first two dimensions


@dataclass(frozen=True)
class Collective(Op):
    """Base class of ops that move values between the ranks that the mesh axes `over` connect."""

    relays = exchanges = True
    share = "(n−1)/n"

    over: tuple[str, ...]

    @property
    def joins(self) -> tuple[str, ...]:
        """The axes `over`."""
        return self.over

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """The identity, because values are unchanged."""
        letters = iter("abcdefghijlmnopqrsuvwxyz")
        axes = ", ".join(" ".join(islice(letters, len(t.shape))) for t in operands)
        return equation(f"{axes} -> {axes}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same tensors with another placement."""
        return tuple(map(self.moved, operands))

    def moved(self, x: Tensor) -> Tensor:
        """The type with its placement after the collective."""
        return x

    def payload(self, x: Tensor, y: Tensor) -> Tensor:
        """The type of the payload."""
        return x

    @property
    def pattern(self) -> str:
        """The opcode of the collective that sends the payload."""
        return self.opcode

    def wire(self, payload: Size, ranks: int) -> Size:
        """The bytes that a rank sends in a ring: (n−1)/n of the payload."""
        return ceildiv((ranks - 1) * payload, ranks)

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The work of an op without communication, plus the payload and the wire bytes."""
        each = (self.payload(x, y).local(mesh).bytes for x, y in zip(operands, results, strict=False))
        payload = sum(each, start=0)
        group = mesh.group(self.over)
        wire = self.wire(payload, len(group))
        done = super().work(operands, results, mesh)
        return replace(done, wire=wire, payload=payload, group=group, pattern=self.pattern)


def without(placement: Placement, over: Placement, what: Tensor) -> Placement:
    """`placement` without its last axes `over`; `VerifyError` if `placement` does not end with these axes."""
    if not over or placement[len(placement) - len(over) :] != over:
        raise VerifyError(f"{what} is not split over {'.'.join(over) or 'nothing'} innermost")
    return placement[: len(placement) - len(over)]


def summed(x: Tensor, over: Placement) -> Placement:
    """The axes over which `x` remains a partial sum after a sum over `over`."""
    if not over or not set(over) <= set(x.partial):
        raise VerifyError(f"{x} is not a partial sum over {'.'.join(over) or 'nothing'}")
    return tuple(a for a in x.partial if a not in over)


def replaced(x: Tensor, dim: int, placement: Placement, partial: Placement) -> Tensor:
    """`x` with the placement of one dimension (or of its tokens) replaced."""
    if dim == TOKENS:
        return x.laid(x.placements, partial, placement)
    if not 0 <= dim < len(x.shape):
        raise VerifyError(f"{x} has no dimension {dim}")
    if x.tokens and dim < 2:
        raise VerifyError(f"{x}: dimension {dim} cannot be sharded in another way while its tokens are split")
    return x.laid((*x.placements[:dim], placement, *x.placements[dim + 1 :]), partial, x.tokens)


def placement_of(x: Tensor, dim: int) -> Placement:
    """The placement of a dimension (or of the tokens) of `x`."""
    return x.tokens if dim == TOKENS else x.placements[dim] if 0 <= dim < len(x.shape) else ()


def flat(x: Array) -> Array:
    """Reshape sequences and positions to one axis of tokens and an axis of length 1."""
    return x.reshape(x.shape[0] * x.shape[1], 1, *x.shape[2:])


def piece(x: Array, dim: int, place: int, count: int) -> Array:
    """Piece `place` of `count` along `dim` (−1: the token axis); pieces have equal lengths, rounded up."""
    whole, axis = (flat(x), 0) if dim == TOKENS else (x, dim)
    length = whole.shape[axis]
    size = -(-length // count)
    return whole.take(range(min(place * size, length), min((place + 1) * size, length)), axis)


def total(members: Sequence[Array]) -> Array:
    """The sum over ranks."""
    result: Array = np.sum(np.stack(members), axis=0)
    return result


@dataclass(frozen=True)
class AllReduce(Collective):
    """Add up a partial sum, so that each rank has the total: partial → replicated."""

    opcode = "all_reduce"
    kind = "collective"
    share = "2(n−1)/n"

    def moved(self, x: Tensor) -> Tensor:
        """The total on every rank. As in NCCL, integers without scales are added even if they overflow."""
        if x.dtype.low and x.dtype != INT8:
            raise VerifyError(f"{x} has too low a precision for a sum")
        return x.laid(x.placements, summed(x, self.over), x.tokens)

    def wire(self, payload: Size, ranks: int) -> Size:
        """2(n−1)/n of the payload: a reduce_scatter and an all_gather."""
        return ceildiv(2 * (ranks - 1) * payload, ranks)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The sum."""
        return total(members)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Add up a partial sum; each rank has one piece: partial → split along `dim` (−1: token axis).

    For low-precision summands, `to` is the dtype in which each rank adds the pieces that it receives. An
    exchange sends these pieces unchanged, and sends as many bytes as a ring.
    """

    opcode = "reduce_scatter"
    kind = "collective"

    dim: int
    to: str = ""

    def moved(self, x: Tensor) -> Tensor:
        """Each rank has the sum for its own piece."""
        if x.dtype.low and x.dtype != INT8 and not self.to:
            raise VerifyError(f"{x} has too low a precision for a sum; set the type of the sum with to=…")
        y = replaced(x, self.dim, (*placement_of(x, self.dim), *self.over), summed(x, self.over))
        return y.to(dtype(self.to)) if self.to else y

    def giving(self, to: DType, x: DType) -> Op:
        return replace(self, to=to.name) if self.to else self

    @property
    def pattern(self) -> str:
        """An exchange for low-precision summands, which only the destination adds; else a reduce_scatter."""
        return "all_to_all" if self.to else self.opcode

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """The rank's piece of the sum."""
        return piece(total(members), self.dim, place, len(members))


@dataclass(frozen=True)
class AllGather(Collective):
    """Collect the pieces of all ranks: split along `dim` (−1: the token axis) → replicated."""

    opcode = "all_gather"
    kind = "collective"
    takes = ("x", "*beside")

    dim: int

    def moved(self, x: Tensor) -> Tensor:
        """Every rank has all pieces."""
        return replaced(x, self.dim, without(placement_of(x, self.dim), self.over, x), x.partial)

    def payload(self, x: Tensor, y: Tensor) -> Tensor:
        """All pieces together."""
        return y

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """Concatenate the pieces; tokens become sequences × positions again."""
        joined = np.concatenate(members, axis=max(self.dim, 0))
        if self.dim != TOKENS:
            return joined
        return joined.reshape(len(joined) // at.positions, at.positions, *joined.shape[2:])


@dataclass(frozen=True)
class Slice(Collective):
    """Retain one piece on each rank: replicated → split along `dim` (−1: the token axis)."""

    opcode = "slice"
    kind = "collective"
    exchanges = False

    dim: int

    def moved(self, x: Tensor) -> Tensor:
        """The piece."""
        return replaced(x, self.dim, (*placement_of(x, self.dim), *self.over), x.partial)

    def wire(self, payload: Size, ranks: int) -> Size:
        """Nothing is sent."""
        return 0

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No copy: a piece is a view."""
        return (0,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No copy: a piece is a view."""
        return (0,)

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        return piece(members[place], self.dim, place, len(members))


@dataclass(frozen=True)
class AllToAll(Collective):
    """Send routed rows to the ranks of their experts, or back to the ranks of their tokens, as `to` says.

    Rows are split over the same mesh axes before and after the exchange. A split by token is even. A split by
    expert follows the law `routing`, by which each token chooses `top_k` of `experts`.
    """

    opcode = "all_to_all"
    kind = "collective"

    to: str
    top_k: int = 0
    experts: int = 0
    routing: str = str(CHANCE)

    @property
    def expert_choices(self) -> int:
        """`experts`."""
        return self.experts

    def routed_by(self, law: str) -> Op:
        return replace(self, routing=law) if self.experts else self

    def moved(self, x: Tensor) -> Tensor:
        if self.to not in ("experts", "tokens"):
            raise VerifyError(f"all_to_all: to must be experts or tokens, got {self.to!r}")
        if not set(self.over) <= set(x.placements[0]):
            raise VerifyError(f"{x} is not split over {'.'.join(self.over)}")
        rows = even(x.shape[0])
        by = law(self.routing)
        if self.to == "experts" and self.experts:
            if self.top_k < 1:
                raise VerifyError(f"all_to_all: top_k: expected an integer from 1 up, got {self.top_k}")
            rows = routed(ceildiv(rows, self.top_k), self.top_k, self.experts, by)
        return x.resized(0, rows)

    def payload(self, x: Tensor, y: Tensor) -> Tensor:
        """The rows that the rank with the busiest experts receives, or sends back."""
        return y if self.to == "experts" else x

    def meet(self, members: Sequence[Array], place: int, at: RankGroup) -> Array:
        """All rows, with the contributions of every rank's experts; on the way back, the rank's own rows.

        The interpreter stores all rows on each rank, in order, with zeros for experts of other ranks. The
        number of sent rows affects only the cost.
        """
        if self.to == "experts":
            at.sent[self.over, sum(map(len, members))] = [len(m) for m in members]
            return np.concatenate(members)
        # Each member has all rows, in the order in which they were sent, with the results of its own experts.
        lengths = at.sent[self.over, len(members[0])]
        start = sum(lengths[:place])
        return total(members)[start : start + lengths[place]]
