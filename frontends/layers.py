"""A layer of a decoder as data: what mixes tokens and what follows, each a spec that builds itself."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.build import Builder
from llmir.dim import B, T
from llmir.dtype import DType
from llmir.graph import Graph

from .blocks import LAYER, Blocks
from .mixers import Attention, LatentAttention
from .mlps import Mlp, Moe


@dataclass(frozen=True)
class Layer:
    """Norm, mixer, residual; norm, mlp, residual."""

    mixer: Attention | LatentAttention
    mlp: Mlp | Moe

    def graph(self, name: str, hidden: int, dtype: DType, eps: float) -> Graph:
        """The body: hidden state in, hidden state out."""
        b = Builder(name)
        blocks = Blocks(b, dtype, eps, h=hidden)
        x = b.input(blocks.tensor(B, T, hidden), name="hidden", axes=("batch", "seq", "embed"))
        mixed = self.mixer.build(blocks, blocks.norm(x, "input_norm", f"{LAYER}input_layernorm"))
        with b.block("attention"):
            x = b.add(x, mixed, name="attention_add")
        mixed = self.mlp.build(blocks, blocks.norm(x, "post_norm", f"{LAYER}post_attention_layernorm"))
        with b.block(self.mlp.block):
            b.output(b.add(x, mixed, name="mlp_add"))
        return b.graph()
