"""DeepSeek V2 and V3, and Kimi-K2 and Moonlight, which have the shape of V3.

Shapes: the reports (arXiv:2405.04434, 2412.19437, 2507.20534) and the released configs. Totals: the
checkpoints on huggingface.co/deepseek-ai and /moonshotai, without scales, router corrections and
multi-token-prediction layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "q_lora_rank", "intermediate_size"),
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
    *("first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor", "vocab_size"),
    *("max_position_embeddings", "rope_theta"),
)
_Row = tuple[int | float | None, ...]
_V2: Mapping[str, _Row] = {  # parameters, then the columns
    "DeepSeek-V2-Lite-16B": (
        *(15_706_484_224, 27, 2048, 16, None, 10944, 64, 6, 1408, 2, 1, 1, 1, 1.0),
        *(102400, 163840, 1e4),
    ),
    "DeepSeek-V2-236B": (
        *(235_741_434_880, 60, 5120, 128, 1536, 12288, 160, 6, 1536, 2, 1, 8, 3, 16.0),
        *(102400, 163840, 1e4),
    ),
}
_K2: _Row = (
    *(1_026_408_209_408, 61, 7168, 64, 1536, 18432, 384, 8, 2048, 1, 1, 1, 1, 2.827),
    *(163840, 131072, 5e4),
)
_V3: Mapping[str, _Row] = {
    "Moonlight-16B-A3B": (
        *(15_960_108_544, 27, 2048, 16, None, 11264, 64, 6, 1408, 2, 1, 1, 1, 2.446),
        *(163840, 8192, 5e4),
    ),
    "DeepSeek-V3-671B": (
        *(671_026_404_352, 61, 7168, 128, 1536, 18432, 256, 8, 2048, 1, 3, 8, 4, 2.5),
        *(129280, 163840, 1e4),
    ),
    "Kimi-K2-1026B": _K2,
    "Kimi-K2-0905-1026B": _K2,
    "Kimi-K2-Thinking-1026B": _K2,
}
_V32: Mapping[str, _Row] = {
    "DeepSeek-V3.2-671B": (
        *(671_877_929_216, 61, 7168, 128, 1536, 18432, 256, 8, 2048, 1, 3, 8, 4, 2.5),
        *(129280, 163840, 1e4),
    ),
}
_FOUND_AT = {  # names of repositories that differ
    "DeepSeek-V2-Lite-16B": "deepseek-ai/DeepSeek-V2-Lite",
    "DeepSeek-V2-236B": "deepseek-ai/DeepSeek-V2",
    "Moonlight-16B-A3B": "moonshotai/Moonlight-16B-A3B",
    "DeepSeek-V3-671B": "deepseek-ai/DeepSeek-V3",
    "Kimi-K2-1026B": "moonshotai/Kimi-K2-Instruct",
    "Kimi-K2-0905-1026B": "moonshotai/Kimi-K2-Instruct-0905",
    "Kimi-K2-Thinking-1026B": "moonshotai/Kimi-K2-Thinking",
    "DeepSeek-V3.2-671B": "deepseek-ai/DeepSeek-V3.2",
}
_ALIASES = {
    "DeepSeek-V2-Lite-16B": (
        *("DeepSeek-V2-Lite-Chat", "DeepSeek-Coder-V2-Lite-Base", "DeepSeek-Coder-V2-Lite-Instruct"),
        "DeepSeek-Coder-V2-Lite",
    ),
    "DeepSeek-V2-236B": (
        *("DeepSeek-V2-Chat", "DeepSeek-V2-Chat-0628", "DeepSeek-V2.5", "DeepSeek-V2.5-1210"),
        *("DeepSeek-Coder-V2-Base", "DeepSeek-Coder-V2-Instruct", "DeepSeek-Coder-V2"),
    ),
    "Moonlight-16B-A3B": ("Moonlight-16B-A3B-Instruct",),
    "DeepSeek-V3-671B": (
        *("DeepSeek-V3-Base", "DeepSeek-V3-0324", "DeepSeek-R1", "DeepSeek-R1-0528", "DeepSeek-R1-Zero"),
        *("DeepSeek-V3.1", "DeepSeek-V3.1-Base", "DeepSeek-V3.1-Terminus"),
    ),
    "Kimi-K2-1026B": ("Kimi-K2", "Kimi-K2-Base"),
    "Kimi-K2-0905-1026B": (),
    "Kimi-K2-Thinking-1026B": ("Kimi-K2.5",),  # without its vision tower
    "DeepSeek-V3.2-671B": ("DeepSeek-V3.2-Exp", "DeepSeek-V3.2-Exp-Base", "DeepSeek-V3.2-Speciale"),
}

_EVERY: Mapping[str, object] = {
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_EVERY_V2 = {
    **_EVERY,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}
_EVERY_V3 = {
    **_EVERY,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
_EVERY_V32 = {
    **_EVERY_V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_topk": 2048,
    "index_n_heads": 64,
    "index_head_dim": 128,
}
_STORED = {
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
}
# Kimi-K2-Thinking was trained with 4-bit routed experts: 594 GB in total.
_STORED_4 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
            }
        },
        "ignore": [
            *("lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp.gate$"),
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    }
}
_DRAFTS = {"num_nextn_predict_layers": 1}


def _stretched(factor: float, mscale: float, beta_fast: float = 32) -> dict[str, object]:
    beyond = {"type": "yarn", "factor": factor, "original_max_position_embeddings": 4096}
    both = {"mscale": mscale, "mscale_all_dim": mscale, "beta_fast": beta_fast, "beta_slow": 1}
    return {"rope_scaling": {**beyond, **both}}


_LONG = {"max_position_embeddings": 262144, **_stretched(64, 1.0, beta_fast=1)}
_OWN: Mapping[str, Mapping[str, object]] = {
    "DeepSeek-V2-Lite-16B": {"topk_method": "greedy", **_stretched(40, 0.707)},
    "DeepSeek-V2-236B": {"topk_method": "group_limited_greedy", **_stretched(40, 0.707)},
    "Moonlight-16B-A3B": {"rms_norm_eps": 1e-5},
    "DeepSeek-V3-671B": {**_stretched(40, 1.0), **_STORED, **_DRAFTS},
    "DeepSeek-V3.2-671B": {**_stretched(40, 1.0), **_STORED, **_DRAFTS},
    "Kimi-K2-1026B": {"model_type": "kimi_k2", **_stretched(32, 1.0, beta_fast=1), **_STORED},
    "Kimi-K2-0905-1026B": {"model_type": "kimi_k2", **_LONG, **_STORED},
    "Kimi-K2-Thinking-1026B": {"model_type": "kimi_k2", **_LONG, **_STORED_4},
}


def presets() -> Iterator[Preset]:
    """Every bundled model of the two shapes, by size."""
    for shared, rows in ((_EVERY_V2, _V2), (_EVERY_V3, _V3), (_EVERY_V32, _V32)):
        for name, (parameters, *values) in rows.items():
            config = {**shared, **dict(zip(_COLUMNS, values, strict=True)), **_OWN[name]}
            config["num_key_value_heads"] = config["num_attention_heads"]
            assert isinstance(parameters, int)
            yield Preset(name, _FOUND_AT[name], config, parameters, _ALIASES[name])
