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
