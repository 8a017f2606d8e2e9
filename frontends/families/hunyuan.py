"""Hunyuan, dense and with experts, and Hy3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention, Rope
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import attention, check_chosen, decoder, has_experts, layers, mlp
from llmir.ir.core.dtype import FP32

from .deepseek import experts


def _mixer(config: Config) -> Attention:
    """Attention with q and k normalized after rotation; `alpha` may scale the base of positions."""
    bias = config.flag("attention_bias", False)
    norms = ("query_layernorm", "key_layernorm")
    how: dict[str, Any] = {"qk_norm": "head", "qk_norms": norms, "norm_turned": True}
    stated = config.nested("rope_parameters") or config.nested("rope_scaling")
    if stated is None or not stated.fields.get("alpha"):
        return attention(config, bias=bias, **how)
    stated.unmodelled("rope_type" if "rope_type" in stated else "type", ("dynamic",), "alpha beside it")
    stated.ignore("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim", "type")
    theta = (stated if "rope_theta" in stated else config).number("rope_theta", 10000.0)
    mixer = attention(config, rope=Rope(theta), bias=bias, **how)
    power = mixer.head_dim / (mixer.head_dim - 2)
    return replace(mixer, rope=Rope(theta * stated.number("alpha") ** power))


@family("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")
def hunyuan_dense(config: Config) -> Decoder:
    """HunYuanDenseV1ForCausalLM."""
    stack = (Layer(_mixer(config), mlp(config)),) * layers(config)
    return decoder(config, "HunYuanDenseV1ForCausalLM", stack, eps_default=1e-5)


def _each(config: Config, key: str, default: int) -> int:
    """A number, which the config may also give as a list with an equal number per layer."""
    if not isinstance(config.fields.get(key), list | tuple):
        return config.assumed(key, default)
    first, *others = config.integers(key) or (0,)
    if {*others} - {first} or not first:
        raise config.error(key, "expected a number above zero, the same in all layers")
    return first


@family("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe")
def hunyuan_moe(config: Config) -> Decoder:
    """HunYuanMoEV1ForCausalLM: routed experts and one shared expert of the same width."""
    width = config.integer("intermediate_size")
    routed = Moe(
        count=_each(config, "num_experts", 1),
        chosen=_each(config, "moe_topk", 1),
        intermediate=width,
        routing=Routing(normalize=True),
        router="gate.wg",
        router_dtype=FP32,
        shared=Mlp(width, module="mlp.shared_mlp", block="shared_experts", prefix="shared_"),
    )
    stack = (Layer(_mixer(config), check_chosen(config, routed)),) * layers(config)
    return decoder(config, "HunYuanMoEV1ForCausalLM", stack, eps_default=1e-5)


@family("HYV3ForCausalLM", "hy_v3")
def hy3(config: Config) -> Decoder:
    """HYV3ForCausalLM: sigmoid routing with a correction, a shared expert, and a dense first layer."""
    config.spelled(n_routed_experts="num_experts", n_shared_experts="num_shared_experts")
    config.ignore("enable_moe_fp32_combine")  # the rounding of two summands
    bias, wide = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    scale = config.number("router_scaling_factor", 2.826)
    routing = Routing("sigmoid", normalize=True, scale=scale, correction="mlp.expert_bias")
    found = experts(config, routing, (192, 8, 1536, 1))
    shared = found.shared and replace(found.shared, module="mlp.shared_mlp", bias=wide)
    routed = replace(found, router="router.gate", shared=shared)
    dense = Mlp(config.assumed("intermediate_size", 13312), bias=wide)
    how: dict[str, Any] = {"kv_default": 8, "head_dim_default": 128, "theta_default": 11158840.0}
    mixer = attention(config, positions_default=131072, bias=bias, qk_norm="head", **how)
    stack = tuple(Layer(mixer, routed if has else dense) for has in has_experts(config, 1))
    return decoder(config, "HYV3ForCausalLM", stack, eps_default=1e-5)
