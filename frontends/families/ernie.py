"""Ernie 4.5, dense. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, interleaved, layers, mlp


@family("Ernie4_5ForCausalLM", "ernie4_5")
def ernie4_5(config: Config) -> Decoder:
    """Ernie4_5ForCausalLM: one field for all biases, and rotation of neighboring pairs."""
    bias = config.flag("use_bias", False)
    mixer = attention(
        config,
        positions_default=131072,
        kv_default=2,
        head_dim_default=128,
        theta_default=500000.0,
        bias=bias,
    )
    layer = Layer(interleaved(mixer), mlp(config, bias=bias))
    stack = (layer,) * layers(config)
    return decoder(config, "Ernie4_5ForCausalLM", stack, eps_default=1e-5, tied_default=True)
