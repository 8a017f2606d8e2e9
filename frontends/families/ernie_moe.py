"""ERNIE 4.5 with experts. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import attention, check_chosen, decoder, either_field, interleaved, layers
from llmir.ir.core.dtype import FP32

_CORRECTION = "mlp.moe_statics.e_score_correction_bias"
_MIXER = {"positions_default": 131072, "kv_default": 4, "theta_default": 5e5}


@family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe")
def ernie_moe(config: Config) -> Decoder:
    """Ernie4_5_MoeForCausalLM: softmax routing with a learned bias, and experts in a range of layers."""
    config.ignore("moe_norm_min")  # lower bound of the sum of routing weights
    bias, width = config.flag("use_bias", False), config.assumed("moe_intermediate_size", 1536)
    shared = width * config.integer("moe_num_shared_experts", 2, minimum=0)
    experts = Moe(
        count=either_field(config, "moe_num_experts", "num_experts", 64),
        chosen=either_field(config, "moe_k", "num_experts_per_tok", 6),
        intermediate=width,
        routing=Routing(normalize=True, correction=_CORRECTION, learned=True),
        router_dtype=FP32,
        shared=Mlp(shared, bias, "mlp.shared_experts", "shared_experts", "shared_") if shared else None,
    )
    dense, sparse = Mlp(config.integer("intermediate_size"), bias=bias), check_chosen(config, experts)
    how: dict[str, Any] = {**_MIXER, "bias": bias}
    mixer = interleaved(attention(config, **how))
    stack = tuple(Layer(mixer, sparse if routed else dense) for routed in _routed(config))
    ends: dict[str, Any] = {"eps_default": 1e-5, "tied_default": True, "head_bias": bias}
    return decoder(config, "Ernie4_5_MoeForCausalLM", stack, **ends)


def _routed(config: Config) -> list[bool]:
    """Whether each layer has experts: every n-th layer in a range of layers; −1 means the last layer."""
    count, step = layers(config), config.integer("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1, minimum=0)
    last = config.integer("moe_layer_end_index", -1, minimum=-1)
    end = count if last == -1 else last + 1
    return [first <= i < end and (i + 1) % step == 0 for i in range(count)]
