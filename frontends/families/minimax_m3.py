"""MiniMax-M3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import block_attention
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.mlp import Mlp, Moe
from llmir.frontends.layers.parts import attention, decoder, layer_pairs, layers, mlp_kinds

from .minimax_m2 import MODULE, experts

_KINDS = ("dense", "sparse")


@family("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text")
def minimax_m3(config: Config) -> Decoder:
    """MiniMaxM3VLForCausalLM: M2's experts, a shared expert, and blocks of keys that an index selects."""
    config.fixed("another score of the router", scoring_func="sigmoid")
    config.fixed("a choice without correction", use_routing_bias=True)
    config.fixed("another norm of q and k", qk_norm_type="per_head")
    config.fixed("norms that store their weights whole", use_gemma_norm=True)
    config.ignore("hidden_act", "rotary_dim")  # the class reads neither field
    if config.fields.get("use_mtp") or config.fields.get("num_nextn_predict_layers"):
        config.note("the multi-token-prediction layers are ignored")
    config.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "num_nextn_predict_layers")
    clamp = (config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702), 1.0)
    width = config.assumed("shared_intermediate_size", 3072)
    shared = Mlp(width, False, f"{MODULE}.shared_experts", "shared_experts", "shared_", clamp=clamp)
    scale = config.number("routed_scaling_factor", 2.0)
    mlps: dict[str, Mlp | Moe] = {
        "dense": Mlp(config.assumed("dense_intermediate_size", 12288), clamp=clamp),
        "sparse": experts(config, 128, 4, 3072, scale=scale, clamp=clamp, shared=shared),
    }
    frequency = config.integers("moe_layer_freq", (1,) * layers(config))
    routed = mlp_kinds(config, (_KINDS[bool(often)] for often in frequency), *_KINDS)
    heads: dict[str, Any] = {"kv_default": 4, "head_dim_default": 128, "positions_default": 524288}
    mixer = attention(config, **heads, theta_default=5e6, share_default=1.0, qk_norm="head")
    stack = layer_pairs(block_attention(config, mixer), (mlps[kind] for kind in routed))
    norm = Norm(config.number("rms_norm_eps", 1e-6), offset=1.0)
    return decoder(config, "MiniMaxM3VLForCausalLM", stack, norm=norm)
