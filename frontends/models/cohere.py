"""Command and Aya of Cohere (text).

Shapes: the released configs. Totals: the checkpoints on huggingface.co/CohereLabs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("max_position_embeddings", "rope_theta", "logit_scale", "use_qk_norm"),
)
_ROWS: Mapping[str, tuple[float, ...]] = {  # parameters, then the columns
    "Command-R-35B": (34_980_831_232, 40, 8192, 64, 64, 22528, 8192, 8e6, 0.0625, False),
    "Command-R-08-2024": (32_296_476_672, 40, 8192, 64, 8, 24576, 131072, 4e6, 0.0625, False),
    "Command-R-Plus": (103_810_674_688, 64, 12288, 96, 8, 33792, 8192, 75e6, 0.833333, True),
    "Aya-Expanse-8B": (8_028_033_024, 32, 4096, 32, 8, 14336, 8192, 1e4, 0.125, False),
}
_COHERE_2: Mapping[str, tuple[float, ...]] = {
    "Command-R-7B": (8_028_033_024, 32, 4096, 32, 8, 14336, 132096, 5e4, 0.25),
    "Command-A": (111_057_580_032, 64, 12288, 96, 8, 36864, 131072, 5e4, 0.25),
}
_REPOSITORIES = {
    "Command-R-35B": "c4ai-command-r-v01",
    "Command-R-08-2024": "c4ai-command-r-08-2024",
    "Command-R-Plus": "c4ai-command-r-plus",
    "Aya-Expanse-8B": "aya-expanse-8b",
    "Command-R-7B": "c4ai-command-r7b-12-2024",
    "Command-A": "c4ai-command-a-03-2025",
}
_ALIASES = {
    "Command-R-35B": ("Command-R", "Command-R-v01"),
    "Command-R-Plus": ("c4ai-command-r-plus-08-2024",),
    "Aya-Expanse-8B": ("aya-23-8B",),
    "Command-R-7B": ("Command-R7B",),
}
_EVERY: Mapping[str, object] = {
    "vocab_size": 256000,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 4}


def presets() -> Iterator[Preset]:
    """Every bundled one, by age and size."""
    for name, (parameters, *values) in {**_ROWS, **_COHERE_2}.items():
        two = name in _COHERE_2
        kind: dict[str, object] = {"architectures": ["Cohere2ForCausalLM" if two else "CohereForCausalLM"]}
        kind |= {"model_type": "cohere2", **_WINDOWS} if two else {"model_type": "cohere"}
        config = {**kind, **_EVERY, **dict(zip(_COLUMNS, values, strict=False))}
        yield Preset(
            name, f"CohereLabs/{_REPOSITORIES[name]}", config, int(parameters), _ALIASES.get(name, ())
        )
