"""Seed-OSS. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, layers, mlp


@family("SeedOssForCausalLM", "seed_oss")
def seed_oss(config: Config) -> Decoder:
    """SeedOssForCausalLM: Llama with biases on q, k and v."""
    mixer = attention(
        config,
        positions_default=524288,
        kv_default=8,
        head_dim_default=128,
        qkv_bias=config.flag("attention_bias", True),
        out_bias=config.flag("attention_out_bias", False),
    )
    layer = Layer(mixer, mlp(config, bias=config.flag("mlp_bias", False)))
    return decoder(config, "SeedOssForCausalLM", (layer,) * layers(config))
