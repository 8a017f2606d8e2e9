"""What configs say of a SigLIP tower. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.fields import INERT, NEUTRAL
from llmir.frontends.config.reader import Config

from .attention import Attention
from .blocks import Norm
from .layer import Layer, Norms
from .mlp import Mlp
from .parts import activation, layers
from .vision import Tower


def siglip(config: Config) -> Tower:
    """SiglipVisionModel without its head, whose projector is to be said yet."""
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
    found = Tower(
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
