"""Tiny models of families with gates, sinks, scales and choices of their own, for `transformers_cases`."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 13,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
_ROUTED = {**_EXPERTS, "n_routed_experts": 8, "n_shared_experts": 2}
_ROUTED.pop("num_experts")


def _model(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {**_SIZES, "architectures": [architecture], "model_type": model_type, **more}


AFMOE = _model(
    "AfmoeForCausalLM",
    "afmoe",
    **_EXPERTS,
    head_dim=8,
    num_hidden_layers=6,
    sliding_window=3,
    route_scale=1.5,
)
EXAONE = _model(
    "ExaoneMoeForCausalLM", "exaone_moe", **_EXPERTS, head_dim=8, num_hidden_layers=5, sliding_window=3
)
MIMO = _model(
    "MiMoV2FlashForCausalLM",
    "mimo_v2_flash",
    **_ROUTED,
    head_dim=12,
    v_head_dim=6,
    num_key_value_heads=1,
    num_hidden_layers=7,
    sliding_window=3,
)
MIMO.pop("n_shared_experts")
APERTUS = _model("ApertusForCausalLM", "apertus", hidden_act="xielu")
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}
YOUTU = _model("YoutuForCausalLM", "youtu", **_LATENT)
AXK1 = _model("AXK1ForCausalLM", "axk1", **_LATENT | _ROUTED, n_group=4, topk_group=2, num_hidden_layers=3)
SOLAR = _model("SolarOpenForCausalLM", "solar_open", **_ROUTED, head_dim=8)
COHERE = _model(
    "Cohere2MoeForCausalLM", "cohere2_moe", num_experts=8, num_hidden_layers=6, sliding_window=3, head_dim=8
)
_KINDS = ("sliding_attention", "full_attention")
MELLUM = _model("MellumForCausalLM", "mellum", **_EXPERTS, head_dim=8, num_hidden_layers=4, sliding_window=3)
FLINT = _model("FlintForCausalLM", "flint", **_EXPERTS, head_dim=8, num_hidden_layers=7, sliding_window=3)
_SCALED = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.2,
    "logits_scaling": 4.0,
}
GRANITE = _model("GraniteSWAForCausalLM", "granite_swa", num_hidden_layers=5, sliding_window=3)
GRANITE_MOE = {
    **GRANITE,
    **_model("GraniteMoeSWAForCausalLM", "granitemoe_swa", num_local_experts=5, num_experts_per_tok=2),
    "num_hidden_layers": 5,
}
HUNYUAN = _model(
    "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", num_experts=8, moe_topk=3, head_dim=8, eod_token_id=3
)
HY3 = _model("HYV3ForCausalLM", "hy_v3", **_EXPERTS, head_dim=8, num_hidden_layers=3)

CASES: dict[str, dict[str, Any]] = {
    "afmoe, a window of 3": AFMOE,
    "afmoe, a window of 3, scaled, biases": {
        **AFMOE,
        "mup_enabled": True,
        "attention_bias": True,
        "num_shared_experts": 1,
        "num_dense_layers": 2,
        "global_attn_every_n_layers": 2,
        "num_key_value_heads": None,
    },
    "mimo-v2-flash, a window of 3": MIMO,
    "mimo-v2-flash, a window of 3, groups, positions of each kind": {
        **MIMO,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "attention_value_scale": None,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.0,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "mlp_layer_types": ["sparse", "sparse", "dense", "sparse"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0, "partial_rotary_factor": 0.5},
            "full_attention": {"rope_type": "default", "rope_theta": 90.0, "partial_rotary_factor": 1.0},
        },
    },
    "youtu": YOUTU,
    "youtu, biases, halves rotated, untied": {
        **YOUTU,
        "attention_bias": True,
        "rope_interleave": False,
        "q_lora_rank": None,
        "tie_word_embeddings": False,
    },
    "axk1": AXK1,
    "axk1, layers by type": {**AXK1, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    "solar-open": SOLAR,
    "solar-open, groups, biases": {
        **SOLAR,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "cohere2-moe, a window of 3": COHERE,
    "cohere2-moe, a window of 3, dense layers first, shared experts": {
        **COHERE,
        "first_k_dense_replace": 2,
        "prefix_dense_intermediate_size": 28,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
        "rms_norm_eps": 1e-4,
        "sliding_window_pattern": 2,
    },
    "cohere2-moe, a window of 3, sums, windows in dense layers": {
        **COHERE,
        "first_k_dense_replace": 3,
        "prefix_dense_sliding_window_pattern": 2,
        "num_shared_experts": 1,
        "shared_expert_combination_strategy": "sum",
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": False,
        "attention_bias": True,
    },
    "granite-swa, a window of 3": GRANITE,
    "granite-swa, a window of 3, scaled, a base for each layer": {
        **GRANITE,
        **_SCALED,
        "attention_bias": True,
        "layer_types": [*_KINDS, *_KINDS, "full_attention"],
        "layer_rope_theta": [100.0, 0, 0, 300.0, 100],
    },
    "granite-moe-swa, a window of 3": GRANITE_MOE,
    "granite-moe-swa, a window of 3, scaled, shared": {
        **GRANITE_MOE,
        **_SCALED,
        "shared_intermediate_size": 14,
        "layer_rope_theta": [0, 50.0, 50.0, 50.0, 0],
    },
    "mellum": MELLUM,
    "mellum, a window of 3, layers by type": {
        **MELLUM,
        "layer_types": [*_KINDS, *_KINDS],
        "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        "attention_bias": True,
        "norm_topk_prob": False,
    },
    "flint, a window of 3": FLINT,
    "flint, a window of 3, biases": {
        **FLINT,
        "attention_bias": True,
        "mlp_only_layers": [2],
        "shared_expert_intermediate_size": 10,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
    },
    "hunyuan-moe": HUNYUAN,
    "hunyuan-moe, stretched, tied": {
        **HUNYUAN,
        "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 100.0},
        "attention_bias": True,
        "tie_word_embeddings": True,
        "moe_topk": [2, 2],
    },
    "hunyuan-dense, stretched": {
        **_model("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", head_dim=8),
        "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 100.0},
    },
    "hy3": HY3,
    "hy3, biases, layers by type": {
        **HY3,
        "attention_bias": True,
        "mlp_bias": True,
        "num_shared_experts": 2,
        "router_scaling_factor": 0.7,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    "apertus": APERTUS,
    "apertus, biases, plain positions": {
        **APERTUS,
        "attention_bias": True,
        "num_key_value_heads": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "exaone-moe, a window of 3": EXAONE,
    "exaone-moe, a window of 3, groups, layers by type": {
        **EXAONE,
        "n_group": 4,
        "topk_group": 2,
        "num_shared_experts": 2,
        "norm_topk_prob": False,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"],
    },
}
