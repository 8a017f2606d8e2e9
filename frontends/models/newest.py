"""Models with selected or compressed keys: GLM-5, DeepSeek-V4 (Flash, Pro), MiniMax-M3; and GLM-4.7-Flash.

Shapes: the defaults of transformers 5.23, which equal the released configs. Totals: parameters of
transformers' classes on the meta device; the publishers state 744B, 284B, and 428B with a vision tower. The
total of MiniMax-M3 implies three dense layers; full attention in these layers is an assumption. The
checkpoints of MiniMax-M3 and GLM-5 with these ids are in bf16. DeepSeek-V4-Pro has the shapes of its
config.json; its publisher states 1.6T. In both DeepSeek-V4, routed experts are fp4 (two per byte, one 8-bit
scale per 32), other quantized weights are fp8 in blocks, and the compressor and the scores of its index are
not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator

from .preset import Preset

_GLM_5: dict[str, object] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "dtype": "bfloat16",
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


_GLM_FLASH: dict[str, object] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "dtype": "bfloat16",
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 1.8,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


_DEEPSEEK_4: dict[str, object] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_topk": 512,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "max_position_embeddings": 1048576,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "expert_dtype": "fp4",
        "modules_to_not_convert": ["compressor", "indexer.weights_proj"],
    },
}


_DEEPSEEK_4_PRO: dict[str, object] = {
    **_DEEPSEEK_4,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    "compress_ratios": [128, 128, *[4, 128] * 29, 4],
}


_MINIMAX_3: dict[str, object] = {
    "architectures": ["MiniMaxM3VLForCausalLM"],
    "model_type": "minimax_m3_vl_text",
    "dtype": "bfloat16",
    "vocab_size": 200064,
    "hidden_size": 6144,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 3072,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "max_position_embeddings": 524288,
}


def presets() -> Iterator[Preset]:
    """All models of this file."""
    yield Preset("GLM-5", "zai-org/GLM-5", _GLM_5, 743_911_199_232, ("GLM-5.1",))
    yield Preset("GLM-4.7-Flash", "zai-org/GLM-4.7-Flash", _GLM_FLASH, 29_943_390_976)
    yield Preset("DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash", _DEEPSEEK_4, 284_325_869_015)
    yield Preset("DeepSeek-V4-Pro", "deepseek-ai/DeepSeek-V4-Pro", _DEEPSEEK_4_PRO, 1_572_997_179_491)
    yield Preset("MiniMax-M3", "MiniMaxAI/MiniMax-M3", _MINIMAX_3, 426_174_565_632)
