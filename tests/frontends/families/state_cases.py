"""Tiny models with states: scans, delta rules, short convolutions, alone and between attention."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "vocab_size": 13,
    "pad_token_id": None,
}
_ATTENTION = {
    **_SIZES,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
_MAMBA = {**_SIZES, "architectures": ["MambaForCausalLM"], "model_type": "mamba", "state_size": 5}
_FALCON_MAMBA = {**_MAMBA, "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
_MAMBA2 = {
    **_SIZES,
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "state_size": 5,
    "num_heads": 6,
    "head_dim": 8,
    "n_groups": 2,
    "chunk_size": 4,
}
_ZAMBA2 = {
    **_ATTENTION,
    "architectures": ["Zamba2ForCausalLM"],
    "model_type": "zamba2",
    "num_hidden_layers": 6,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"],
    "num_key_value_heads": 4,
    "mamba_d_state": 5,
    "mamba_ngroups": 2,
    "n_mamba_heads": 6,
    "chunk_size": 4,
    "adapter_rank": 3,
    "pad_token_id": 0,
}
_LFM2 = {
    **_ATTENTION,
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 4,
}
_LFM2_MOE = {
    **{key: value for key, value in _LFM2.items() if "block" not in key},
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
}

_DELTA = {
    **_ATTENTION,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 3,
}
_QWEN3_NEXT = {
    **_DELTA,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "head_dim": 8,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 14,
}
_QWEN3_5 = {**_DELTA, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "head_dim": 8}
_QWEN3_5_MOE = {
    **{key: value for key, value in _QWEN3_NEXT.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
_KIMI = {
    **_ATTENTION,
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 12,
    "num_shared_experts": 2,
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 5,
        "short_conv_kernel_size": 3,
        "kda_layers": [1, 3],
        "full_attn_layers": [2],
    },
}
_OLMO_HYBRID = {
    **_DELTA,
    "architectures": ["OlmoHybridForCausalLM"],
    "model_type": "olmo_hybrid",
}

_HEADS = {
    "mamba_d_state": 5,
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 4,
}
_JAMBA = {
    **_ATTENTION,
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "mamba_d_state": 5,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "num_experts": 5,
}
_BAMBA = {
    **_ATTENTION,
    **_HEADS,
    "architectures": ["BambaForCausalLM"],
    "model_type": "bamba",
    "hidden_size": 32,
    "mamba_n_heads": 8,
    "attn_layer_indices": [1],
}
_FALCON_H1 = {
    **_ATTENTION,
    **_HEADS,
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "mamba_d_ssm": 48,
}

_MINIMAX = {
    **_ATTENTION,
    "architectures": ["MiniMaxForCausalLM"],
    "model_type": "minimax",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "num_local_experts": 5,
}

_GRANITE_HYBRID = {
    **_ATTENTION,
    **_HEADS,
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 32,
    "mamba_n_heads": 8,
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 14,
    "num_local_experts": 5,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.8,
    "logits_scaling": 2.0,
    "position_embedding_type": "nope",
}

_NEMOTRON_H = {
    **{key: value for key, value in _ATTENTION.items() if key != "num_hidden_layers"},
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-*EM",
    "head_dim": 8,
    "ssm_state_size": 5,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "chunk_size": 4,
    "n_routed_experts": 6,
    "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 14,
}

CASES: dict[str, dict[str, Any]] = {
    "mamba": _MAMBA,
    "mamba, biases, a rank of its own": {
        **_MAMBA,
        "use_bias": True,
        "time_step_rank": 3,
        "conv_kernel": 3,
        "tie_word_embeddings": False,
    },
    "falcon-mamba": _FALCON_MAMBA,
    "falcon-mamba, biases, an epsilon of its own": {
        **_FALCON_MAMBA,
        "use_bias": True,
        "mixer_rms_eps": 0.01,
        "tie_word_embeddings": False,
    },
    "mamba2": _MAMBA2,
    "mamba2, biases, one group": {**_MAMBA2, "n_groups": 1, "use_bias": True, "use_conv_bias": False},
    "qwen3-next": _QWEN3_NEXT,
    "qwen3-next, one dense layer, biases, half of a head turned": {
        **_QWEN3_NEXT,
        "mlp_only_layers": [1],
        "attention_bias": True,
        "linear_conv_kernel_dim": 3,
        "partial_rotary_factor": 0.5,
    },
    "qwen3.5": _QWEN3_5,
    "qwen3.5, biases, positions along three axes": {
        **_QWEN3_5,
        "attention_bias": True,
        "linear_conv_kernel_dim": 3,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 0],
            "mrope_interleaved": True,
        },
    },
    "qwen3.5-moe": _QWEN3_5_MOE,
    "kimi-linear": _KIMI,
    "kimi-linear, a head that is not tied": {**_KIMI, "tie_word_embeddings": True},
    "kimi-linear, groups, biases, layers by type": {
        **{key: value for key, value in _KIMI.items() if key != "linear_attn_config"},
        "linear_num_heads": 4,
        "linear_head_dim": 5,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "num_expert_group": 4,
        "topk_group": 2,
        "moe_renormalize": False,
        "routed_scaling_factor": 1.5,
        "attention_bias": True,
        "q_lora_rank": 10,
    },
    "olmo-hybrid": _OLMO_HYBRID,
    "olmo-hybrid, positions, writes up to 1": {
        **_OLMO_HYBRID,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "linear_allow_neg_eigval": False,
    },
    "olmo-hybrid, no positions": {
        **_OLMO_HYBRID,
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
    },
    "jamba": _JAMBA,
    "jamba, biases, a rank of its own, no experts": {
        **_JAMBA,
        "mamba_proj_bias": True,
        "mamba_dt_rank": 3,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    },
    "bamba": _BAMBA,
    "bamba, biases": {**_BAMBA, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True},
    "falcon-h1": _FALCON_H1,
    "falcon-h1, multipliers, a norm": {
        **_FALCON_H1,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "projectors_bias": True,
        "lm_head_multiplier": 0.7,
        "embedding_multiplier": 1.3,
        "mlp_multipliers": [0.9, 1.2],
        "key_multiplier": 0.8,
        "attention_out_multiplier": 1.1,
        "attention_in_multiplier": 0.9,
        "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
        "ssm_in_multiplier": 1.4,
        "ssm_out_multiplier": 0.6,
    },
    "falcon-h1, a norm before the gate": {**_FALCON_H1, "mamba_rms_norm": True},
    "minimax": _MINIMAX,
    "minimax, factors, every second layer": {
        **{key: value for key, value in _MINIMAX.items() if key != "layer_types"},
        "full_attn_alpha_factor": 1.5,
        "linear_attn_alpha_factor": 1.25,
        "mlp_alpha_factor": 0.75,
        "full_attn_beta_factor": 0.5,
        "linear_attn_beta_factor": 0.5,
        "mlp_beta_factor": 0.5,
    },
    "granite-hybrid": _GRANITE_HYBRID,
    "granite-hybrid, positions, no experts": {
        **_GRANITE_HYBRID,
        "num_local_experts": 0,
        "position_embedding_type": "rope",
    },
    "nemotron-h": _NEMOTRON_H,
    # The classes of Nemotron-H and Kimi-Linear have a head of their own, whatever the config says.
    "nemotron-h, experts of a latent state": {
        **_NEMOTRON_H,
        "moe_latent_size": 10,
        "tie_word_embeddings": True,
    },
    "nemotron-h, biases, groups of experts": {
        **{key: value for key, value in _NEMOTRON_H.items() if key != "hybrid_override_pattern"},
        "layers_block_type": ["linear_attention", "moe", "full_attention"],
        "use_bias": True,
        "routed_scaling_factor": 1.5,
        "n_group": 3,
        "topk_group": 2,
        "mlp_hidden_act": "silu",
    },
    "lfm2": _LFM2,
    "zamba2": _ZAMBA2,
    "zamba2, heads that share keys": {**_ZAMBA2, "num_key_value_heads": 2, "intermediate_size": 18},
    "zamba2, two blocks, adapters of attention, positions, biases": {
        **_ZAMBA2,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
        "add_bias_linear": True,
    },
    "lfm2-moe": _LFM2_MOE,
    "lfm2-moe, no correction, unnormalized, one dense layer": {
        **_LFM2_MOE,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
        "num_dense_layers": 1,
        "tie_word_embeddings": False,
        "tie_embedding": False,
    },
    "lfm2, biases, taps of its own": {**_LFM2, "conv_bias": True, "conv_L_cache": 4},
}
