"""Qwen2 and Qwen2.5, Qwen3, and Qwen3 MoE. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from .blocks import Decoder, Experts
from .config import Config
from .family import family
from .llama import decoder, layers

_POSITIONS = 32768


def _full_attention(config: Config) -> None:
    config.unmodelled("use_sliding_window", (False,), "sliding-window attention")
    config.ignore("sliding_window")  # acts only with use_sliding_window or layer_types, which are looked at


@family("Qwen2ForCausalLM", "qwen2")
def qwen2(config: Config) -> Decoder:
    """Qwen2ForCausalLM: biases on q, k and v only."""
    _full_attention(config)
    return decoder(config, "Qwen2ForCausalLM", positions_default=_POSITIONS, kv_default=32, qkv_bias=True)


@family("Qwen3ForCausalLM", "qwen3")
def qwen3(config: Config) -> Decoder:
    """Qwen3ForCausalLM: RMSNorm on q and k, heads of 128 unless said otherwise."""
    _full_attention(config)
    bias = config.flag("attention_bias", False)
    return decoder(
        config,
        "Qwen3ForCausalLM",
        positions_default=_POSITIONS,
        kv_default=32,
        head_dim_default=128,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )


@family("Qwen3MoeForCausalLM", "qwen3_moe")
def qwen3_moe(config: Config) -> Decoder:
    """Qwen3MoeForCausalLM: experts in every `decoder_sparse_step`-th layer, but `mlp_only_layers`."""
    _full_attention(config)
    bias = config.flag("attention_bias", False)
    spellings = ("num_experts", "num_local_experts")  # the second is what transformers 5 writes
    experts = Experts(
        count=config.assumed(next((key for key in spellings if key in config), spellings[0]), 128),
        chosen=config.assumed("num_experts_per_tok", 8),
        intermediate=config.assumed("moe_intermediate_size", 768),
        normalize=config.flag("norm_topk_prob", False),
    )
    if experts.chosen > experts.count:
        fact = f"{experts.chosen} is more than the {experts.count} experts"
        raise config.error("num_experts_per_tok", fact)
    step, dense = config.integer("decoder_sparse_step", 1), frozenset(config.integers("mlp_only_layers"))
    moe = tuple(i not in dense and (i + 1) % step == 0 for i in range(layers(config)))
    return decoder(
        config,
        "Qwen3MoeForCausalLM",
        positions_default=_POSITIONS,
        kv_default=4,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        experts=experts if any(moe) else None,
        moe=moe,
    )
