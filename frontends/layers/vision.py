"""Vision towers of language models, as the phase `encode`, and the reader of SigLIP configs.

Absent fields have the defaults of transformers.
"""

from __future__ import annotations

from collections.abc import Hashable

from llmir.base.dataclass import dataclass
from llmir.frontends.config.reader import INERT, NEUTRAL, Config
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder

from .attention import Attention
from .blocks import Blocks, Norm
from .decoder import Decoder, LayerStack
from .diffusion import patch_embedding, patches
from .layer import Layer, Norms
from .mlp import Mlp
from .parts import activation, layers

# --- Vision towers ---


@dataclass(frozen=True)
class VisionTower:
    """A vision transformer, and the projection of its output into the language model's embeddings.

    Each image has `patches` patches of `side` × `side` pixels; each patch has a learned position. `module` is
    the checkpoint name of the tower, `projector` names the two products around an activation, and `newline`
    names the row that ends an image, if any.
    """

    hidden: int
    patches: int
    side: int
    channels: int
    norm: Norm
    layers: tuple[Layer, ...]
    module: str
    projector: str
    activation: str
    newline: str = ""

    def program(self, language: Decoder) -> Program:
        """Build the phase, which maps patch pixels to rows that replace embeddings of the language model."""
        b, stem = Builder("main"), f"{self.module}."
        at = Blocks(b, language.dtype, self.norm, stem, h=self.hidden, z=self.patches, j=language.hidden)
        with b.block("embedding"):
            x = patches(at, self.patches, self.channels, self.side)
            x = patch_embedding(at, x, self.channels, self.side, "embeddings.patch_embedding")
            rows = at.weight("z h", "positions.weight", "embeddings.position_embedding.weight")
            x = b.positions(x, rows, name="positions")
        kinds = [(layer, None) for layer in self.layers]
        inner = f"{stem}encoder.layers.{{layer}}."
        stack = LayerStack(kinds, inner, self.hidden, language.dtype, self.norm)
        x = stack.build(at.beside, x)
        with b.block("norm"):
            for what in self.norm.learns:  # weights of a norm whose result is unused
                at.weight("h", f"last_norm.{what}", f"post_layernorm.{what}")
        to = Blocks(b, language.dtype, self.norm, "", h=self.hidden, j=language.hidden, n=1)
        with b.block("projector"):
            x = to.linear(x, "b t h", "h J", "b t J", "projector_1", f"{self.projector}.linear_1", bias=True)
            x = getattr(b, self.activation)(x, name=f"projector_{self.activation}")
            at = to.sized(h=language.hidden)
            x = at.linear(x, "b t h", "h J", "b t J", "projector_2", f"{self.projector}.linear_2", bias=True)
            if self.newline:
                x = b.append_row(x, to.weight("n J", "newline", self.newline), name="append_newline")
        b.output(x)
        return Program(language.name, {"main": b.graph(), **stack.bodies})


@dataclass(frozen=True)
class Multimodal:
    """A language model with image inputs at the positions of the token `image`."""

    language: Decoder
    tower: VisionTower
    image: int

    def program(self, logits: str, apart: tuple[Hashable, ...] = ()) -> Program:
        """Build the language model, with the tower as its phase `encode`."""
        text = self.language.program(logits, apart)
        facts = {**text.facts, "image_token": self.image}
        encode = self.tower.program(self.language).replace(facts=facts)
        return text.replace(facts=facts, phases={"encode": encode})


# --- SigLIP configs ---


def siglip(config: Config) -> VisionTower:
    """Read a SiglipVisionModel without its head; the caller sets the projector."""
    config.fill(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    config.unmodelled("model_type", ("siglip_vision_model",), "another tower")
    config.unmodelled("vision_use_head", (False,), "a head that pools, which encoding images leaves out")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        raise config.error("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
    edge, side = config.integer("image_size", 224), config.integer("patch_size", 16)
    mixer = Attention(
        heads,
        heads,
        hidden // heads,
        None,
        qkv_bias=True,
        out_bias=True,
        mask="full",
        matrices=("q_proj", "k_proj", "v_proj", "out_proj"),
    )
    act = activation(config, default="gelu_pytorch_tanh")
    mlp = Mlp(config.integer("intermediate_size"), True, matrices=("fc1", "fc2"), activation=act)
    norms = Norms("layer_norm1", before_mlp="layer_norm2")
    found = VisionTower(
        hidden,
        (edge // side) ** 2,
        side,
        config.integer("num_channels", 3),
        Norm(config.number("layer_norm_eps", 1e-6), "layer_norm", ("weight", "bias")),
        (Layer(mixer, mlp, norms),) * layers(config),
        "vision_tower.vision_model",
        "multi_modal_projector",
        "gelu",
    )
    config.finish(INERT, NEUTRAL)
    return found
