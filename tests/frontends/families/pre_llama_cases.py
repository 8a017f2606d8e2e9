"""Tiny models of the families before Llama, for `transformers_cases`."""

from __future__ import annotations

from typing import Any

_SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 13}
_LONG = {**_SIZES, "max_position_embeddings": 20, "intermediate_size": 20}
_GPT = {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 20, "vocab_size": 13}


def _of(model_type: str, architecture: str, sizes: dict[str, Any] = _SIZES, **more: Any) -> dict[str, Any]:
    return {**sizes, "architectures": [architecture], "model_type": model_type, **more}


_GPT2 = _of("gpt2", "GPT2LMHeadModel", _GPT)
_BIGCODE = _of("gpt_bigcode", "GPTBigCodeForCausalLM", _GPT)
_GPTJ = _of("gptj", "GPTJForCausalLM", _GPT, rotary_dim=4)
_OPT = _of("opt", "OPTForCausalLM", ffn_dim=20, max_position_embeddings=20, word_embed_proj_dim=24)
_NEOX = _of("gpt_neox", "GPTNeoXForCausalLM", _LONG, rotary_pct=0.34)
_BLOOM = _of("bloom", "BloomForCausalLM", {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 13})
_FALCON = _of("falcon", "FalconForCausalLM", max_position_embeddings=20)
_PERSIMMON = _of("persimmon", "PersimmonForCausalLM", {**_LONG, "hidden_size": 32})
_PHI = _of("phi", "PhiForCausalLM", {**_LONG, "hidden_size": 32})
_STARCODER2 = _of("starcoder2", "Starcoder2ForCausalLM", _LONG, num_key_value_heads=2)
_STABLELM = _of("stablelm", "StableLmForCausalLM", {**_LONG, "hidden_size": 32}, num_key_value_heads=2)
_NEMOTRON = _of("nemotron", "NemotronForCausalLM", {**_LONG, "hidden_size": 32}, num_key_value_heads=2)
_MPT = _of(
    "mpt", "MptForCausalLM", {"d_model": 24, "n_heads": 4, "n_layers": 2, "vocab_size": 13, "max_seq_len": 20}
)
_DBRX = _of(
    "dbrx",
    "DbrxForCausalLM",
    {"d_model": 24, "n_heads": 4, "n_layers": 2, "vocab_size": 13, "max_seq_len": 20},
    attn_config={"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 10000.0},
    ffn_config={"ffn_hidden_size": 20, "moe_num_experts": 5, "moe_top_k": 2},
)
_OLMO = _of("olmo", "OlmoForCausalLM", _LONG)

OLDER: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gpt2, narrow, unscaled, untied": {
        **_GPT2,
        "n_inner": 10,
        "activation_function": "relu",
        "scale_attn_weights": False,
        "tie_word_embeddings": False,
    },
    "gpt_bigcode": _BIGCODE,
    "gpt_bigcode, a head of keys each": {**_BIGCODE, "multi_query": False},
    "gptj": _GPTJ,
    "gptj, whole heads": {**_GPTJ, "rotary_dim": 6},
    "codegen": {
        **_GPTJ,
        "model_type": "codegen",
        "architectures": ["CodeGenForCausalLM"],
        "n_head": 8,
        "n_embd": 32,
    },
    "opt": _OPT,
    "opt, no biases, gelu": {
        **_OPT,
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "activation_function": "gelu",
    },
    "gpt_neox": _NEOX,
    "gpt_neox, one after the other": {**_NEOX, "use_parallel_residual": False, "rotary_pct": 1.0},
    "bloom": _BLOOM,
    "falcon": _FALCON,
    "falcon, new architecture": {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, new architecture, one norm": {
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
        "ffn_hidden_size": 20,
    },
    "falcon, alibi": {
        **_FALCON,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    },
    "persimmon": _PERSIMMON,
    "phi": _PHI,
    "phi, normalized q and k": {**_PHI, "qk_layernorm": True, "num_key_value_heads": 2},
    "starcoder2": _STARCODER2,
    "starcoder2, a window of 3": {**_STARCODER2, "sliding_window": 3, "use_bias": False},
    "stablelm": _STABLELM,
    "stablelm, side by side": {**_STABLELM, "use_parallel_residual": True, "use_qkv_bias": True},
    "nemotron": _NEMOTRON,
    "nemotron, biases": {**_NEMOTRON, "attention_bias": True, "mlp_bias": True, "head_dim": 6},
    "mpt": _MPT,
    "mpt, 6 heads, clipped": {**_MPT, "n_heads": 6, "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.4}},
    "dbrx": _DBRX,
    "olmo, clipped": {**_OLMO, "clip_qkv": 0.7},
}
