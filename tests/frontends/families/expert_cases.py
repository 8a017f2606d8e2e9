"""Tiny models with experts, of those that transformers was asked for."""

from __future__ import annotations

from typing import Any

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 13,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
}

_OLMOE = {
    **SIZES,
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "num_key_value_heads": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}

_FLEX_OLMO = {
    **_OLMOE,
    "architectures": ["FlexOlmoForCausalLM"],
    "model_type": "flex_olmo",
    "pad_token_id": 0,
}
_MINIMAX_M2 = {
    **SIZES,
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "head_dim": 8,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}

_ERNIE_MOE = {
    **SIZES,
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "moe_num_experts": 5,
    "moe_k": 2,
    "moe_intermediate_size": 12,
    "tie_word_embeddings": False,
}

_GRANITE_MOE = {
    **SIZES,
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}
_GRANITE_SHARED = {
    **_GRANITE_MOE,
    "architectures": ["GraniteMoeSharedForCausalLM"],
    "model_type": "granitemoeshared",
    "shared_intermediate_size": 10,
}

_GPT_OSS = {
    **SIZES,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 8,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 3,
}

_GLM_MOE = {
    **SIZES,
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "n_group": 4,
    "topk_group": 2,
    "partial_rotary_factor": 0.5,
}
_LLAMA_4 = {
    **SIZES,
    "architectures": ["Llama4ForCausalLM"],
    "model_type": "llama4_text",
    "head_dim": 8,
    "num_hidden_layers": 4,
    "intermediate_size_mlp": 18,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "no_rope_layer_interval": 2,
    "attention_chunk_size": 3,
    "pad_token_id": 0,
}
_PHI_MOE = {
    **SIZES,
    "architectures": ["PhimoeForCausalLM"],
    "model_type": "phimoe",
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.3,
}
SPARSE: dict[str, dict[str, Any]] = {
    "olmoe": _OLMOE,
    "flex-olmo": _FLEX_OLMO,
    "olmoe, heads of fewer keys, normalized": {**_OLMOE, "num_key_value_heads": 2, "norm_topk_prob": True},
    "minimax-m2": _MINIMAX_M2,
    "minimax-m2, positions on a part": {**_MINIMAX_M2, "rotary_dim": 4},
    "ernie-4.5-moe": _ERNIE_MOE,
    "ernie-4.5-moe, biases, no shared expert": {**_ERNIE_MOE, "use_bias": True, "moe_num_shared_experts": 0},
    "granite-moe": _GRANITE_MOE,
    "granite-moe-shared": _GRANITE_SHARED,
    "gpt-oss, a window of 3 in the first layer": _GPT_OSS,
    "gpt-oss, no biases, another clamp": {
        **_GPT_OSS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "swiglu_limit": 0.5,
        "swiglu_alpha": 1.1,
    },
    "glm-4.5, groups": {**_GLM_MOE, "routed_scaling_factor": 1.5},
    "glm-4.5, q and k normalized, biases": {**_GLM_MOE, "use_qk_norm": True, "attention_bias": True},
    "llama-4, a window of 3 tokens as chunks": {**_LLAMA_4, "floor_scale": 2, "attn_scale": 0.5},
    "llama-4, experts in every second layer, two a token": {
        **_LLAMA_4,
        "rope_parameters": {
            **{"rope_type": "llama3", "rope_theta": 100.0, "factor": 16.0},
            **{"low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 16},
        },
        "interleave_moe_layer_step": 2,
        "num_experts_per_tok": 2,
        "use_qk_norm": False,
        "attn_temperature_tuning": False,
    },
    "phi-3.5-moe, biases": {**_PHI_MOE, "attention_bias": True, "lm_head_bias": True},
    "phi-3.5-moe, longrope, a window of 3": {
        **_PHI_MOE,
        "sliding_window": 3,
        "max_position_embeddings": 48,
        "rope_scaling": {
            **{"type": "longrope", "short_mscale": 1.3, "long_mscale": 1.3},
            **{"short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 2.5, 4.0]},
            "original_max_position_embeddings": 24,  # beyond which the class takes short factors still
        },
    },
}
