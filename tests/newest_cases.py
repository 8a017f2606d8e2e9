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

_DEEPSEEK_4 = {
    **_SIZES,
    **_EXPERTS,
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "q_lora_rank": 10,
    "o_groups": 2,
    "o_lora_rank": 5,
    "partial_rotary_factor": 0.5,
    "sliding_window": 3,
    "index_topk": 2,
    "index_n_heads": 16,
    "index_head_dim": 8,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "layer_types": [
        "sliding_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
}

CASES: dict[str, dict[str, Any]] = {
    "deepseek-v4": _DEEPSEEK_4,
    "deepseek-v4, yarn, all entries, clamps that bite": {
        **{key: value for key, value in _DEEPSEEK_4.items() if key not in ("layer_types", "compress_rates")},
        "compress_ratios": [4, 4, 0, 128, 0],
        "compress_rate_hca": 5,
        "index_topk": 64,
        "hc_mult": 4,
        "swiglu_limit": 0.5,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 8.0,
        },
    },
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

# What checkpoints call modules that transformers calls otherwise, as its own conversion says.
STORED = {
    "model.": "",
    "embed_tokens": "embed",
    "lm_head": "head",
    "hc_head.hc_": "hc_head_",
    "attn_hc.": "hc_attn_",
    "ffn_hc.": "hc_ffn_",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.compressor.indexer.scorer.": "attn.indexer.",
    "self_attn.compressor.indexer.q_b_proj": "attn.indexer.wq_b",
    "self_attn.compressor.indexer.": "attn.indexer.compressor.",
    "self_attn.": "attn.",
    "compressor.kv_norm": "compressor.norm",
    "compressor.gate_proj": "compressor.wgate",
    "position_bias": "ape",
    ".sinks": ".attn_sink",
    "q_a_norm": "q_norm",
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
    ".mlp.": ".ffn.",
    "gate.e_score_correction_bias": "gate.bias",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
}
