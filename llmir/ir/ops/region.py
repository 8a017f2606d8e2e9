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
    """Runs graph `body` `times` times: the first `carried` operands go round, the rest are captured.

    What the body gives beyond what goes round is handed out by its last run, in the types `gives`. Caches of
    the body are per iteration, as are weights, but for those that name one tensor. `first` is the number of
    the first layer, counted from where its graph begins; by default it follows the layers before it
    (`Program.iterations`).
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
        """The body, so many times."""
        return Loop(self.body, self.times, self.carried, self.first, self.gives)

    def looping(self, loop: Loop) -> Op:
        """As `loop` says."""
        return replace(self, **loop._asdict())

    @classmethod
    def stated(cls, given: Mapping[str, object], results: tuple[Tensor, ...]) -> dict[str, object]:
        """What it hands out."""
        carried = given.get("carried", 1)
        out = results[carried:] if isinstance(carried, int) else ()
        return {"gives": out} if out else {}

    def equation(self, operands: Sequence[Tensor]) -> Equation:
        """What goes round keeps its axes; what is handed out has new ones."""
        names = [_axes("x", i, t) for i, t in enumerate(operands)]
        out = [*names[: self.carried], *(_axes("y", i, t) for i, t in enumerate(self.gives))]
        return equation(f"{', '.join(names)} -> {', '.join(out)}")

    def types(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What goes round keeps its type; what is handed out has the one that is stated."""
        return (*operands[: self.carried], *self.gives)

    def dtypes(self, operands: Sequence[Tensor]) -> tuple[DType, ...]:
        """Those of `types`."""
        return tuple(t.dtype for t in self.types(tuple(operands)))

    def work(self, operands: Sequence[Tensor], results: Sequence[Tensor], mesh: Mesh) -> Work:
        """None of its own: its cost is its body's."""
        return Work(results[0].dtype, 0, 0, (0,) * len(operands), (0,) * len(results))


def _axes(letter: str, operand: int, type: Tensor) -> str:
    return " ".join(f"{letter}{operand}_{n}" for n in range(len(type.shape)))
