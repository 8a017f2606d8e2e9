"""Helium. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, interleaved, layers, mlp


@family("HeliumForCausalLM", "helium")
def helium(config: Config) -> Decoder:
    """HeliumForCausalLM: Llama with rotary positions on pairs of neighbors."""
    mixer = attention(
        config,
        positions_default=4096,
        kv_default=20,
        head_dim_default=128,
        theta_default=1e5,
        qkv_bias=config.flag("attention_bias", False),
    )
    if mixer.heads * mixer.head_dim != config.integer("hidden_size"):
        fact = f"{mixer.heads} heads of {mixer.head_dim} are not the hidden size"
        raise config.error("head_dim", fact)
    layer = Layer(interleaved(mixer), mlp(config, bias=config.flag("mlp_bias", False)))
    return decoder(config, "HeliumForCausalLM", (layer,) * layers(config), eps_default=1e-8)
