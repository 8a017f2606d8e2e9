"""What each layer reads of the token itself, from a second table of embeddings (Gemma 3n, Gemma 4)."""

from __future__ import annotations

from llmir.base.dataclass import dataclass
from llmir.ir.core.graph import Value

from .blocks import Blocks

_BLOCK = "per_layer_input"


@dataclass(frozen=True)
class LayerTable:
    """A table of `rows` with `size` numbers for each of so many layers; unknown tokens have the first row.

    Its rows are scaled by `scale`, hidden states are projected to as much, and both are averaged.
    """

    rows: int
    layers: int
    size: int
    scale: float

    def build(self, blocks: Blocks, tokens: Value, x: Value) -> None:
        """Hand it to layers, of token ids and what enters the first layer."""
        b, at = blocks.b, blocks.sized(v=self.rows, ly=self.layers, li=self.size)
        with b.block("embedding"):
            table = at.weight("v ly li", "layer_embed.weight", "embed_tokens_per_layer.weight")
            own = b.layer_embedding(table, tokens, rows=self.rows)
            own = at.scale(own, self.scale, "layer_embedding_scale")
        with b.block(_BLOCK):
            name = "per_layer_model_projection"
            seen = at.linear(x, "b t h", "h ly li", "b t ly li", "per_layer_proj", name)
            seen = b.scale(seen, factor=blocks.hidden**-0.5, name="per_layer_proj_scale")
        seen = at.norm(seen, "per_layer_norm", "per_layer_projection_norm", "li")
        with b.block(_BLOCK):
            both = b.scale(b.add(seen, own, name="per_layer_sum"), factor=0.5**0.5, name="per_layer")
        blocks.beside.hand("per_layer", both, ("batch", "seq", "layer", "layer_input"))


@dataclass(frozen=True)
class PerLayer:
    """What a layer reads of the token itself, from a table that has `size` numbers for each layer.

    The layer's part is gated by hidden states, projected and normalized, and added to them; the sum is
    scaled by a number that checkpoints hold, of the name `scalar`, if there is one.
    """

    size: int
    activation: str = "gelu_tanh"
    scalar: str = ""

    def build(self, blocks: Blocks, x: Value) -> Value:
        """x and that, scaled."""
        b = blocks.b
        if self.size:
            mixed = self.mixed(blocks, x)
            with b.block(_BLOCK):
                x = b.add(x, mixed, name="per_layer_add")
        if not self.scalar:
            return x
        with b.block(_BLOCK):
            one = blocks.sized(a=1).weight("a", "layer_scalar", self.scalar, buffer=True)
            scaled: Value = b.scale_by(x, one, name="layer_scale")
            return scaled

    def mixed(self, blocks: Blocks, x: Value) -> Value:
        """What is added to hidden states."""
        b, at = blocks.b, blocks.sized(li=self.size)
        with b.block(_BLOCK):
            own = b.pick(blocks.beside["per_layer"], name="layer_input")
            gate = at.linear(x, "b t h", "h li", "b t li", "layer_gate", "per_layer_input_gate")
            gated = b.mul(getattr(b, self.activation)(gate, name="layer_act"), own, name="layer_mul")
            mixed = at.linear(gated, "b t li", "li h", "b t h", "layer_proj", "per_layer_projection")
        return at.norm(mixed, "layer_input_norm", "post_per_layer_input_norm")
