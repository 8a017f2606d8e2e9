"""OLMo 2 and 3 (text).

Shapes: arXiv:2501.00656, table 2, and the released configs. Totals: the checkpoints on
huggingface.co/allenai.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_COLUMNS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    "vocab_size",
)
_ROWS = {  # the release, parameters, then the columns
    "OLMo-2-1B": ("OLMo-2-0425-1B", 1_484_916_736, 16, 2048, 16, 16, 8192, 100352),
    "OLMo-2-7B": ("OLMo-2-1124-7B", 7_298_617_344, 32, 4096, 32, 32, 11008, 100352),
    "OLMo-2-13B": ("OLMo-2-1124-13B", 13_716_198_400, 40, 5120, 40, 40, 13824, 100352),
    "OLMo-2-32B": ("OLMo-2-0325-32B", 32_234_279_936, 64, 5120, 40, 8, 27648, 100352),
    "OLMo-3-7B": ("Olmo-3-1025-7B", 7_298_011_136, 32, 4096, 32, 32, 11008, 100278),
    "OLMo-3-32B": ("Olmo-3-1125-32B", 32_233_522_176, 64, 5120, 40, 8, 27648, 100278),
}
_EVERY: Mapping[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_STRETCHED: Mapping[str, object] = {
    "sliding_window": 4096,
    "max_position_embeddings": 65536,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.2079441541679836,
    },
}


def presets() -> Iterator[Preset]:
    """Every bundled one, by age and size."""
    for name, (release, parameters, *values) in _ROWS.items():
        age = name[5]
        more = _STRETCHED if age == "3" else {"max_position_embeddings": 4096}
        own = dict(zip(_COLUMNS, values, strict=True))
        kind = {"architectures": [f"Olmo{age}ForCausalLM"], "model_type": f"olmo{age}"}
        yield Preset(
            name, f"allenai/{release}", {**kind, **_EVERY, **own, **more}, int(parameters), (release,)
        )
