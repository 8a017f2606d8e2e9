"""Qwen1.5-MoE, Qwen2, Qwen2.5 and Qwen3 (text), dense and with experts.

Shapes: table 1 of each technical report (arXiv:2407.10671, 2412.15115, 2505.09388) and the released configs.
Totals: the checkpoints on huggingface.co/Qwen. Context lengths come from the model cards, since the base and
the Instruct configs of one size differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_SHAPE = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)

_QWEN2_COLUMNS = (*_SHAPE, "vocab_size", "tie_word_embeddings", "max_position_embeddings")
_QWEN2 = {  # parameters, then the columns
    "Qwen2-0.5B": (494_032_768, 24, 896, 14, 2, 4864, 151936, True, 32768),
    "Qwen2-1.5B": (1_543_714_304, 28, 1536, 12, 2, 8960, 151936, True, 32768),
    "Qwen2-7B": (7_615_616_512, 28, 3584, 28, 4, 18944, 152064, False, 131072),
    "Qwen2-72B": (72_706_203_648, 80, 8192, 64, 8, 29568, 152064, False, 131072),
    "Qwen2.5-0.5B": (494_032_768, 24, 896, 14, 2, 4864, 151936, True, 32768),
    "Qwen2.5-1.5B": (1_543_714_304, 28, 1536, 12, 2, 8960, 151936, True, 32768),
    "Qwen2.5-3B": (3_085_938_688, 36, 2048, 16, 2, 11008, 151936, True, 32768),
    "Qwen2.5-7B": (7_615_616_512, 28, 3584, 28, 4, 18944, 152064, False, 131072),
    "Qwen2.5-14B": (14_770_033_664, 48, 5120, 40, 8, 13824, 152064, False, 131072),
    "Qwen2.5-32B": (32_763_876_352, 64, 5120, 40, 8, 27648, 152064, False, 131072),
    "Qwen2.5-72B": (72_706_203_648, 80, 8192, 64, 8, 29568, 152064, False, 131072),
}

_QWEN3_COLUMNS = (*_SHAPE, "tie_word_embeddings", "max_position_embeddings", "rope_theta")
_QWEN3 = {
    "Qwen3-0.6B": (596_049_920, 28, 1024, 16, 8, 3072, True, 40960, 1e6),
    "Qwen3-1.7B": (1_720_574_976, 28, 2048, 16, 8, 6144, True, 40960, 1e6),
    "Qwen3-4B": (4_022_468_096, 36, 2560, 32, 8, 9728, True, 40960, 1e6),
    "Qwen3-4B-Instruct-2507": (4_022_468_096, 36, 2560, 32, 8, 9728, True, 262144, 5e6),
    "Qwen3-8B": (8_190_735_360, 36, 4096, 32, 8, 12288, False, 40960, 1e6),
    "Qwen3-14B": (14_768_307_200, 40, 5120, 40, 8, 17408, False, 40960, 1e6),
    "Qwen3-32B": (32_762_123_264, 64, 5120, 64, 8, 25600, False, 40960, 1e6),
}

# Every layer routes: intermediate_size is the width of the dense layers that these models do not have.
_MOE_COLUMNS = (
    *_SHAPE,
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "max_position_embeddings",
    "rope_theta",
)
_MOE = {
    "Qwen3-30B-A3B": (30_532_122_624, 48, 2048, 32, 4, 6144, 128, 8, 768, 40960, 1e6),
    "Qwen3-30B-A3B-Instruct-2507": (30_532_122_624, 48, 2048, 32, 4, 6144, 128, 8, 768, 262144, 1e7),
    "Qwen3-Coder-30B-A3B-Instruct": (30_532_122_624, 48, 2048, 32, 4, 5472, 128, 8, 768, 262144, 1e7),
    "Qwen3-235B-A22B": (235_093_634_560, 94, 4096, 64, 4, 12288, 128, 8, 1536, 40960, 1e6),
    "Qwen3-235B-A22B-Instruct-2507": (235_093_634_560, 94, 4096, 64, 4, 12288, 128, 8, 1536, 262144, 5e6),
    "Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, 62, 6144, 96, 8, 8192, 160, 8, 2560, 262144, 1e7),
}

_MOE_2_COLUMNS = (*_MOE_COLUMNS[:8], "shared_expert_intermediate_size", *_MOE_COLUMNS[8:])
_MOE_2 = {
    "Qwen1.5-MoE-A2.7B": (14_315_784_192, 24, 2048, 16, 16, 5632, 60, 4, 1408, 5632, 8192, 1e6),
    "Qwen2-57B-A14B": (57_408_658_944, 28, 3584, 28, 4, 18944, 64, 8, 2560, 20480, 65536, 1e6),
}

_EVERY: Mapping[str, object] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "use_sliding_window": False,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
_EVERY_QWEN2 = {
    **_EVERY,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rope_theta": 1e6,
}
_EVERY_QWEN3 = {
    **_EVERY,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "attention_bias": False,
    "vocab_size": 151936,
}
_EVERY_MOE = {
    **_EVERY_QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}

_EVERY_MOE_2 = {
    **_EVERY_QWEN2,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "vocab_size": 151936,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}

# Tuned from, or shaped as, a Qwen2.5 of this size.
_KIN = {
    "Qwen2.5-14B": ("DeepSeek-R1-Distill-Qwen-14B",),
    "Qwen2.5-32B": ("DeepSeek-R1-Distill-Qwen-32B", "QwQ-32B"),
}
_WITHOUT_BASE = {"Qwen3-32B", "Qwen3-235B-A22B"}


def _aliases(name: str) -> tuple[str, ...]:
    if name.startswith("Qwen1.5-"):
        return (f"{name}-Chat",)
    if name.startswith("Qwen2-"):
        return (f"{name}-Instruct",)
    if name.startswith("Qwen2.5-"):
        coder = name.replace("Qwen2.5", "Qwen2.5-Coder")
        coders = () if name.endswith("72B") else (coder, f"{coder}-Instruct")
        return (f"{name}-Instruct", *coders, *_KIN.get(name, ()))
    if name.endswith("-Instruct-2507"):
        return (name.replace("Instruct", "Thinking"),)
    if name.endswith("-Instruct"):
        return (name.removesuffix("-Instruct"),)
    return () if name in _WITHOUT_BASE else (f"{name}-Base",)


def presets() -> Iterator[Preset]:
    """Every bundled Qwen, by generation, the dense ones first."""
    tables: list[tuple[Mapping[str, object], tuple[str, ...], Mapping[str, tuple[float, ...]]]] = [
        (_EVERY_QWEN2, _QWEN2_COLUMNS, _QWEN2),
        (_EVERY_MOE_2, _MOE_2_COLUMNS, _MOE_2),
        (_EVERY_QWEN3, _QWEN3_COLUMNS, _QWEN3),
        (_EVERY_MOE, _MOE_COLUMNS, _MOE),
    ]
    for shared, columns, rows in tables:
        for name, (parameters, *values) in rows.items():
            config = {**shared, **dict(zip(columns, values, strict=True))}
            yield Preset(name, f"Qwen/{name}", config, int(parameters), _aliases(name))
