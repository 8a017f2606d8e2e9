"""Code World Model. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Rope
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, mlp, sliding_layers, window

_ROPE = Rope(1e6, "llama3", (16.0, 1.0, 4.0, 8192.0))  # for a config without this field


@family("CwmForCausalLM", "cwm")
def cwm(config: Config) -> Decoder:
    """CwmForCausalLM: Llama with a window in all layers except every fourth, starting with the first."""
    full = attention(config, positions_default=131072, head_dim_default=128, theta_default=1e6)
    if not any(config.fields.get(key) for key in ("rope_parameters", "rope_scaling")):
        full = replace(full, rope=_ROPE)
    sliding = replace(full, mask=window(config, 8192))
    own = mlp(config, bias=config.flag("mlp_bias", False))
    stack = tuple(
        Layer(sliding if s else full, own) for s in sliding_layers(config, lambda layer: layer % 4 > 0)
    )
    return decoder(config, "CwmForCausalLM", stack, eps_default=1e-5)
