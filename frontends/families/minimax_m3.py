"""MiniMax-M3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..mixers import BlockIndex
from ..mlps import Mlp, Moe, Routing, apart
from ..parts import attention, check_chosen, decoder, either, kinds, layers

_MODULE = "block_sparse_moe"
_SPARSE = "minimax_m3_sparse"
# In the object `sparse_attention_config`, or beside it.
_INDEX = {
    "index_n_heads": ("sparse_num_index_heads", 4),
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}


@family("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text")
def minimax_m3(config: Config) -> Decoder:
    """MiniMaxM3VLForCausalLM: M2's experts and a shared one, keys by blocks that an index chooses."""
    config.unmodelled("scoring_func", (None, "sigmoid"), "another score of the router")
    config.unmodelled("use_routing_bias", (None, True), "a choice without correction")
    config.unmodelled("qk_norm_type", (None, "per_head"), "another norm of q and k")
    config.unmodelled("use_gemma_norm", (None, True), "norms that store their weights whole")
    config.ignore("hidden_act", "rotary_dim")  # the class reads neither
    if config.fields.get("use_mtp") or config.fields.get("num_nextn_predict_layers"):
        config.note("the layers that predict further tokens are left out")
    config.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "num_nextn_predict_layers")
    clamp = (config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702), 1.0)
    width = config.assumed("shared_intermediate_size", 3072)
    dense = Mlp(config.assumed("dense_intermediate_size", 12288), clamp=clamp)
    routing = Routing("sigmoid", normalize=True, correction=f"{_MODULE}.e_score_correction_bias")
    sparse = Moe(
        count=either(config, "num_local_experts", "num_experts", 128),
        chosen=config.assumed("num_experts_per_tok", 4),
        intermediate=config.assumed("intermediate_size", 3072),
        routing=replace(routing, scale=config.number("routed_scaling_factor", 2.0)),
        module=_MODULE,
        matrices=apart("w1", "w3", "w2"),
        clamp=clamp,
        shared=Mlp(width, False, f"{_MODULE}.shared_experts", "shared_experts", "shared_", clamp=clamp),
    )
    mlps: dict[str, Mlp | Moe] = {"dense": dense, "sparse": check_chosen(config, sparse)}
    count = layers(config)
    frequency = config.integers("moe_layer_freq", (1,) * count)
    routed = config.texts("mlp_layer_types") or [("dense", "sparse")[bool(n)] for n in frequency]
    if len(routed) != count or not {*routed} <= mlps.keys():
        raise config.error("mlp_layer_types", f"expected dense or sparse for each of {count} layers")
    heads: dict[str, Any] = {"kv_default": 4, "head_dim_default": 128, "positions_default": 524288}
    mixer = attention(config, **heads, theta_default=5e6, share_default=1.0, qk_norm="head")
    stated = config.nested("sparse_attention_config")
    places = stated.integers("sparse_attention_freq", (0,) * count) if stated else (0,) * count
    default = [_SPARSE if place else "full_attention" for place in places]
    seen = kinds(config, default, "full_attention", _SPARSE)
    mixers = {"full_attention": mixer, _SPARSE: replace(mixer, blocks=_index(config, stated, mixer.kv_heads))}
    stack = tuple(Layer(mixers[kind], mlps[mlp]) for kind, mlp in zip(seen, routed, strict=True))
    norm = Norm(config.number("rms_norm_eps", 1e-6), offset=1.0)
    return decoder(config, "MiniMaxM3VLForCausalLM", stack, norm=norm)


def _index(config: Config, stated: Config | None, kv_heads: int) -> BlockIndex:
    """What chooses blocks; an error for other heads than those of keys."""
    heads, size, length, top_k, local = (
        stated.integer(old, beside) if stated else beside
        for beside, old in ((config.integer(key, default), old) for key, (old, default) in _INDEX.items())
    )
    if heads != kv_heads:
        raise config.error(
            "index_n_heads", f"{heads} heads for {kv_heads} key/value heads, which need one each"
        )
    if local > top_k:
        raise config.error(
            "index_local_blocks", f"{local} is more than the {top_k} blocks of index_topk_blocks"
        )
    if stated:
        stated.ignore("use_sparse_attention", "sparse_init_block", "sparse_score_type")
    return BlockIndex(size, length, top_k, local)
