"""GLM-4 and GLM-4-0414, dense. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import attention, decoder, interleaved, layers, mlp

_MERGED = ("gate_up_proj[0]", "gate_up_proj[1]", "down_proj")
_EPS = 1.5625e-7


def _attention(config: Config) -> Attention:
    """Attention with biases on q, k and v, and rotation of neighboring pairs in half of each head."""
    found = attention(
        config,
        positions_default=131072,
        kv_default=2,
        head_dim_default=128,
        share_default=0.5,
        qkv_bias=config.flag("attention_bias", True),
    )
    return interleaved(found)


@family("GlmForCausalLM", "glm")
def glm(config: Config) -> Decoder:
    """GlmForCausalLM: GLM-4-9B-0605 and similar models."""
    layer = Layer(_attention(config), mlp(config, matrices=_MERGED))
    return decoder(config, "GlmForCausalLM", (layer,) * layers(config), eps_default=_EPS)


@family("Glm4ForCausalLM", "glm4")
def glm4(config: Config) -> Decoder:
    """Glm4ForCausalLM: norms before and after attention and MLP."""
    norms = Norms(after_mixer="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
    layer = Layer(_attention(config), mlp(config, matrices=_MERGED), norms)
    return decoder(config, "Glm4ForCausalLM", (layer,) * layers(config), eps_default=_EPS)
