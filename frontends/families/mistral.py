"""Mistral, with a window or without, and Mixtral. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mlps import Moe, Routing, apart
from ..parts import attention, check_chosen, decoder, layers, mlp, window

_POSITIONS, _KV_HEADS = 131072, 8


@family("MistralForCausalLM", "mistral")
def mistral(config: Config) -> Decoder:
    """MistralForCausalLM: a window of 4096 in all layers, unless `sliding_window` says otherwise."""
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS}
    layer = Layer(attention(config, mask=window(config, 4096), **how), mlp(config))
    return decoder(config, "MistralForCausalLM", (layer,) * layers(config))


@family("MixtralForCausalLM", "mixtral")
def mixtral(config: Config) -> Decoder:
    """MixtralForCausalLM: experts in every layer; the weights of those that a token takes add up to one."""
    experts = Moe(
        count=config.assumed("num_local_experts", 8),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        routing=Routing(normalize=True),
        module="block_sparse_moe",
        matrices=apart("w1", "w3", "w2"),
    )
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS, "theta_default": 1e6}
    layer = Layer(attention(config, mask=window(config, None), **how), check_chosen(config, experts))
    return decoder(config, "MixtralForCausalLM", (layer,) * layers(config), eps_default=1e-5)
