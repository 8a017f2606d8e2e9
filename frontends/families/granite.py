"""Granite 3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..parts import attention, decoder, layers, mlp


@family("GraniteForCausalLM", "granite")
def granite(config: Config) -> Decoder:
    """GraniteForCausalLM: llama whose embeddings, scores, residuals and logits are scaled."""
    bias = config.flag("attention_bias", False)
    scale = config.number("attention_multiplier", 1.0)
    mixer = attention(config, qkv_bias=bias, out_bias=bias, scale=scale)
    feed = mlp(config, bias=config.flag("mlp_bias", False))
    layer = Layer(mixer, feed, residual=config.number("residual_multiplier", 1.0))
    return decoder(
        config,
        "GraniteForCausalLM",
        (layer,) * layers(config),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )
