"""Llama 1 to 3.3 (text).

Shapes: table 2 of "LLaMA" (arXiv:2302.13971), table 1 of "Llama 2" (arXiv:2307.09288) with the released
configs, table 3 of "The Llama 3 Herd of Models" (arXiv:2407.21783), and the model cards of 3.2 and 3.3.
Totals: the checkpoints on huggingface.co/meta-llama, for Llama 1 on /huggyllama. The 405B is the later
release, which stores 8 key/value heads once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .preset import Preset

# parameters, layers, hidden, heads, key/value heads, mlp
_LLAMA_1 = {
    "7B": (6_738_415_616, 32, 4096, 32, 32, 11008),
    "13B": (13_015_864_320, 40, 5120, 40, 40, 13824),
    "30B": (32_528_943_616, 60, 6656, 52, 52, 17920),
    "65B": (65_285_660_672, 80, 8192, 64, 64, 22016),
}
_LLAMA_2 = {
    "7B": (6_738_415_616, 32, 4096, 32, 32, 11008),
    "13B": (13_015_864_320, 40, 5120, 40, 40, 13824),
    "70B": (68_976_648_192, 80, 8192, 64, 8, 28672),
}
_LLAMA_3 = {
    "8B": (8_030_261_248, 32, 4096, 32, 8, 14336),
    "70B": (70_553_706_496, 80, 8192, 64, 8, 28672),
}
_LLAMA_3_1 = {**_LLAMA_3, "405B": (405_853_388_800, 126, 16384, 128, 8, 53248)}
_LLAMA_3_2 = {
    "1B": (1_235_814_400, 16, 2048, 32, 8, 8192),
    "3B": (3_212_749_824, 28, 3072, 24, 8, 8192),
}
_LLAMA_3_3 = {"70B": _LLAMA_3["70B"]}

_EVERY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
_EVERY_2 = {
    **_EVERY,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
}
_EVERY_1 = {**_EVERY_2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
_EVERY_3 = {
    **_EVERY,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}

# Releases of other publishers, for some sizes (lmsys.org/blog/2023-03-30-vicuna).
_TUNED = {
    ("Llama-{size}", "7B"): ("vicuna-7b-v1.3",),
    ("Llama-{size}", "13B"): ("vicuna-13b-v1.3",),
    ("Llama-{size}", "30B"): ("Llama-33B", "vicuna-33b-v1.3"),
    ("Llama-2-{size}", "7B"): ("vicuna-7b", "vicuna-7b-v1.5", "vicuna-7b-v1.5-16k"),
    ("Llama-2-{size}", "13B"): ("vicuna-13b", "vicuna-13b-v1.5", "vicuna-13b-v1.5-16k"),
}


def _stretched(factor: float) -> dict[str, object]:
    """Llama 3 with its 8192 positions stretched to 131072."""
    rope = {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": 8192}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {**_EVERY_3, "max_position_embeddings": 131072, "rope_scaling": rope}


def _generation(
    name: str,
    hf_id: str,
    aliases: Sequence[str],
    shared: Mapping[str, object],
    rows: Mapping[str, tuple[int, int, int, int, int, int]],
) -> Iterator[Preset]:
    """The sizes of one generation; `{size}` in a name represents `8B`, `{lower}` represents `8b`."""
    for size, (parameters, layers, hidden, heads, kv_heads, mlp) in rows.items():
        config = {
            **shared,
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": hidden // heads,
            "intermediate_size": mlp,
        }
        templates = (name, hf_id, *aliases, *_TUNED.get((name, size), ()))
        display, repository, *others = (t.format(size=size, lower=size.lower()) for t in templates)
        yield Preset(display, repository, config, parameters, tuple(others))


def presets() -> Iterator[Preset]:
    """Every bundled Llama, oldest and smallest first."""
    yield from _generation("Llama-{size}", "huggyllama/llama-{lower}", [], _EVERY_1, _LLAMA_1)
    yield from _generation(
        "Llama-2-{size}",
        "meta-llama/Llama-2-{lower}-hf",
        ["Llama-2-{size}-chat", "Llama-2-{size}-chat-hf"],
        _EVERY_2,
        _LLAMA_2,
    )
    yield from _generation(
        "Llama-3-{size}",
        "meta-llama/Meta-Llama-3-{size}",
        ["Llama-3-{size}-Instruct", "Meta-Llama-3-{size}-Instruct"],
        _EVERY_3,
        _LLAMA_3,
    )
    yield from _generation(
        "Llama-3.1-{size}",
        "meta-llama/Llama-3.1-{size}",
        ["Llama-3.1-{size}-Instruct", "Meta-Llama-3.1-{size}", "Meta-Llama-3.1-{size}-Instruct"],
        _stretched(8.0),
        _LLAMA_3_1,
    )
    yield from _generation(
        "Llama-3.2-{size}",
        "meta-llama/Llama-3.2-{size}",
        ["Llama-3.2-{size}-Instruct"],
        {**_stretched(32.0), "tie_word_embeddings": True},
        _LLAMA_3_2,
    )
    yield from _generation(
        "Llama-3.3-{size}",
        "meta-llama/Llama-3.3-{size}-Instruct",
        ["DeepSeek-R1-Distill-Llama-{size}"],
        _stretched(8.0),
        _LLAMA_3_3,
    )
