"""BitNet b1.58 of Microsoft. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import activation, attention, decoder, layers, mlp


@family("BitNetForCausalLM", "bitnet")
def bitnet(config: Config) -> Decoder:
    """BitNetForCausalLM: Llama with norms before the output projection and before the down projection."""
    mixer = attention(
        config,
        kv_default=5,
        theta_default=500000.0,
        bias=config.flag("attention_bias", False),
        out_norm="attn_sub_norm",
    )
    if mixer.heads * mixer.head_dim != config.integer("hidden_size"):  # the norm is over the hidden size
        fact = f"{mixer.heads} heads of {mixer.head_dim} are not the hidden size"
        raise config.error("head_dim", fact)
    feed = mlp(config, activation=activation(config, default="relu2"), norm="ffn_sub_norm")
    return decoder(config, "BitNetForCausalLM", (Layer(mixer, feed),) * layers(config), eps_default=1e-5)
