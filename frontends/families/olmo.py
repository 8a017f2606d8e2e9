"""OLMo 1. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..parts import attention, decoder, layers, mlp


@family("OlmoForCausalLM", "olmo")
def olmo(config: Config) -> Decoder:
    """OlmoForCausalLM: norms that learn nothing, and q, k and v that may be clipped."""
    bias, clip = config.flag("attention_bias", False), config.optional_number("clip_qkv") or 0.0
    layer = Layer(attention(config, qkv_bias=bias, out_bias=bias, clip=clip), mlp(config))
    norm = Norm(1e-5, "layer_norm", ())
    return decoder(config, "OlmoForCausalLM", (layer,) * layers(config), norm=norm)
