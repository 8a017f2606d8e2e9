"""Mixtral."""

from __future__ import annotations

from .config import Config
from .decoder import Decoder
from .family import family
from .layers import Layer, Moe
from .llama import attention, check_chosen, decoder, layers

_KV_HEADS = 8


@family("MixtralForCausalLM", "mixtral")
def mixtral(config: Config) -> Decoder:
    """MixtralForCausalLM: experts in every layer, whose two weights a token's add up to one."""
    experts = Moe(
        count=config.assumed("num_local_experts", 8),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        normalize=True,
        module="block_sparse_moe",
        matrices=("w1", "w3", "w2"),
    )
    layer = Layer(attention(config, positions_default=131072, kv_default=_KV_HEADS), check_chosen(config, experts))
    return decoder(config, "MixtralForCausalLM", (layer,) * layers(config), eps_default=1e-5)
