"""Short convolutions as mixers (LFM2)."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .blocks import Blocks


@dataclass(frozen=True)
class ShortConv:
    """c · conv(b · x) over the last `taps` tokens, gated before and after by what the input projects to."""

    kind: ClassVar[str] = "conv"
    block: ClassVar[str] = "conv"

    channels: int
    taps: int
    bias: bool = False
    module: str = "conv"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        at, b, module = blocks.sized(f=self.channels, w=self.taps), blocks.b, self.module
        with b.block(self.block):
            parts = dict.fromkeys(("b_proj", "c_proj", "x_proj"), "h f")
            before, after, x = at.merged(x, parts, "in_proj", f"{module}.in_proj", bias=self.bias)
            x = b.mul(before, x, name="gate_before")
            y = at.convolved(x, "f", "conv", f"{module}.conv", bias=self.bias)
            y = b.mul(after, y, name="gate_after")
            return at.linear(y, "b t f", "f h", "b t h", "out_proj", f"{module}.out_proj", bias=self.bias)
