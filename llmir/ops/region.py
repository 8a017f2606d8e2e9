"""Ops that run another graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtype import DType
from ..equation import Equation, equation
from ..errors import VerifyError
from ..mesh import Mesh
from ..op import Loop, Op, Work
from ..tensor import Tensor


@dataclass(frozen=True)
class Repeat(Op):
    """Runs graph `body` `times` times: the first `carried` operands go round, the rest are captured.

    Caches of the body are per iteration, as are weights, but for those that name one tensor. `first` is the
    number of the first layer, counted from where its graph begins; by default it follows the layers before it
    (`Program.iterations`).
    """

    opcode = "repeat"
    kind = "elementwise"
    takes = ("*values",)

    body: str
    times: int
    first: int | None = None
    carried: int = 1

    def __post_init__(self) -> None:
        if self.times < 1 or self.carried < 1 or (self.first or 0) < 0:
            got = f"times={self.times}, carried={self.carried}, first={self.first}"
            raise VerifyError(f"repeat @{self.body}: expected positive numbers, got {got}")

    @property
    def loop(self) -> Loop:
        """The body, so many times."""
        return Loop(self.body, self.times, self.carried, self.first)

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """What goes round keeps its axes."""
        names = [" ".join(f"x{i}_{n}" for n in range(len(t.shape))) for i, t in enumerate(operands)]
        return equation(f"{', '.join(names)} -> {', '.join(names[: self.carried])}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What goes round keeps its type."""
        return operands[: self.carried]

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """What goes round keeps its element type."""
        return tuple(t.dtype for t in operands[: self.carried])

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """None of its own: its cost is its body's."""
        return Work(results[0].dtype, 0, 0, (0,) * len(operands), (0,) * len(results))
