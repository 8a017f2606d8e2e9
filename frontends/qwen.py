"""Qwen2 and Qwen2.5, Qwen3, and Qwen3 MoE. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from .blocks import Decoder, Experts
from .config import Config
from .llama import decoder

_WINDOW = "sliding-window attention"


def qwen2(config: Config) -> Decoder:
    """Qwen2ForCausalLM: biases on q, k and v only."""
    config.unmodelled("use_sliding_window", (False,), _WINDOW)
    return decoder(config, "Qwen2ForCausalLM", kv_default=32, qkv_bias=True)


def qwen3(config: Config) -> Decoder:
    """Qwen3ForCausalLM: RMSNorm on q and k, heads of 128 unless said otherwise."""
    config.unmodelled("use_sliding_window", (False,), _WINDOW)
    bias = config.flag("attention_bias", False)
    return decoder(
        config,
        "Qwen3ForCausalLM",
        kv_default=32,
        head_dim_default=128,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )


def qwen3_moe(config: Config) -> Decoder:
    """Qwen3MoeForCausalLM: experts in every `decoder_sparse_step`-th layer, but `mlp_only_layers`."""
    config.unmodelled("use_sliding_window", (False,), _WINDOW)
    bias = config.flag("attention_bias", False)
    experts = Experts(
        # transformers 5 writes the second spelling
        count=config.integer("num_experts" if "num_experts" in config else "num_local_experts", 128),
        chosen=config.integer("num_experts_per_tok", 8),
        intermediate=config.integer("moe_intermediate_size", 768),
        normalize=config.flag("norm_topk_prob", False),
    )
    if experts.chosen > experts.count:
        fact = f"{experts.chosen} is more than the {experts.count} experts"
        raise config.error("num_experts_per_tok", fact)
    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers", ())
    layers = config.integer("num_hidden_layers")
    moe = tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    return decoder(
        config,
        "Qwen3MoeForCausalLM",
        kv_default=4,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        experts=experts if any(moe) else None,
        moe=moe,
    )
