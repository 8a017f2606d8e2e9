"""`repeat`: the op that runs another graph of the program several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmir.base.dataclass import dataclass
from llmir.base.errors import VerifyError
from llmir.ir.core.dtype import DType
from llmir.ir.core.equation import Equation, equation
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.op import Loop, Op, Work
from llmir.ir.core.tensor import Tensor


@dataclass(frozen=True)
class Repeat(Op):
    """Run graph `body` `times` times; the first `carried` operands are loop-carried, the others captured.

    The last iteration returns the additional results of the body; their types are `gives`. Each iteration has
    separate caches and weights, except weights whose name has no layer number. `first` is the number of the
    first layer. By default, numbering continues after the preceding layers (`Program.iterations`).
    """

    opcode = "repeat"
    kind = "elementwise"
    takes = ("*values",)

    body: str
    times: int
    first: int | None = None
    carried: int = 1
    gives: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if self.times < 1 or self.carried < 1 or (self.first or 0) < 0:
            got = f"times={self.times}, carried={self.carried}, first={self.first}"
            raise VerifyError(f"repeat @{self.body}: expected integers from 1 up, first from 0 up, got {got}")

    @property
    def loop(self) -> Loop:
        return Loop(self.body, self.times, self.carried, self.first, self.gives)

    def looping(self, loop: Loop) -> Op:
        return replace(self, **loop._asdict())

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """The types of the additional results."""
        carried = given.get("carried", 1)
        out = results[carried:] if isinstance(carried, int) else ()
        return {"gives": out} if out else {}

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """Loop-carried values retain their axes; additional results have new ones."""
        names = [_axes("x", i, t) for i, t in enumerate(operands)]
        out = [*names[: self.carried], *(_axes("y", i, t) for i, t in enumerate(self.gives))]
        return equation(f"{', '.join(names)} -> {', '.join(out)}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Loop-carried values retain their types; additional results have the declared types."""
        return (*operands[: self.carried], *self.gives)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        return tuple(t.dtype for t in self.types(tuple(operands)))

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """None: the cost is in the body."""
        return Work(results[0].dtype, 0, 0, (0,) * len(operands), (0,) * len(results))


def _axes(letter: str, operand: int, type: Tensor) -> str:
    return " ".join(f"{letter}{operand}_{n}" for n in range(len(type.shape)))
