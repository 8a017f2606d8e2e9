"""Ling and Ring, 1 and 2. The definitions follow the code in the checkpoints, which is never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.mlp import Mlp, Routing
from llmir.frontends.layers.parts import attention, decoder, drafts

from .deepseek import by_groups, experts, stack

_NAMES = CheckpointNames("model.word_embeddings")


def _ling(config: Config, architecture: str, routing: Routing, **how: Any) -> Decoder:
    """Routed and shared experts after some dense layers; q, k and v are one tensor."""
    config.spelled(n_routed_experts="num_experts", n_shared_experts="num_shared_experts")
    for key in ("multi_gate", "norm_head", "norm_softmax", "use_bias", "using_split_qkv_in_self_attention"):
        config.unmodelled(key, (None, False), "other layers than the published ones have")
    config.ignore("embedding_dropout", "output_dropout", "router_dtype")
    routed = experts(config, routing)
    config.unmodelled("moe_shared_expert_intermediate_size", (None, routed.intermediate), "another width")
    to = (*(f"query_key_value[{i}]" for i in range(3)), "dense")
    mixer = attention(config, module="attention", matrices=to, **how)
    stacked = stack(config, mixer, Mlp(config.integer("intermediate_size")), routed, 0)
    return decoder(config, architecture, stacked, names=_NAMES)


@family("BailingMoeForCausalLM", "bailing_moe")
def bailing(config: Config) -> Decoder:
    """Ling-lite and Ling-plus (modeling_bailing_moe.py)."""
    routing = Routing(normalize=config.flag("norm_topk_prob"))
    bias = config.flag("use_qkv_bias", False)
    return _ling(config, "BailingMoeForCausalLM", routing, qkv_bias=bias)


@family("BailingMoeV2ForCausalLM", "bailing_moe_v2")
def bailing_2(config: Config) -> Decoder:
    """Ling 2: DeepSeek V3's routing, normalized q and k, partial rotation (modeling_bailing_moe_v2.py)."""
    drafts(config)
    config.spelled(scoring_func="score_function")
    config.fixed(
        "another Ling 2 than the published ones", moe_router_enable_expert_bias=True, use_rmsnorm=True
    )
    routing = replace(by_groups(config, 1, 1, 1.0), correction="mlp.gate.expert_bias")
    norm = "head" if config.flag("use_qk_norm", True) else ""
    how: dict[str, Any] = {"qk_norm": norm, "qk_norms": ("query_layernorm", "key_layernorm")}
    bias = config.flag("use_qkv_bias", False)
    return _ling(config, "BailingMoeV2ForCausalLM", routing, qkv_bias=bias, share_default=1.0, **how)
