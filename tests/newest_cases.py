"""Tiny models whose queries see chosen or compressed keys, for `transformers_cases`."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 13,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}

_GLM_5 = {
    **_SIZES,
    **_EXPERTS,
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_key_value_heads": 4,
    "intermediate_size": 20,
    "q_lora_rank": 10,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "head_dim": 6,
    "first_k_dense_replace": 1,
    "index_topk": 3,
    "index_n_heads": 16,
    "index_head_dim": 8,
}

CASES: dict[str, dict[str, Any]] = {
    "glm-5": _GLM_5,
    "glm-5, more keys than tokens, groups, biases, yarn": {
        **_GLM_5,
        "index_topk": 64,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 8.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
}
