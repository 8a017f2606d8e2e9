"""Models whose checkpoints contain custom code, which is never run.

Shapes: the released configs. Totals: the checkpoints on the pages of the ids on huggingface.co.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_CHATGLM: Mapping[str, object] = {
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "num_layers": 28,
    "num_attention_heads": 32,
    "multi_query_group_num": 2,
    "kv_channels": 128,
    "padded_vocab_size": 65024,
    "seq_length": 8192,
    "add_qkv_bias": True,
    "torch_dtype": "float16",
}
_QWEN: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "layer_norm_epsilon": 1e-6,
    "no_bias": True,
    "torch_dtype": "bfloat16",
}
_EXAONE: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 102400,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_INTERNLM: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 128512,
    "max_position_embeddings": 32768,
    "rope_theta": 50000000.0,
    "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    "torch_dtype": "bfloat16",
}
_DEEPSEEK: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
_LING: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "rope_theta": 600000.0,
    "vocab_size": 157184,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}

# id, class, type, total, config, releases with the same shapes
_ALL: tuple[tuple[str, str, str, int, Mapping[str, object], tuple[str, ...]], ...] = (
    ("zai-org/chatglm3-6b", "ChatGLMModel", "chatglm", 6_243_584_000, _CHATGLM, ("chatglm2-6b",)),
    ("Qwen/Qwen-7B", "QWenLMHeadModel", "qwen", 7_721_324_544, _QWEN, ("Qwen-7B-Chat",)),
    ("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct", "ExaoneForCausalLM", "exaone", 7_818_448_896, _EXAONE, ()),
    ("internlm/internlm3-8b-instruct", "InternLM3ForCausalLM", "internlm3", 8_804_241_408, _INTERNLM, ()),
    (
        "deepseek-ai/deepseek-moe-16b-base",
        "DeepseekForCausalLM",
        "deepseek",
        16_375_728_128,
        _DEEPSEEK,
        ("deepseek-moe-16b-chat",),
    ),
    # Minus 19 × 256 numbers that correct the choice of experts.
    (
        "inclusionAI/Ling-mini-2.0",
        "BailingMoeV2ForCausalLM",
        "bailing_moe_v2",
        16_255_643_392 - 4_864,
        _LING,
        ("Ring-mini-2.0",),
    ),
)


def presets() -> Iterator[Preset]:
    """All models of this file."""
    for hf_id, architecture, kind, parameters, own, aliases in _ALL:
        config = {"architectures": [architecture], "model_type": kind, **own}
        yield Preset(hf_id.partition("/")[2], hf_id, config, parameters, aliases)
