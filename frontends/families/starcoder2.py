"""StarCoder2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import activation, attention, decoder, layer_norm, layers, mlp, window


@family("Starcoder2ForCausalLM", "starcoder2")
def starcoder2(config: Config) -> Decoder:
    """Starcoder2ForCausalLM: LayerNorm, biases, windows, and an MLP without a gate."""
    config.unmodelled("mlp_type", ("default",), "a gated MLP")
    config.unmodelled("norm_type", ("layer_norm",), "another norm")
    bias, seen = config.flag("use_bias", True), window(config, None)
    mixer = attention(config, positions_default=4096, kv_default=2, mask=seen, bias=bias)
    act = activation(config, default="gelu_pytorch_tanh")
    layer = Layer(mixer, mlp(config, bias=bias, matrices=("c_fc", "c_proj"), activation=act))
    stack, norm = (layer,) * layers(config), layer_norm(config, "norm_epsilon")
    return decoder(config, "Starcoder2ForCausalLM", stack, norm=norm, tied_default=True)
