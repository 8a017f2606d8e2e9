"""Mistral and Mixtral (text).

Shapes: table 1 of "Mistral 7B" (arXiv:2310.06825), of "Mixtral of Experts" (arXiv:2401.04088) and the
released configs. Totals: the checkpoints on huggingface.co/mistralai. The shapes of Mistral Small 4 are the
defaults of its class in transformers 5.23, and so is its total; the publisher states 119B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "sliding_window"),
)
_MISTRAL = {  # parameters, then the columns
    "Mistral-7B-v0.1": (7_241_732_096, 32, 4096, 32, 128, 14336, 32000, 32768, 1e4, 4096),
    "Mistral-7B-v0.2": (7_241_732_096, 32, 4096, 32, 128, 14336, 32000, 32768, 1e6, None),
    "Mistral-7B-v0.3": (7_248_023_552, 32, 4096, 32, 128, 14336, 32768, 32768, 1e6, None),
    "Ministral-8B": (8_019_808_256, 36, 4096, 32, 128, 12288, 131072, 32768, 1e8, 32768),
    "Mistral-Nemo-12B": (12_247_782_400, 40, 5120, 32, 128, 14336, 131072, 131072, 1e6, None),
    "Codestral-22B-v0.1": (22_247_282_688, 56, 6144, 48, 128, 16384, 32768, 32768, 1e6, None),
    "Mistral-Small-22B": (22_247_282_688, 56, 6144, 48, 128, 16384, 32768, 131072, 1e6, None),
    "Mistral-Small-24B": (23_572_403_200, 40, 5120, 32, 128, 32768, 131072, 32768, 1e8, None),
    "Mistral-Large-123B": (122_610_069_504, 88, 12288, 96, 128, 28672, 32768, 131072, 1e6, None),
}
_MIXTRAL = {
    "Mixtral-8x7B-v0.1": (46_702_792_704, 32, 4096, 32, 128, 14336, 32000, 32768, 1e6, None),
    "Mixtral-8x22B-v0.1": (140_620_634_112, 56, 6144, 48, 128, 16384, 32000, 65536, 1e6, None),
    "Mixtral-8x22B-Instruct-v0.1": (140_630_071_296, 56, 6144, 48, 128, 16384, 32768, 65536, 1e6, None),
}
_REPOSITORIES = {  # at huggingface.co/mistralai under other names
    "Mistral-7B-v0.2": "Mistral-7B-Instruct-v0.2",
    "Ministral-8B": "Ministral-8B-Instruct-2410",
    "Mistral-Nemo-12B": "Mistral-Nemo-Base-2407",
    "Mistral-Small-22B": "Mistral-Small-Instruct-2409",
    "Mistral-Small-24B": "Mistral-Small-24B-Instruct-2501",
    "Mistral-Large-123B": "Mistral-Large-Instruct-2407",
}
_ALIASES = {
    "Mistral-7B-v0.1": ("Mistral-7B", "Mistral-7B-Instruct-v0.1", "Mistral-7B-v0.1-Instruct"),
    "Mistral-7B-v0.2": ("Mistral-7B-v0.2-Instruct",),
    "Mistral-7B-v0.3": ("Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3-Instruct"),
    "Mistral-Nemo-12B": ("Mistral-Nemo-Instruct-2407",),
    "Mistral-Small-24B": ("Mistral-Small-24B-Base-2501",),
    "Mixtral-8x7B-v0.1": ("Mixtral-8x7B", "Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B-v0.1-Instruct"),
    "Mixtral-8x22B-v0.1": ("Mixtral-8x22B",),
}

_EVERY: Mapping[str, object] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_EVERY_MIXTRAL = {
    **_EVERY,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_MISTRAL_4: dict[str, object] = {
    "architectures": ["Mistral4ForCausalLM"],
    "model_type": "mistral4",
    "dtype": "bfloat16",
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "q_lora_rank": 1024,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1048576,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
        "partial_rotary_factor": 0.5,
    },
    "tie_word_embeddings": False,
}


def presets() -> Iterator[Preset]:
    """Every bundled Mistral, and then Mixtral, by size; then Mistral 4."""
    for shared, rows in ((_EVERY, _MISTRAL), (_EVERY_MIXTRAL, _MIXTRAL)):
        for name, (parameters, *values) in rows.items():
            config = {**shared, **dict(zip(_COLUMNS, values, strict=True))}
            hf_id = f"mistralai/{_REPOSITORIES.get(name, name)}"
            yield Preset(name, hf_id, config, parameters, _ALIASES.get(name, ()))
    hf_id = "mistralai/Mistral-Small-4-119B-2603"
    yield Preset("Mistral-Small-4-119B", hf_id, _MISTRAL_4, 118_972_826_624)
