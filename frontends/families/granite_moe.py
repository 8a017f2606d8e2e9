"""Granite 3 with experts. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mlps import Moe, Routing
from ..parts import attention, check_chosen, decoder, layers


@family("GraniteMoeForCausalLM", "granitemoe")
def granite_moe(config: Config) -> Decoder:
    """GraniteMoeForCausalLM: embeddings, scores, residuals and logits are scaled; experts are stacked."""
    bias = config.flag("attention_bias", False)
    experts = stacked(config, config.assumed("num_local_experts", 8))
    scale = config.number("attention_multiplier", 1.0)
    mixer = attention(config, qkv_bias=bias, out_bias=bias, scale=scale)
    layer = Layer(mixer, check_chosen(config, experts), residual=config.number("residual_multiplier", 1.0))
    return decoder(
        config,
        "GraniteMoeForCausalLM",
        (layer,) * layers(config),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )


def stacked(config: Config, count: int) -> Moe:
    """Granite's experts, whose weights add up to one."""
    return Moe(
        count=count,
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        routing=Routing(normalize=True),
        module="block_sparse_moe",
        router="router.layer",
        matrices=("input_linear.weight[0]", "input_linear.weight[1]", "output_linear.weight"),
    )
