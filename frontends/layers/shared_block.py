"""A transformer block that several layers share (Zamba, arXiv:2405.16712)."""

from __future__ import annotations

from typing import ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .attention import Attention
from .blocks import Blocks
from .mlp import Mlp


@dataclass(frozen=True)
class SharedBlock:
    """Attention and an MLP over hidden states and embeddings, concatenated; all uses share weights.

    `stem` is the name of the block in checkpoints, and `norms` are the norms before both parts. Each use has
    a separate output projection `out`, and separate `adapters` of rank `rank` for products of the block.
    """

    kind: ClassVar[str] = "shared"
    block: ClassVar[str] = "attention"

    stem: str
    attention: Attention
    mlp: Mlp
    adapters: tuple[tuple[str, str], ...] = ()
    rank: int = 1
    norms: tuple[str, str] = ("input_layernorm", "pre_ff_layernorm")
    out: str = "linear"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Build the summand for the hidden states; the embedding is a second input."""
        b, sizes = blocks.b, {**blocks.sizes, "s": 2, "k": self.rank, "j": blocks.sizes["h"]}
        at = Blocks(b, blocks.dtype, blocks.normal, self.stem, **sizes)
        at.adapters = dict(self.adapters)
        with b.block(self.block):
            both = b.stack(x, blocks.beside["embedded"], name="both")
        seen = at.norm(both, "shared_norm", self.norms[0], "s h", 2)
        mixed = self.attention.build(at, seen)
        fed = self.mlp.build(at, at.norm(mixed, "shared_mlp_norm", self.norms[1]))
        with b.block(self.mlp.block):
            own = blocks.sized(**sizes)
            return own.linear(fed, "b t h", "h J", "b t J", "shared_out", self.out)
