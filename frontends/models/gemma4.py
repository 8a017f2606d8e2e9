"""Gemma 3n and Gemma 4: the language models of the multimodal releases.

Shapes: the released configs. Totals: transformers' classes on the meta device (`scripts/preset_totals.py`).
For Gemma 3n these equal the checkpoints on huggingface.co/google without the towers, 983,281,504 parameters,
and without k, v and the norm of k in layers that read another layer's keys: the checkpoints store these
unused weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_LOCAL: Mapping[str, object] = {"rope_type": "default", "rope_theta": 10000.0}
_EVERY: Mapping[str, object] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144,
    "torch_dtype": "bfloat16",
}
_GEMMA_3N: Mapping[str, object] = {
    **_EVERY,
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "vocab_size": 262400,
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "sliding_window": 512,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "sliding_attention": _LOCAL,
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
    "altup_num_inputs": 4,
    "laurel_rank": 64,
}
_GEMMA_4: Mapping[str, object] = {
    **_EVERY,
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "global_head_dim": 512,
    "rope_parameters": {
        "sliding_attention": _LOCAL,
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}
_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("num_kv_shared_layers", "num_global_key_value_heads", "sliding_window", "max_position_embeddings"),
)
_LARGE: Mapping[str, object] = {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
_SPARSE = {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
# parameters, the fields outside of the columns, the columns
_MODELS: Mapping[str, tuple[int, Mapping[str, object], tuple[int | None, ...]]] = {
    "Gemma-4-E2B": (
        4_628_569_344,
        {"use_double_wide_mlp": True, "hidden_size_per_layer_input": 256},
        (35, 1536, 6144, 8, 1, 20, None, 512, 131072),
    ),
    "Gemma-4-E4B": (
        7_463_013_376,
        {"hidden_size_per_layer_input": 256},
        (42, 2560, 10240, 8, 2, 18, None, 512, 131072),
    ),
    "Gemma-4-26B-A4B": (
        25_233_141_760,
        {**_LARGE, **_SPARSE, "enable_moe_block": True},
        (30, 2816, 2112, 16, 8, 0, 2, 1024, 262144),
    ),
    "Gemma-4-31B": (30_697_345_280, _LARGE, (60, 5376, 21504, 32, 16, 0, 4, 1024, 262144)),
}
# layers, width, layers that use earlier keys
_ELASTIC = {"Gemma-3n-E2B": (4_435_182_688, 30, 8192, 10), "Gemma-3n-E4B": (6_835_235_568, 35, 16384, 15)}


def _types(layers: int, every: int) -> list[str]:
    """A window in all layers except each `every`-th."""
    return ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(layers)]


def presets() -> Iterator[Preset]:
    """Every bundled one, by age and size."""
    for name, (parameters, layers, width, shared) in _ELASTIC.items():
        own: dict[str, object] = {
            "num_hidden_layers": layers,
            "intermediate_size": [width] * layers,
            "num_kv_shared_layers": shared,
            "layer_types": _types(layers, 5),
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10),
        }
        yield Preset(
            name,
            f"google/{name.replace('Gemma', 'gemma')}",
            {**_GEMMA_3N, **own},
            parameters,
            (f"{name}-it",),
        )
    for name, (parameters, more, values) in _MODELS.items():
        own = dict(zip(_COLUMNS, values, strict=True))
        own["layer_types"] = _types(values[0] or 0, 5 if name == "Gemma-4-E2B" else 6)
        yield Preset(
            name,
            f"google/{name.replace('Gemma', 'gemma')}",
            {**_GEMMA_4, **own, **more},
            parameters,
            (f"{name}-it",),
        )
