"""Mixers side by side in a layer (Falcon-H1)."""

from __future__ import annotations

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .attention import Attention
from .blocks import Blocks
from .mamba import Mamba2


@dataclass(frozen=True)
class Sides:
    """Two mixers of the same hidden states, whose outputs are added; what goes in and out may be scaled."""

    one: Mamba2
    other: Attention
    into: float = 1.0  # of the other
    out: tuple[float, float] = (1.0, 1.0)
    block: str = "attention"

    @property
    def kind(self) -> str:
        """Those of both."""
        return f"{self.one.kind}_{self.other.kind}"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        found = []
        for mixer, into, out in ((self.one, 1.0, self.out[0]), (self.other, self.into, self.out[1])):
            with blocks.b.block(mixer.block):
                given = blocks.scale(x, into, f"{mixer.kind}_in_scale")
            mixed = mixer.build(blocks, given)
            with blocks.b.block(mixer.block):
                found.append(blocks.scale(mixed, out, f"{mixer.kind}_out_scale"))
        with blocks.b.block(self.block):
            total: Value = blocks.b.add(*found, name="sides_add")
            return total
