"""Norms of what ranks add up, in one kernel with the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from llmir.base.dataclass import dataclass
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, Meeting, Work
from llmir.ir.core.tensor import Placement, Tensor

from .collective import AllReduce, summed, total
from .narrow_norm import AddRmsNormQuantize
from .norm import AddRmsNorm


@dataclass(frozen=True)
class AllReduceAddRmsNorm(AddRmsNorm):
    """(y + x, rms_norm(y + x)) where y is a sum over the ranks that the mesh axes `over` join."""

    opcode = "all_reduce_add_rms_norm"
    takes = ("y", "x", "weight")
    aliases = MappingProxyType({0: 1})
    exchanges = True
    share = AllReduce.share

    over: tuple[str, ...] = ()

    @property
    def joins(self) -> tuple[str, ...]:
        """The axes `over`."""
        return self.over

    def owed(self, operands: Sequence[Tensor]) -> list[Placement]:
        """The first is a partial sum."""
        return [self.over, (), ()]

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of a whole sum."""
        y, *others = operands
        return super().types((y.laid(y.placements, summed(y, self.over), y.tokens), *others))

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """That of an add and a norm, and what an all_reduce sends."""
        sent = AllReduce(self.over).work(operands[:1], results[:1], mesh)
        own = super().work(operands, results, mesh)
        return replace(own, wire=sent.wire, payload=sent.payload, group=sent.group, pattern=sent.pattern)

    def meet(self, members: Sequence[Array], place: int, at: Meeting) -> Array:
        """The sum of the first operand, before all else."""
        return total(members)


@dataclass(frozen=True)
class AllReduceAddRmsNormQuantize(AllReduceAddRmsNorm, AddRmsNormQuantize):
    """(y + x, rms_norm(y + x) as `quantize` narrows it) where y is a sum over the ranks of `over`."""

    opcode = "all_reduce_add_rms_norm_quantize"
