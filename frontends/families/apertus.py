"""Apertus of EPFL and ETH Zürich. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Rope
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import attention, decoder, layers, mlp

_ROPE = Rope(12e6, "llama3", (8.0, 1.0, 4.0, 8192.0))  # for a config without this field


@family("ApertusForCausalLM", "apertus")
def apertus(config: Config) -> Decoder:
    """ApertusForCausalLM: normalized q and k, and an MLP without a gate with the activation xIELU."""
    config.unmodelled("hidden_act", ("xielu",), "another activation")
    config.unmodelled("qk_norm", (None, True), "q and k that are not normalized")
    config.unmodelled("post_norm", (None, False), "norms behind sublayers")
    bias = config.flag("attention_bias", False)
    mixer = attention(config, positions_default=65536, theta_default=12e6, bias=bias, qk_norm="head")
    if not any(config.fields.get(key) for key in ("rope_parameters", "rope_scaling")):
        mixer = replace(mixer, rope=_ROPE)
    feed = mlp(
        config,
        matrices=("up_proj", "down_proj"),
        activation="xielu",
        learned=("act_fn.alpha_p", "act_fn.alpha_n"),
    )
    layer = Layer(mixer, feed, Norms("attention_layernorm", before_mlp="feedforward_layernorm"))
    return decoder(config, "ApertusForCausalLM", (layer,) * layers(config), eps_default=1e-5)
