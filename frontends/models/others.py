"""Models of families with one or two sizes.

Shapes: the released configs. Totals: the checkpoints on the pages of the ids on huggingface.co.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_GLM: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 151552,
    "max_position_embeddings": 131072,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "torch_dtype": "bfloat16",
}
_ERNIE: Mapping[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_CWM: Mapping[str, object] = {
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "sliding_window": 8192,
    "torch_dtype": "bfloat16",
}

_SMOLLM: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 128256,
    "max_position_embeddings": 65536,
    "rope_theta": 5000000.0,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_EXAONE: Mapping[str, object] = {
    "vocab_size": 102400,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
_EXAONE_32B = {
    **_EXAONE,
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "head_dim": 128,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
_EXAONE_1B = {
    **_EXAONE,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "head_dim": 64,
    "max_position_embeddings": 65536,
    "sliding_window": None,
    "layer_types": ["full_attention"] * 30,
    "tie_word_embeddings": True,
}
_GRANITE: Mapping[str, object] = {
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_GRANITE_8B = {
    **_GRANITE,
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "rope_theta": 10000000.0,
    "attention_multiplier": 0.0078125,
    "logits_scaling": 16.0,
}
_GRANITE_2B = {
    **_GRANITE,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "rope_theta": 5000000.0,
    "attention_multiplier": 0.015625,
    "logits_scaling": 8.0,
}
_SEED: Mapping[str, object] = {
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 155136,
    "max_position_embeddings": 524288,
    "rope_theta": 10000000.0,
    "torch_dtype": "bfloat16",
}

# id, class, type, total, config
_ALL = (
    ("zai-org/GLM-4-9B-Chat-HF", "GlmForCausalLM", "glm", 9_399_951_360, _GLM),
    ("zai-org/GLM-4-9B-0414", "Glm4ForCausalLM", "glm4", 9_400_279_040, {**_GLM, "rms_norm_eps": 1e-5}),
    ("baidu/ERNIE-4.5-0.3B-PT", "Ernie4_5ForCausalLM", "ernie4_5", 360_748_032, _ERNIE),
    ("HuggingFaceTB/SmolLM3-3B", "SmolLM3ForCausalLM", "smollm3", 3_075_098_624, _SMOLLM),
    # The model card of the 32B model states 30.95B without embeddings.
    ("LGAI-EXAONE/EXAONE-4.0-32B", "Exaone4ForCausalLM", "exaone4", 32_003_216_384, _EXAONE_32B),
    ("LGAI-EXAONE/EXAONE-4.0-1.2B", "Exaone4ForCausalLM", "exaone4", 1_279_391_488, _EXAONE_1B),
    (
        "ibm-granite/granite-3.1-2b-instruct",
        "GraniteForCausalLM",
        "granite",
        2_533_531_648,
        {**_GRANITE_2B, "vocab_size": 49155},
    ),
    (
        "ibm-granite/granite-3.1-8b-instruct",
        "GraniteForCausalLM",
        "granite",
        8_170_848_256,
        {**_GRANITE_8B, "vocab_size": 49155},
    ),
    (
        "ibm-granite/granite-3.3-8b-instruct",
        "GraniteForCausalLM",
        "granite",
        8_170_864_640,
        {**_GRANITE_8B, "vocab_size": 49159},
    ),
    ("ByteDance-Seed/Seed-OSS-36B-Instruct", "SeedOssForCausalLM", "seed_oss", 36_151_104_512, _SEED),
    ("facebook/cwm", "CwmForCausalLM", "cwm", 32_581_097_472, _CWM),
)


def presets() -> Iterator[Preset]:
    """All models of this file."""
    for hf_id, architecture, kind, parameters, own in _ALL:
        config = {"architectures": [architecture], "model_type": kind, **own}
        yield Preset(hf_id.partition("/")[2], hf_id, config, parameters)
