"""Mamba and hybrids of it with attention: shapes and totals of the released checkpoints on huggingface.co."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmir.frontends.presets.preset import Preset

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


def presets() -> Iterator[Preset]:
    """Every bundled model that keeps states."""
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
