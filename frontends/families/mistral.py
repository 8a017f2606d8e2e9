"""Mistral, Ministral 3, Mixtral. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mixers import Temper
from ..mlps import apart
from ..parts import attention, decoder, layers, mlp, moe, slides, window

_POSITIONS, _KV_HEADS = 131072, 8


@family("MistralForCausalLM", "mistral")
@family("GritLM", "mistral")
def mistral(config: Config) -> Decoder:
    """MistralForCausalLM: a window of 4096 in all layers, unless `sliding_window` says otherwise."""
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS}
    layer = Layer(attention(config, mask=window(config, 4096), **how), mlp(config))
    return decoder(config, "MistralForCausalLM", (layer,) * layers(config))


@family("MinistralForCausalLM", "ministral")
def ministral(config: Config) -> Decoder:
    """MinistralForCausalLM: windows where `layer_types` says so, by default in all layers."""
    full = attention(config, positions_default=_POSITIONS, kv_default=_KV_HEADS)
    sliding = replace(full, mask=window(config, 4096))
    feed, own = mlp(config), slides(config, lambda layer: sliding.mask != full.mask)
    kinds = Layer(full, feed), Layer(sliding, feed)
    stack = tuple(kinds[slide] for slide in own)
    return decoder(config, "MinistralForCausalLM", stack)


_YARN = {  # of a config that says nothing
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


@family("Ministral3ForCausalLM", "ministral3")
def ministral3(config: Config) -> Decoder:
    """Ministral3ForCausalLM: positions stretched by yarn, and late queries sharper."""
    if "rope_scaling" not in config:
        config.fill(rope_parameters=_YARN)
    temper = None
    if stated := config.nested("rope_parameters") or config.nested("rope_scaling"):
        stated.ignore("max_position_embeddings")
        temper = Temper(
            stated.number("llama_4_scaling_beta"), stated.number("original_max_position_embeddings")
        )
    how: dict[str, Any] = {"positions_default": 262144, "kv_default": _KV_HEADS, "head_dim_default": 128}
    layer = Layer(attention(config, mask=window(config, None), temper=temper, **how), mlp(config))
    return decoder(config, "Ministral3ForCausalLM", (layer,) * layers(config), eps_default=1e-5)


@family("MixtralForCausalLM", "mixtral")
def mixtral(config: Config) -> Decoder:
    """MixtralForCausalLM: experts in every layer; the weights of those that a token takes add up to one."""
    named: dict[str, Any] = {"module": "block_sparse_moe", "matrices": apart("w1", "w3", "w2")}
    experts = moe(config, 8, 2, config.integer("intermediate_size"), **named)
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS, "theta_default": 1e6}
    layer = Layer(attention(config, mask=window(config, None), **how), experts)
    return decoder(config, "MixtralForCausalLM", (layer,) * layers(config), eps_default=1e-5)
