"""Mistral, Ministral 3, Mistral 4, Mixtral. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Temper
from llmir.frontends.layers.attention_config import latent
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Routing, expert_tensor_names
from llmir.frontends.layers.parts import attention, decoder, layers, mlp, moe, sliding_layers, window

from .deepseek import experts, stack

_POSITIONS, _KV_HEADS = 131072, 8


@family("MistralForCausalLM", "mistral")
@family("GritLM", "mistral")
def mistral(config: Config) -> Decoder:
    """MistralForCausalLM: a window of 4096 in all layers, unless `sliding_window` differs."""
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS}
    layer = Layer(attention(config, mask=window(config, 4096), **how), mlp(config))
    return decoder(config, "MistralForCausalLM", (layer,) * layers(config))


@family("MinistralForCausalLM", "ministral")
def ministral(config: Config) -> Decoder:
    """MinistralForCausalLM: windows by `layer_types`, by default in all layers."""
    full = attention(config, positions_default=_POSITIONS, kv_default=_KV_HEADS)
    sliding = replace(full, mask=window(config, 4096))
    feed, own = mlp(config), sliding_layers(config, lambda layer: sliding.mask != full.mask)
    kinds = Layer(full, feed), Layer(sliding, feed)
    stack = tuple(kinds[slide] for slide in own)
    return decoder(config, "MinistralForCausalLM", stack)


_YARN = {  # for a config without this field
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


def _temper(config: Config, **stretch: float) -> Temper:
    """The scaling of queries at late positions; `stretch` is the class's default scaling of positions."""
    config.absent("rope_parameters", "rope_scaling")
    if "rope_scaling" not in config:
        config.fill(rope_parameters={**_YARN, **stretch})
    stated = config.nested("rope_parameters") or config.nested("rope_scaling")
    assert stated
    stated.ignore("max_position_embeddings")
    return Temper(stated.number("llama_4_scaling_beta"), stated.number("original_max_position_embeddings"))


@family("Ministral3ForCausalLM", "ministral3")
def ministral3(config: Config) -> Decoder:
    """Ministral3ForCausalLM: positions scaled by YaRN; the queries of late tokens are scaled up."""
    temper = _temper(config)
    how: dict[str, Any] = {"positions_default": 262144, "kv_default": _KV_HEADS, "head_dim_default": 128}
    layer = Layer(attention(config, mask=window(config, None), temper=temper, **how), mlp(config))
    return decoder(config, "Ministral3ForCausalLM", (layer,) * layers(config), eps_default=1e-5)


@family("Mistral4ForCausalLM", "mistral4")
def mistral4(config: Config) -> Decoder:
    """Mistral4ForCausalLM: DeepSeek's latent attention with scaled late queries, and softmax routing."""
    temper = _temper(config, rope_theta=1e4, factor=128.0, original_max_position_embeddings=8192)
    how: dict[str, Any] = {"positions_default": 1048576, "interleaved": config.flag("rope_interleave", True)}
    mixer = replace(latent(config, (1024, 256, 64, 64, 128), whole=True, **how), temper=temper)
    routing = Routing(
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=config.integer("n_group", 1),
        kept=config.integer("topk_group", 1),
        best=2,
    )
    dense = Mlp(config.assumed("intermediate_size", 12288))
    sparse = experts(config, routing, (128, 4, 2048, 1))
    return decoder(config, "Mistral4ForCausalLM", stack(config, mixer, dense, sparse, 0))


@family("MixtralForCausalLM", "mixtral")
def mixtral(config: Config) -> Decoder:
    """MixtralForCausalLM: experts in every layer; the routing weights of a token add up to 1."""
    named: dict[str, Any] = {"module": "block_sparse_moe", "matrices": expert_tensor_names("w1", "w3", "w2")}
    experts = moe(config, 8, 2, config.integer("intermediate_size"), **named)
    how: dict[str, Any] = {"positions_default": _POSITIONS, "kv_default": _KV_HEADS, "theta_default": 1e6}
    layer = Layer(attention(config, mask=window(config, None), **how), experts)
    return decoder(config, "MixtralForCausalLM", (layer,) * layers(config), eps_default=1e-5)
