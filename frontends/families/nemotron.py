"""Nemotron-3 and 4, Minitron. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import activation, attention, decoder, layers, mlp


@family("NemotronForCausalLM", "nemotron")
def nemotron(config: Config) -> Decoder:
    """NemotronForCausalLM: norm weights stored minus 1, squared ReLU, and half-rotated heads."""
    bias = config.flag("attention_bias", False)
    mixer = attention(config, positions_default=4096, share_default=0.5, bias=bias)
    act, wide = activation(config, default="relu2"), config.flag("mlp_bias", False)
    layer = Layer(mixer, mlp(config, bias=wide, matrices=("up_proj", "down_proj"), activation=act))
    norm = Norm(config.number("norm_eps", 1e-5), "layer_norm", ("weight", "bias"), offset=1.0)
    return decoder(config, "NemotronForCausalLM", (layer,) * layers(config), norm=norm)
