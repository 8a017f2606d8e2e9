"""Models whose queries see chosen or compressed keys: GLM-5, DeepSeek-V4-Flash.

Shapes: the defaults of transformers 5.23, which are those of the released configs. Totals: parameters of
transformers' class on the meta device; the publishers say 744B and 284B.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmir.frontends.presets.preset import Preset

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
    "routed_scaling_factor": 2.5,
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
}


def presets() -> Iterator[Preset]:
    """Every one of them."""
    yield Preset("GLM-5", "zai-org/GLM-5", _GLM_5, 743_911_199_232)
    yield Preset("DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash", _DEEPSEEK_4, 284_325_869_015)
