"""Jais 2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import activation, attention, decoder, layers, mlp


@family("Jais2ForCausalLM", "jais2")
def jais2(config: Config) -> Decoder:
    """Jais2ForCausalLM: LayerNorm, biases everywhere, an MLP without a gate."""
    bias = config.flag("attention_bias", True)
    mixer = attention(config, positions_default=8192, bias=bias)
    own = mlp(
        config,
        bias=config.flag("mlp_bias", True),
        matrices=("up_proj", "down_proj"),
        activation=activation(config, default="relu2"),
    )
    norm = Norm(config.number("layer_norm_eps", 1e-5), "layer_norm", ("weight", "bias"))
    return decoder(config, "Jais2ForCausalLM", (Layer(mixer, own),) * layers(config), norm=norm)
