"""Llama 2, 3, 3.1, 3.2, 3.3 (text), and the reading that all decoder families share."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmir.dtype import dtype

from .blocks import Decoder, Rope
from .config import Config
from .family import family

# Which numbers each kind of scaling has, in the order in which ops keep them (`llmir.ops.rope.Rotary`).
_TRAINED = "original_max_position_embeddings"
ROPE_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _TRAINED),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _TRAINED),
    "yarn": ("factor", _TRAINED, "beta_fast", "beta_slow", "attention_factor"),
}

# Fields of kindred families that change the computation, and the values with which they do not.
_SOFTCAP, _SCALED = "soft-capped logits", "scaled activations"
_ACTING: dict[str, tuple[tuple[object, ...], str]] = {
    "attn_logit_softcapping": ((None,), _SOFTCAP),  # Gemma 2
    "final_logit_softcapping": ((None,), _SOFTCAP),
    "kv_lora_rank": ((None, 0), "latent attention"),  # DeepSeek
    "attention_chunk_size": ((None,), "chunked attention"),  # Llama 4
    "no_rope_layers": ((None,), "layers without positions"),
    "embedding_multiplier": ((None, 1.0), _SCALED),  # Granite
    "residual_multiplier": ((None, 1.0), _SCALED),
    "logits_scaling": ((None, 1.0), _SCALED),
    "logit_scale": ((None, 1.0), _SCALED),  # Cohere
    "n_shared_experts": ((None, 0), "a shared expert"),  # DeepSeek
    "shared_expert_intermediate_size": ((None, 0), "a shared expert"),  # Qwen2 MoE
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_MOST_LAYERS = 10_000


def layers(config: Config) -> int:
    """How many layers there are; the deepest published models have some hundred."""
    return config.integer("num_hidden_layers", maximum=_MOST_LAYERS)


def rope(config: Config, positions: int) -> Rope:
    """Rotary positions, in either spelling: `rope_theta` with `rope_scaling`, or `rope_parameters`.

    `positions` is the family's default for `max_position_embeddings`.
    """
    inner = config.nested("rope_parameters") or config.nested("rope_scaling")
    theta = config.number("rope_theta", 10000.0)
    if inner is None:
        return Rope(theta)
    theta = inner.number("rope_theta", theta)
    key = "rope_type" if "rope_type" in inner else "type"
    kind = inner.text(key, "default")
    inner.unmodelled(key, tuple(ROPE_FACTORS), "rotary scaling")
    inner.ignore("type")
    defaults: dict[str, float] = {}
    if kind in ("dynamic", "yarn"):
        defaults[_TRAINED] = config.optional_integer("max_position_embeddings") or positions
    if kind == "yarn":  # arXiv:2309.00071, and its eq. 22 for the attention factor
        amplitude = 0.1 * math.log(max(inner.number("factor"), 1.0)) + 1.0
        defaults |= {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": amplitude}
    factors = tuple(inner.number(name, defaults.get(name)) for name in ROPE_FACTORS.get(kind, ()))
    return Rope(theta, "none" if kind == "default" else kind, factors)


def heads(config: Config, kv_default: int | None, head_dim_default: int | None) -> tuple[int, int, int]:
    """(heads, key/value heads, head size); null means one key/value head a head, and hidden / heads."""
    hidden, count = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv = _given(config, "num_key_value_heads", kv_default) or count
    if count % kv:
        raise config.error("num_key_value_heads", f"{kv} does not divide {count} attention heads")
    size = _given(config, "head_dim", head_dim_default)
    if size is None and hidden % count:
        fact = f"{count} does not divide hidden_size {hidden}, and there is no head_dim"
        raise config.error("num_attention_heads", fact)
    size = size or hidden // count
    if size % 2:
        raise config.error("head_dim", f"rotary positions need an even head size, got {size}")
    return count, kv, size


def _given(config: Config, key: str, default: int | None) -> int | None:
    """An integer or null; where absent, the family's default, which is noted."""
    if default is None or key in config:
        return config.optional_integer(key)
    return config.assumed(key, default)


def _refuse_unmodelled(config: Config, head_dim: int, *, qk_norm: bool, experts: bool) -> None:
    """An error for each field that would change what a llama-like layer computes."""
    config.unmodelled("hidden_act", ("silu", "swish"), "activation")
    config.unmodelled("partial_rotary_factor", (None, 1.0), "rotary positions on part of a head")
    for key, (neutral, reason) in _ACTING.items():
        config.unmodelled(key, neutral, reason)
    for key, usual in (("query_pre_attn_scalar", head_dim), ("attention_multiplier", head_dim**-0.5)):
        config.unmodelled(key, (None, usual), "another scale of the attention scores")
    # Qwen3's own configs state the norm that they have anyway.
    config.unmodelled("use_qk_norm", (None, qk_norm), "normalized q and k, as in Llama 4")
    for key in () if experts else _EXPERTS:
        config.unmodelled(key, (None, 0), "experts in a dense family")
    config.every("layer_types", "full_attention")


def decoder(
    config: Config,
    architecture: str,
    *,
    positions_default: int = 2048,
    kv_default: int | None = None,
    head_dim_default: int | None = None,
    **differences: object,
) -> Decoder:
    """What llama-like configs have in common; `differences` are the family's own fields of `Decoder`."""
    count, kv, head_dim = heads(config, kv_default, head_dim_default)
    normed, routed = bool(differences.get("qk_norm")), "experts" in differences
    _refuse_unmodelled(config, head_dim, qk_norm=normed, experts=routed)
    common: dict[str, object] = {
        "name": config.name,
        "architecture": architecture,
        "dtype": dtype(config.dtype()),
        "vocab": config.integer("vocab_size"),
        "hidden": config.integer("hidden_size"),
        "heads": count,
        "kv_heads": kv,
        "head_dim": head_dim,
        "intermediate": config.integer("intermediate_size"),
        "moe": (False,) * layers(config),
        "rope": rope(config, positions_default),
        "eps": config.number("rms_norm_eps", 1e-6),
        "positions": config.optional_integer("max_position_embeddings"),
        "tied": config.flag("tie_word_embeddings", False),
    }
    make: Callable[..., Decoder] = Decoder
    return make(**{**common, **differences})


@family("LlamaForCausalLM", "llama")
def llama(config: Config) -> Decoder:
    """LlamaForCausalLM. `attention_bias` is on all four projections."""
    config.unmodelled("sliding_window", (None,), "sliding-window attention")
    bias = config.flag("attention_bias", False)
    return decoder(
        config,
        "LlamaForCausalLM",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
