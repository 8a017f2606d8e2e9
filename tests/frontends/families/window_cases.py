"""Tiny models with windows, norms, caps and scales of all kinds, for `transformers_cases`."""

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


def _model(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {**_SIZES, "architectures": [architecture], "model_type": model_type, **more}


_GEMMA = _model("GemmaForCausalLM", "gemma", head_dim=8)
_GEMMA_2 = _model("Gemma2ForCausalLM", "gemma2", head_dim=8, query_pre_attn_scalar=12)
_GEMMA_3 = _model(
    "Gemma3ForCausalLM",
    "gemma3_text",
    head_dim=8,
    sliding_window=3,
    sliding_window_pattern=3,
    num_hidden_layers=8,
)
_COHERE = _model("CohereForCausalLM", "cohere")
_COHERE_2 = _model("Cohere2ForCausalLM", "cohere2", sliding_window=3, num_hidden_layers=5)
_OLMO_3 = _model("Olmo3ForCausalLM", "olmo3", sliding_window=3, num_hidden_layers=5)
_SMOLLM = _model("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=5)
_EXAONE = _model("Exaone4ForCausalLM", "exaone4", num_hidden_layers=5)
_MINISTRAL_3 = _model("Ministral3ForCausalLM", "ministral3", head_dim=8, max_position_embeddings=262144)
_MISTRAL_4 = _model(
    "Mistral4ForCausalLM",
    "mistral4",
    num_key_value_heads=4,
    q_lora_rank=10,
    kv_lora_rank=6,
    qk_nope_head_dim=4,
    qk_rope_head_dim=4,
    v_head_dim=5,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=12,
    max_position_embeddings=1048576,
)
_SCALED = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.2,
    "logits_scaling": 0.5,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0}
_FACTORS = {"short_factor": [1.0, 1.1], "long_factor": [1.2, 4.0]}

CASES: dict[str, dict[str, Any]] = {
    "gemma": _GEMMA,
    "gemma, biases, untied": {**_GEMMA, "attention_bias": True, "tie_word_embeddings": False},
    "gemma2, a window of 3": {**_GEMMA_2, "sliding_window": 3, "num_hidden_layers": 3},
    "gemma2, caps that bite": {**_GEMMA_2, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.7},
    "gemma2, no caps": {**_GEMMA_2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3, a window of 3": _GEMMA_3,
    "gemma3, a window of 3, stretched": {
        **_GEMMA_3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 500.0,
        "rope_local_base_freq": 20.0,
    },
    "gemma3, a window of 3, positions of each kind": {
        **_GEMMA_3,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
        },
        "layer_types": [*["sliding_attention"] * 4, "full_attention"] + ["sliding_attention"] * 3,
        "final_logit_softcapping": 0.6,
    },
    "cohere": _COHERE,
    "cohere, q and k normed, biases": {
        **_COHERE,
        "use_qk_norm": True,
        "attention_bias": True,
        "layer_norm_eps": 1e-3,
        "logit_scale": 0.5,
    },
    "cohere2, a window of 3": _COHERE_2,
    "olmo2": _model("Olmo2ForCausalLM", "olmo2"),
    "olmo2, biases, wide heads": _model("Olmo2ForCausalLM", "olmo2", attention_bias=True, head_dim=8),
    "olmo3, a window of 3": _OLMO_3,
    "olmo3, a window of 3, stretched": {**_OLMO_3, "rope_scaling": _YARN},
    "smollm3": _SMOLLM,
    "smollm3, a window of 3": {
        **_SMOLLM,
        "use_sliding_window": True,
        "sliding_window": 3,
        "no_rope_layer_interval": 2,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "exaone4, a window of 3": {**_EXAONE, "sliding_window": 3},
    "exaone4, a window of 3, in letters": {
        **_EXAONE,
        "sliding_window": 3,
        "sliding_window_pattern": "LG",
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    },
    "exaone4, no window": {
        **_EXAONE,
        "sliding_window": None,
        "sliding_window_pattern": None,
        "layer_types": ["full_attention"] * 5,
        "head_dim": 8,
    },
    "granite": _model(
        "GraniteForCausalLM",
        "granite",
        embedding_multiplier=3.0,
        attention_multiplier=0.3,
        residual_multiplier=0.22,
        logits_scaling=4.0,
    ),
    "granite, nothing scaled, biases": _model(
        "GraniteForCausalLM", "granite", attention_bias=True, mlp_bias=True
    ),
    "seed-oss": _model("SeedOssForCausalLM", "seed_oss", head_dim=8),
    "seed-oss, other biases": _model(
        "SeedOssForCausalLM",
        "seed_oss",
        head_dim=8,
        attention_bias=False,
        attention_out_bias=True,
        mlp_bias=True,
    ),
    "arcee": _model("ArceeForCausalLM", "arcee"),
    "bitnet": _model("BitNetForCausalLM", "bitnet"),
    "bitnet, biases, tied": _model(
        "BitNetForCausalLM", "bitnet", attention_bias=True, tie_word_embeddings=True, hidden_act="silu"
    ),
    "phi3, a part of a head": _model("Phi3ForCausalLM", "phi3", partial_rotary_factor=0.67),
    "phi3, a part of a head, longrope": _model(
        "Phi3ForCausalLM",
        "phi3",
        partial_rotary_factor=0.67,
        rope_scaling={"type": "longrope", **_FACTORS},
        original_max_position_embeddings=12,
        max_position_embeddings=48,
    ),
    "ministral, a window of 3 in some layers": _model(
        "MinistralForCausalLM",
        "ministral",
        head_dim=8,
        num_hidden_layers=4,
        sliding_window=3,
        layer_types=["full_attention", *["sliding_attention"] * 3],
    ),
    "ministral, a window of 3": _model("MinistralForCausalLM", "ministral", head_dim=8, sliding_window=3),
    "ministral3": _MINISTRAL_3,
    "ministral3, a window of 3, longer": {
        **_MINISTRAL_3,
        "sliding_window": 3,
        "rope_parameters": {**_YARN, "original_max_position_embeddings": 4, "llama_4_scaling_beta": 0.7},
    },
    "mistral4": _MISTRAL_4,
    "mistral4, longer, groups, a dense layer, halves rotated": {
        **_MISTRAL_4,
        "rope_parameters": {
            **_YARN,
            "original_max_position_embeddings": 4,
            "llama_4_scaling_beta": 0.7,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "partial_rotary_factor": 0.5,
        },
        "rope_interleave": False,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
        "n_shared_experts": 2,
        "attention_bias": True,
    },
    "vaultgemma, a window of 3": _model(
        "VaultGemmaForCausalLM", "vaultgemma", head_dim=8, sliding_window=3, num_hidden_layers=3
    ),
    "helium": _model("HeliumForCausalLM", "helium", head_dim=6, attention_bias=True),
    "hyperclovax": _model("HyperCLOVAXForCausalLM", "hyperclovax", **_SCALED),
    "hyperclovax, no norms behind": _model(
        "HyperCLOVAXForCausalLM", "hyperclovax", use_post_norm=False, attention_bias=True, mlp_bias=True
    ),
}
