"""Tiny models with states: scans, delta rules, short convolutions, alone and between attention."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "vocab_size": 13,
}
_ATTENTION = {
    **_SIZES,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
_MAMBA = {**_SIZES, "architectures": ["MambaForCausalLM"], "model_type": "mamba", "state_size": 5}
_MAMBA2 = {
    **_SIZES,
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "state_size": 5,
    "num_heads": 6,
    "head_dim": 8,
    "n_groups": 2,
    "chunk_size": 4,
}
_LFM2 = {
    **_ATTENTION,
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 4,
}

CASES: dict[str, dict[str, Any]] = {
    "mamba": _MAMBA,
    "mamba, biases, a rank of its own": {
        **_MAMBA,
        "use_bias": True,
        "time_step_rank": 3,
        "conv_kernel": 3,
        "tie_word_embeddings": False,
    },
    "mamba2": _MAMBA2,
    "mamba2, biases, one group": {**_MAMBA2, "n_groups": 1, "use_bias": True, "use_conv_bias": False},
    "lfm2": _LFM2,
    "lfm2, biases, taps of its own": {**_LFM2, "conv_bias": True, "conv_L_cache": 4},
}
