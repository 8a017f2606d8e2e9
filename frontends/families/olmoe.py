"""OLMoE. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mlps import Moe, Routing
from ..parts import attention, check_chosen, decoder, either, layers


@family("OlmoeForCausalLM", "olmoe")
def olmoe(config: Config) -> Decoder:
    """OlmoeForCausalLM: q and k are normalized over all heads together."""
    config.unmodelled("clip_qkv", (None,), "clipped q, k and v")
    bias = config.flag("attention_bias", False)
    experts = Moe(
        count=either(config, "num_experts", "num_local_experts", 64),
        chosen=config.assumed("num_experts_per_tok", 8),
        intermediate=config.assumed("intermediate_size", 2048),
        routing=Routing(normalize=config.flag("norm_topk_prob", False)),
    )
    mixer = attention(config, positions_default=4096, qkv_bias=bias, out_bias=bias, qk_norm="whole")
    layer = Layer(mixer, check_chosen(config, experts))
    return decoder(config, "OlmoeForCausalLM", (layer,) * layers(config), eps_default=1e-5)
