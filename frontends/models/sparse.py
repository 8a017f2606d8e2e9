"""Mixtures of experts: gpt-oss, MiniMax-M2, Llama 4, GLM-4.5 to 4.7, ERNIE 4.5, Granite 3, OLMoE.

Shapes: the reports (arXiv:2508.10925, 2508.06471, 2409.02060, the report on ERNIE 4.5, and the model cards of
MiniMax-M2 and Granite 3.0) and the released configs. Totals of gpt-oss, GLM-4.5-Air, ERNIE 21B and OLMoE: the
checkpoints or their classes in torch. The other totals are sums of the shapes, and equal the published
billions (230, 355 with a multi-token-prediction layer, 300, 1.3, 3.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_Config = Mapping[str, object]

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings"),
)


def _class(architecture: str, kind: str, **fields: object) -> _Config:
    every = {"architectures": [architecture], "model_type": kind, "hidden_act": "silu"}
    return {**every, "tie_word_embeddings": False, "torch_dtype": "bfloat16", **fields}


_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
_GPT_OSS = _class(
    *("GptOssForCausalLM", "gpt_oss"),
    attention_bias=True,
    head_dim=64,
    sliding_window=128,
    swiglu_limit=7.0,
    num_experts_per_tok=4,
    rms_norm_eps=1e-5,
    rope_theta=150000,
    rope_scaling={**_YARN, "original_max_position_embeddings": 4096},
    quantization_config=_MXFP4,
)
_FP8 = {
    **{"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
_MINIMAX_M2 = _class(
    *("MiniMaxM2ForCausalLM", "minimax_m2"),
    head_dim=128,
    rotary_dim=64,
    num_local_experts=256,
    num_experts_per_tok=8,
    rms_norm_eps=1e-6,
    rope_theta=5000000,
    use_qk_norm=True,
    quantization_config=_FP8,
)
_GLM = _class(
    *("Glm4MoeForCausalLM", "glm4_moe"),
    attention_bias=True,
    head_dim=128,
    partial_rotary_factor=0.5,
    rope_theta=1000000,
    rms_norm_eps=1e-5,
    num_experts_per_tok=8,
    n_shared_experts=1,
    norm_topk_prob=True,
    n_group=1,
    topk_group=1,
    num_nextn_predict_layers=1,
)
_GLM_AIR: _Config = {
    **{"n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1},
    **{"use_qk_norm": False, "routed_scaling_factor": 1.0},
}
_GLM_LARGE: _Config = {
    **{"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3},
    **{"use_qk_norm": True, "routed_scaling_factor": 2.5},
}
_ERNIE = _class(
    *("Ernie4_5_MoeForCausalLM", "ernie4_5_moe"), rope_theta=500000.0, rms_norm_eps=1e-5, moe_num_experts=64
)
_ERNIE_SMALL: _Config = {
    **{"moe_k": 6, "moe_intermediate_size": 1536, "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
    "tie_word_embeddings": True,
}
_ERNIE_LARGE: _Config = {
    **{"moe_k": 8, "moe_intermediate_size": 3584, "moe_num_shared_experts": 0, "moe_layer_start_index": 3},
}
_GRANITE = _class(
    *("GraniteMoeForCausalLM", "granitemoe"),
    tie_word_embeddings=True,
    num_experts_per_tok=8,
    embedding_multiplier=12.0,
    attention_multiplier=0.015625,
    residual_multiplier=0.22,
    rms_norm_eps=1e-6,
)
_OLMOE = _class(*("OlmoeForCausalLM", "olmoe"), num_experts=64, num_experts_per_tok=8, norm_topk_prob=False)

_LLAMA_4 = _class(
    *("Llama4ForCausalLM", "llama4_text"),
    head_dim=128,
    num_experts_per_tok=1,
    intermediate_size_mlp=16384,
    attention_chunk_size=8192,
    rope_theta=500000.0,
    rms_norm_eps=1e-5,
)
_SCOUT: _Config = {
    **{"num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True},
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        "original_max_position_embeddings": 8192,
    },
}
_MAVERICK: _Config = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}

# id; parameters, then the columns; the common fields of its class, and the specific ones
_ALL: tuple[tuple[str, tuple[int, ...], _Config, _Config], ...] = (
    (
        "openai/gpt-oss-20b",
        (20_914_757_184, 24, 2880, 64, 8, 2880, 201088, 131072),
        *(_GPT_OSS, {"num_local_experts": 32}),
    ),
    (
        "openai/gpt-oss-120b",
        (116_829_156_672, 36, 2880, 64, 8, 2880, 201088, 131072),
        *(_GPT_OSS, {"num_local_experts": 128}),
    ),
    (
        "MiniMaxAI/MiniMax-M2",
        (228_689_748_992, 62, 3072, 48, 8, 1536, 200064, 196608),
        *(_MINIMAX_M2, {}),
    ),
    ("zai-org/GLM-4.5-Air", (106_852_245_504, 46, 4096, 96, 8, 10944, 151552, 131072), *(_GLM, _GLM_AIR)),
    ("zai-org/GLM-4.5", (352_797_814_784, 92, 5120, 96, 8, 12288, 151552, 131072), *(_GLM, _GLM_LARGE)),
    ("zai-org/GLM-4.6", (352_797_814_784, 92, 5120, 96, 8, 12288, 151552, 202752), *(_GLM, _GLM_LARGE)),
    (
        "baidu/ERNIE-4.5-21B-A3B-PT",
        (21_825_437_888, 28, 2560, 20, 4, 12288, 103424, 131072),
        *(_ERNIE, _ERNIE_SMALL),
    ),
    (
        "baidu/ERNIE-4.5-300B-A47B-PT",
        (299_484_163_264, 54, 8192, 64, 8, 28672, 103424, 131072),
        *(_ERNIE, _ERNIE_LARGE),
    ),
    (
        "ibm-granite/granite-3.0-1b-a400m-base",
        (1_334_628_352, 24, 1024, 16, 8, 512, 49155, 4096),
        *(_GRANITE, {"num_local_experts": 32, "logits_scaling": 6.0}),
    ),
    (
        "ibm-granite/granite-3.0-3b-a800m-base",
        (3_298_793_472, 32, 1536, 24, 8, 512, 49155, 4096),
        *(_GRANITE, {"num_local_experts": 40, "logits_scaling": 6.0}),
    ),
    (
        "meta-llama/Llama-4-Scout-17B-16E",
        (107_769_861_120, 48, 5120, 40, 8, 8192, 202048, 262144),
        *(_LLAMA_4, _SCOUT),
    ),
    (
        "meta-llama/Llama-4-Maverick-17B-128E",
        (400_711_848_960, 48, 5120, 40, 8, 8192, 202048, 1048576),
        *(_LLAMA_4, _MAVERICK),
    ),
    ("allenai/OLMoE-1B-7B-0924", (6_919_161_856, 16, 2048, 16, 16, 1024, 50304, 4096), *(_OLMOE, {})),
)
_ALIASES = {
    "Llama-4-Scout-17B-16E": ("Llama-4-Scout",),
    "Llama-4-Maverick-17B-128E": ("Llama-4-Maverick",),
    "MiniMax-M2": ("MiniMax-M2.1", "MiniMax-M2.5"),
    "GLM-4.6": ("GLM-4.7",),
    "OLMoE-1B-7B-0924": ("OLMoE-1B-7B", "OLMoE-1B-7B-0125"),
}


def presets() -> Iterator[Preset]:
    """All models of this file."""
    for hf_id, (parameters, *values), shared, own in _ALL:
        name = hf_id.partition("/")[2]
        config = {**shared, **own, **dict(zip(_COLUMNS, values, strict=True))}
        yield Preset(name, hf_id, config, parameters, _ALIASES.get(name, ()))
