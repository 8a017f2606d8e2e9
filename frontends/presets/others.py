"""Models of families with a size or two.

Shapes: the released configs. Totals: the checkpoints at the ids' pages on huggingface.co.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmir.frontends.presets.preset import Preset

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

# id, class, type, total, config
_ALL = (
    ("zai-org/GLM-4-9B-Chat-HF", "GlmForCausalLM", "glm", 9_399_951_360, _GLM),
    ("zai-org/GLM-4-9B-0414", "Glm4ForCausalLM", "glm4", 9_400_279_040, {**_GLM, "rms_norm_eps": 1e-5}),
    ("baidu/ERNIE-4.5-0.3B-PT", "Ernie4_5ForCausalLM", "ernie4_5", 360_748_032, _ERNIE),
    ("facebook/cwm", "CwmForCausalLM", "cwm", 32_581_097_472, _CWM),
)


def presets() -> Iterator[Preset]:
    """Every one of them."""
    for hf_id, architecture, kind, parameters, own in _ALL:
        config = {"architectures": [architecture], "model_type": kind, **own}
        yield Preset(hf_id.partition("/")[2], hf_id, config, parameters)
