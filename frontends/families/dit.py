"""DiT, as the transformer class of diffusers. Defaults for absent fields are diffusers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.diffusion import Diffusion
from llmir.frontends.layers.mlp import Mlp
from llmir.ir.core.dtype import dtype


@family("DiTTransformer2DModel", "dit")
def dit(config: Config) -> Diffusion:
    """DiTTransformer2DModel: one step of DiT for one image size."""
    config.unmodelled("norm_type", ("ada_norm_zero",), "another norm than adaLN-zero")
    config.unmodelled("norm_elementwise_affine", (False,), "norms with weights of their own")
    config.unmodelled("activation_fn", ("gelu-approximate",), "another activation")
    config.ignore("dropout", "norm_num_groups", "upcast_attention")  # for training, unused, a dtype
    heads, size = config.integer("num_attention_heads", 16), config.integer("attention_head_dim", 72)
    side, edge, channels = (
        config.integer(key, usual)
        for key, usual in (("patch_size", 2), ("sample_size", 32), ("in_channels", 4))
    )
    if edge % side:
        raise config.error("patch_size", f"{side} does not divide sample_size {edge}")
    hidden, bias = heads * size, config.flag("attention_bias", True)
    to = ("to_q", "to_k", "to_v", "to_out.0")
    of: dict[str, Any] = {"mask": "full", "module": "attn1", "matrices": to, "qkv_bias": bias}
    return Diffusion(
        config.name,
        "DiTTransformer2DModel",
        dtype(config.dtype()),
        hidden,
        layers=config.integer("num_layers", 28, maximum=10_000),
        patches=(edge // side) ** 2,
        side=side,
        channels=(channels, config.optional_integer("out_channels") or channels),
        labels=config.integer("num_embeds_ada_norm", 1000) + 1,  # one additional label means no label
        mixer=Attention(heads, heads, size, None, out_bias=True, **of),
        mlp=Mlp(4 * hidden, True, "ff.net", matrices=("0.proj", "2"), activation="gelu_tanh"),
        eps=config.number("norm_eps", 1e-5),
    )
