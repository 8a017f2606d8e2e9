"""Phi-3.5-MoE. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Rope
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Routing, expert_tensor_names
from llmir.frontends.layers.parts import attention, decoder, heads, layers, moe, window
from llmir.frontends.layers.rope import rope

_POSITIONS, _THETA = 131072, 1e6


@family("PhimoeForCausalLM", "phimoe")
@family("PhiMoEForCausalLM", "phimoe")
def phi_moe(config: Config) -> Decoder:
    """PhimoeForCausalLM: LayerNorm, biases in attention, and two experts chosen by SparseMixer."""
    config.unmodelled("num_experts_per_tok", (2,), "another number of experts than SparseMixer's")
    config.ignore("input_jitter_noise")  # has an effect in training only
    routing = Routing(jitter=config.number("router_jitter_noise", 0.01))
    how: dict[str, Any] = {"module": "block_sparse_moe", "matrices": expert_tensor_names("w1", "w3", "w2")}
    experts = moe(config, 16, 2, config.integer("intermediate_size"), routing=routing, **how)
    bias, mask = config.flag("attention_bias", False), window(config, None)
    mixer = attention(config, kv_default=8, bias=bias, mask=mask, rope=_rope(config))
    norm = Norm(config.number("rms_norm_eps", 1e-5), "layer_norm", ("weight", "bias"))
    stack = (Layer(mixer, experts),) * layers(config)
    head = config.flag("lm_head_bias", False)
    return decoder(config, "PhimoeForCausalLM", stack, norm=norm, head_bias=head)


def _rope(config: Config) -> Rope:
    """LongRoPE; the config gives the amplitudes, which must be equal for short and long contexts."""
    *_, size = heads(config, 8, None)
    stated = config.nested("rope_scaling") or config.nested("rope_parameters")
    if stated is None or "short_mscale" not in stated:
        return rope(config, size, _POSITIONS, _THETA)
    scale = stated.number("short_mscale")
    stated.unmodelled("long_mscale", (scale,), "another amplitude beyond the trained length")
    stated.ignore(*stated.fields)
    fields = {k: v for k, v in stated.fields.items() if not k.endswith("mscale")}
    inner = Config({**fields, "attention_factor": scale}, name=config.name)
    return rope(config, size, _POSITIONS, _THETA, inner=inner)
