"""A cache that grows by copies."""

from __future__ import annotations

from collections.abc import Sequence

from llmir.base.dataclass import dataclass
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import Size

from .rope import Append


@dataclass(frozen=True)
class Concat(Append):
    """A cache with the new tokens' rows behind it, all in new memory, as `torch.cat` does.

    What a step finds in place of the old cache is the copy; that both are held for a while is not counted.
    """

    opcode = "concat"

    def reads(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, and the new rows."""
        return tuple(x.bytes for x in operands)

    def writes(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> tuple[Size, ...]:
        """The whole cache, new rows included."""
        return (results[0].bytes,)
