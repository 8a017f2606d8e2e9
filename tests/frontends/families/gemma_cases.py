"""Tiny Gemma 3n and Gemma 4, for `transformers_cases`."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 20,
    "vocab_size": 13,
    "vocab_size_per_layer_input": 13,
    "hidden_size_per_layer_input": 6,
    "max_position_embeddings": 64,
    "sliding_window": 3,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA_3N = {
    **_SIZES,
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "num_hidden_layers": 8,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 3,
    "laurel_rank": 5,
    "activation_sparsity_pattern": [0.7, 0.7, 0.6, *[0.0] * 5],
}
_GEMMA_4 = {
    **_SIZES,
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 7,
    "global_head_dim": 16,
}

CASES: dict[str, dict[str, Any]] = {
    "gemma3n, a window of 3": _GEMMA_3N,
    "gemma3n, a window of 3, nothing shared, a small table": {
        **_GEMMA_3N,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 7,
        "activation_sparsity_pattern": None,
        "intermediate_size": [20, 12, 20, 12, 20, 12, 20, 12],
        "altup_num_inputs": 3,
        "altup_active_idx": 1,
        "altup_correct_scale": False,
        "final_logit_softcapping": 0.7,
    },
    "gemma4, a window of 3": _GEMMA_4,
    "gemma4, a window of 3, shared keys": {
        **_GEMMA_4,
        "num_hidden_layers": 9,
        "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 0.7,
    },
    "gemma4, a window of 3, values that are keys": {
        **_GEMMA_4,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    "gemma4, a window of 3, experts": {
        **_GEMMA_4,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 12,
    },
}
