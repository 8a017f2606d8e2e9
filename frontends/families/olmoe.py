"""OLMoE and FlexOlmo. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import POST_NORMS, Layer, Norms
from llmir.frontends.layers.mlp import Moe, Routing
from llmir.frontends.layers.parts import attention, check_chosen, decoder, either_field, layers


def _layer(config: Config, experts: tuple[int, int, int], norms: Norms, **how: Any) -> Layer:
    """Layers with q and k normalized over all heads; `experts` are defaults: count, chosen, width."""
    bias, (count, chosen, width) = config.flag("attention_bias", False), experts
    routed = Moe(
        count=either_field(config, "num_experts", "num_local_experts", count),
        chosen=config.assumed("num_experts_per_tok", chosen),
        intermediate=config.assumed("intermediate_size", width),
        routing=Routing(normalize=config.flag("norm_topk_prob", False)),
    )
    mixer = attention(config, positions_default=4096, bias=bias, qk_norm="whole", **how)
    return Layer(mixer, check_chosen(config, routed), norms)


@family("OlmoeForCausalLM", "olmoe")
def olmoe(config: Config) -> Decoder:
    """OlmoeForCausalLM."""
    config.unmodelled("clip_qkv", (None,), "clipped q, k and v")
    layer = _layer(config, (64, 8, 2048), Norms())
    return decoder(config, "OlmoeForCausalLM", (layer,) * layers(config), eps_default=1e-5)


@family("FlexOlmoForCausalLM", "flex_olmo")
def flex_olmo(config: Config) -> Decoder:
    """FlexOlmoForCausalLM: OLMo 2 with experts instead of MLPs."""
    layer = _layer(config, (7, 5, 11008), POST_NORMS, theta_default=5e5)
    return decoder(config, "FlexOlmoForCausalLM", (layer,) * layers(config))
