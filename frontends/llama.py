"""Llama 2, 3, 3.1, 3.2, 3.3 (text), and the reading that all decoder families share."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmir.dtype import dtype

from .blocks import Decoder, Rope
from .config import Config

# Which numbers each kind of scaling has, in the order in which ops keep them (`llmir.ops.rope.Rotary`).
_TRAINED = "original_max_position_embeddings"
ROPE_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _TRAINED),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _TRAINED),
    "yarn": ("factor", _TRAINED, "beta_fast", "beta_slow", "attention_factor"),
}


def rope(config: Config) -> Rope:
    """Rotary positions, in either spelling: `rope_theta` with `rope_scaling`, or `rope_parameters`."""
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
        defaults[_TRAINED] = config.integer("max_position_embeddings", 2048)
    if kind == "yarn":  # arXiv:2309.00071, and its eq. 22 for the attention factor
        amplitude = 0.1 * math.log(max(inner.number("factor"), 1.0)) + 1.0
        defaults |= {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": amplitude}
    factors = tuple(inner.number(name, defaults.get(name)) for name in ROPE_FACTORS.get(kind, ()))
    return Rope(theta, "none" if kind == "default" else kind, factors)


def heads(config: Config, kv_default: int | None, head_dim_default: int | None) -> tuple[int, int, int]:
    """(heads, key/value heads, head size); null means one key/value head a head, and hidden / heads."""
    hidden, count = config.integer("hidden_size"), config.integer("num_attention_heads")
    given = "num_key_value_heads" in config
    kv = (config.optional_integer("num_key_value_heads") if given else kv_default) or count
    if count % kv:
        raise config.error("num_key_value_heads", f"{kv} does not divide {count} attention heads")
    size = config.optional_integer("head_dim") if "head_dim" in config else head_dim_default
    if size is None and hidden % count:
        fact = f"{count} does not divide hidden_size {hidden}, and there is no head_dim"
        raise config.error("num_attention_heads", fact)
    size = size or hidden // count
    if size % 2:
        raise config.error("head_dim", f"rotary positions need an even head size, got {size}")
    return count, kv, size


def decoder(
    config: Config,
    architecture: str,
    *,
    kv_default: int | None = None,
    head_dim_default: int | None = None,
    **differences: object,
) -> Decoder:
    """What llama-like configs have in common; `differences` are the family's own fields of `Decoder`."""
    config.unmodelled("hidden_act", ("silu", "swish"), "activation")
    config.unmodelled("partial_rotary_factor", (None, 1.0), "rotary positions on part of a head")
    config.ignore("sliding_window")  # acts only with use_sliding_window or layer_types, which are looked at
    for i, kind in enumerate(config.texts("layer_types")):
        if kind != "full_attention":
            config.unmodelled("layer_types", (), f"layer {i} is {kind}")
    count, kv, head_dim = heads(config, kv_default, head_dim_default)
    layers = config.integer("num_hidden_layers")
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
        "moe": (False,) * layers,
        "rope": rope(config),
        "eps": config.number("rms_norm_eps", 1e-6),
        "positions": config.integer("max_position_embeddings", 2048),
        "tied": config.flag("tie_word_embeddings", False),
    }
    make: Callable[..., Decoder] = Decoder
    return make(**{**common, **differences})


def llama(config: Config) -> Decoder:
    """LlamaForCausalLM. `attention_bias` is on all four projections."""
    bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    return decoder(config, "LlamaForCausalLM", qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)
