"""Arcee: AFM. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import activation, attention, decoder, layers, mlp


@family("ArceeForCausalLM", "arcee")
def arcee(config: Config) -> Decoder:
    """ArceeForCausalLM: Llama with an MLP without a gate, and with squared ReLU."""
    bias = config.flag("attention_bias", False)
    feed = mlp(
        config,
        bias=config.flag("mlp_bias", False),
        matrices=("up_proj", "down_proj"),
        activation=activation(config, default="relu2"),
    )
    layer = Layer(attention(config, positions_default=4096, bias=bias), feed)
    return decoder(config, "ArceeForCausalLM", (layer,) * layers(config), eps_default=1e-5)
