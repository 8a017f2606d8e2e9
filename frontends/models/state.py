"""Mamba, and hybrids of state-space or linear-attention layers with attention.

Shapes and totals: the released checkpoints on huggingface.co.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .preset import Preset

_MAMBA = {  # hidden, layers, parameters of state-spaces/mamba-*-hf (arXiv:2312.00752, table 12)
    "130m": (768, 24, 129_135_360),
    "370m": (1024, 48, 371_516_416),
    "790m": (1536, 48, 793_204_224),
    "1.4b": (2048, 48, 1_372_178_432),
    "2.8b": (2560, 64, 2_768_345_600),
}
_LFM2 = {  # hidden, layers, MLP, query heads, layers with attention, parameters of LiquidAI/LFM2-*
    "350M": (1024, 16, 6656, 16, (2, 5, 8, 10, 12, 14), 354_483_968),
    "700M": (1536, 16, 10240, 24, (2, 5, 8, 10, 12, 14), 742_489_344),
    "1.2B": (2048, 16, 12288, 32, (2, 5, 8, 10, 12, 14), 1_170_340_608),
}
_EVERY: Mapping[str, object] = {"torch_dtype": "bfloat16"}
_CODESTRAL = {
    **_EVERY,
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
}
_QWEN3_NEXT = {
    **_EVERY,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 262144,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
_JAMBA = {
    **_EVERY,
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_dt_rank": 256,
    "max_position_embeddings": 262144,
    "vocab_size": 65536,
}


_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "num_key_value_heads")


def _config(name: str, model_type: str, sizes: tuple[int, ...], **fields: object) -> dict[str, object]:
    """In bf16, for a class; sizes are in the order of `_SIZES`, and the last two are those of attention."""
    own = dict(zip(_SIZES, sizes, strict=False))
    return {**_EVERY, "architectures": [f"{name}ForCausalLM"], "model_type": model_type, **own, **fields}


_FALCON_MAMBA = _config("FalconMamba", "falcon_mamba", (4096, 64, 65024), tie_word_embeddings=False)
_ZAMBA2 = _config(
    "Zamba2",
    "zamba2",
    (2048, 38, 32000, 32, 32),
    layers_block_type=(["mamba"] * 5 + ["hybrid"]) * 6 + ["mamba"] * 2,
    n_mamba_heads=64,
    mamba_d_state=128,
    use_shared_attention_adapter=True,
    use_mem_rope=True,
    max_position_embeddings=4096,
)
_BAMBA = _config(
    "Bamba",
    "bamba",
    (4096, 32, 128256, 32, 8),
    intermediate_size=14336,
    attn_layer_indices=[9, 18, 27],
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_heads=128,
    rms_norm_eps=1e-5,
)
_LFM2_MOE = _config(
    "Lfm2Moe",
    "lfm2_moe",
    (2048, 24, 65536, 32, 8),
    intermediate_size=7168,
    moe_intermediate_size=1792,
    num_experts=32,
    num_experts_per_tok=4,
    num_dense_layers=2,
    layer_types=["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
    max_position_embeddings=128_000,
)
_NEMOTRON_H = _config(
    "NemotronH",
    "nemotron_h",
    (4096, 52, 131072, 32, 8),
    intermediate_size=21504,
    head_dim=128,
    hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    chunk_size=128,
    max_position_embeddings=8192,
)
_NEMOTRON_NANO_2 = {
    **_NEMOTRON_H,
    "hidden_size": 4480,
    "num_hidden_layers": 56,
    "num_attention_heads": 40,
    "intermediate_size": 15680,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "max_position_embeddings": 131072,
}
_GRANITE = _config(
    "GraniteMoeHybrid",
    "granitemoehybrid",
    (1536, 40, 100352, 12, 4),
    intermediate_size=512,
    shared_intermediate_size=1024,
    num_local_experts=64,
    num_experts_per_tok=6,
    layer_types=["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    position_embedding_type="nope",
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_heads=48,
    attention_multiplier=0.0078125,
    embedding_multiplier=12,
    residual_multiplier=0.22,
    logits_scaling=6,
    rms_norm_eps=1e-5,
    max_position_embeddings=131072,
    tie_word_embeddings=True,
)
_OLMO_HYBRID = _config(
    "OlmoHybrid",
    "olmo_hybrid",
    (3840, 32, 100352, 30, 30),
    intermediate_size=11008,
    linear_key_head_dim=96,
    linear_value_head_dim=192,
    max_position_embeddings=65536,
)
_MINIMAX = _config(
    "MiniMax",
    "minimax",
    (6144, 80, 200064, 64, 8),
    intermediate_size=9216,
    head_dim=128,
    num_local_experts=32,
    num_experts_per_tok=2,
    layer_types=(["linear_attention"] * 7 + ["full_attention"]) * 10,
    rope_theta=1e7,
    max_position_embeddings=10_240_000,
)
_FULL = (4, 8, 12, 16, 20, 24, 27)  # of the layers, counted from 1
_KIMI = _config(
    "KimiLinear",
    "kimi_linear",
    (2304, 27, 163840, 32, 32),
    intermediate_size=9216,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    num_experts=256,
    num_experts_per_token=8,
    num_shared_experts=1,
    moe_intermediate_size=1024,
    routed_scaling_factor=2.446,
    linear_attn_config={
        "full_attn_layers": list(_FULL),
        "kda_layers": [i for i in range(1, 28) if i not in _FULL],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
    model_max_length=1_048_576,
)
_QWEN3_5: Mapping[str, object] = {"head_dim": 256, "rope_theta": 1e7, "max_position_embeddings": 262144}
_QWEN3_5_MOE = _config(
    "Qwen3_5Moe",
    "qwen3_5_moe_text",
    (2048, 40, 248320, 16, 2),
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    **_QWEN3_5,
)
_QWEN3_5_LARGE = _config(
    "Qwen3_5Moe",
    "qwen3_5_moe_text",
    (4096, 60, 248320, 32, 2),
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=1024,
    shared_expert_intermediate_size=1024,
    linear_num_value_heads=64,
    **_QWEN3_5,
)
_QWEN3_5_DENSE = {  # hidden, layers, query heads, MLP, value heads of delta nets, parameters
    "9B": (4096, 32, 16, 12288, 32, 8_953_803_264),
    "27B": (5120, 64, 24, 17408, 48, 26_895_998_464),
}
_MINIMAX_TOO = ("MiniMax-M1-40k", "MiniMax-Text-01")
_OTHERS = (  # name, id, config, parameters, other ids
    ("Falcon-Mamba-7B", "tiiuae/falcon-mamba-7b", _FALCON_MAMBA, 7_272_665_088, ()),
    ("Zamba2-1.2B", "Zyphra/Zamba2-1.2B", _ZAMBA2, 1_215_064_704, ()),
    ("Bamba-9B", "ibm-fms/Bamba-9B", _BAMBA, 9_780_235_392, ("Bamba-9B-1.8T",)),
    ("LFM2-8B-A1B", "LiquidAI/LFM2-8B-A1B", _LFM2_MOE, 8_339_929_856, ()),
    ("Nemotron-H-8B", "nvidia/Nemotron-H-8B-Base-8K", _NEMOTRON_H, 8_100_852_736, ()),
    ("Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", _NEMOTRON_NANO_2, 8_888_227_328, ()),
    ("Granite-4.0-H-Tiny", "ibm-granite/granite-4.0-h-tiny", _GRANITE, 6_939_037_248, ("Granite-4-H-Tiny",)),
    ("OLMo-Hybrid-7B", "allenai/Olmo-Hybrid-7B", _OLMO_HYBRID, 7_430_870_688, ("OLMo-hybrid",)),
    ("MiniMax-M1", "MiniMaxAI/MiniMax-M1-80k", _MINIMAX, 456_089_655_296, _MINIMAX_TOO),
    ("Kimi-Linear-48B-A3B", "moonshotai/Kimi-Linear-48B-A3B-Instruct", _KIMI, 49_122_675_072, ()),
    ("Qwen3.5-35B-A3B", "Qwen/Qwen3.5-35B-A3B", _QWEN3_5_MOE, 34_660_610_688, ()),
    ("Qwen3.5-397B-A17B", "Qwen/Qwen3.5-397B-A17B", _QWEN3_5_LARGE, 396_346_350_336, ("Qwen3.5-397B",)),
)


def presets() -> Iterator[Preset]:
    """Every bundled model with recurrent states."""
    for size, (hidden, layers, parameters) in _MAMBA.items():
        config = {
            **_EVERY,
            "architectures": ["MambaForCausalLM"],
            "model_type": "mamba",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "vocab_size": 50280,
        }
        hf_id, aliases = f"state-spaces/mamba-{size}-hf", (f"mamba-{size}",)
        yield Preset(f"Mamba-{size.upper()}", hf_id, config, parameters, aliases)
    yield Preset("Mamba-Codestral-7B", "mistralai/Mamba-Codestral-7B-v0.1", _CODESTRAL, 7_285_403_648)
    for size, (hidden, layers, wide, heads, chosen, parameters) in _LFM2.items():
        config = {
            **_EVERY,
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "intermediate_size": wide,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "full_attn_idxs": list(chosen),
            "rope_theta": 1e6,
            "max_position_embeddings": 128_000,
            "vocab_size": 65536,
        }
        yield Preset(f"LFM2-{size}", f"LiquidAI/LFM2-{size}", config, parameters)
    name = "Qwen3-Next-80B-A3B"
    names = tuple(f"{name}-{kind}" for kind in ("Instruct", "Thinking"))
    yield Preset(name, f"Qwen/{name}-Instruct", _QWEN3_NEXT, 79_674_391_296, names)
    yield Preset("Jamba-v0.1", "ai21labs/Jamba-v0.1", _JAMBA, 51_570_323_328)
    for size, (hidden, layers, heads, wide, values, parameters) in _QWEN3_5_DENSE.items():
        config = _config(
            "Qwen3_5",
            "qwen3_5_text",
            (hidden, layers, 248320, heads, 4),
            intermediate_size=wide,
            linear_num_value_heads=values,
            **_QWEN3_5,
        )
        yield Preset(f"Qwen3.5-{size}", f"Qwen/Qwen3.5-{size}", config, parameters)
    for other in _OTHERS:
        yield Preset(*other)
