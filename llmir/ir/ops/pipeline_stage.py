"""Send and receive between pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Array, ExecutionPlace, Op, Work
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size


@dataclass(frozen=True)
class Send(Op):
    """Send a value to the memory of stage `to`: each rank sends to the rank with the same coordinates."""

    opcode = "send"
    kind = "collective"
    rule = "* -> *"

    to: int

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """The payload, sent once; the group is the first rank of this stage and of the next stage."""
        payload = operands[0].local(mesh).bytes
        group = ((self.to - 1) * mesh.devices, self.to * mesh.devices)
        return replace(super().work(operands, results, mesh), wire=payload, payload=payload, group=group)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unchanged value."""
        return (operands[0],)


@dataclass(frozen=True)
class Recv(Op):
    """Receive a value from the previous stage; the cost of the transfer is part of `send`."""

    opcode = "recv"
    kind = "collective"
    rule = "* -> *"
    aliases: ClassVar[Mapping[int, int]] = MappingProxyType({0: 0})

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No bytes: `send` has stored the value in the memory of this stage."""
        return (0,)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """No bytes: `send` has written it."""
        return (0,)

    def evaluate(
        self, operands: Sequence[Array], results: Sequence[Tensor], at: ExecutionPlace
    ) -> tuple[Array, ...]:
        """The unchanged value."""
        return (operands[0],)
