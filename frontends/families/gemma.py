"""Gemma 1, 2 and 3 (text). Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from math import frexp, ldexp
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Rope
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, LayerLike, LayerTable, Norms
from llmir.frontends.layers.parts import (
    activation,
    all_but_every,
    attention,
    decoder,
    heads,
    layers,
    mlp,
    sliding_layers,
    window,
)
from llmir.frontends.layers.rope import ropes

SANDWICH = Norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
_MANTISSA = {"bf16": 8, "fp16": 11, "fp32": 24}
TANH = "gelu_pytorch_tanh"


def rounded(x: float, dtype: str) -> float:
    """Round to the nearest number of this dtype."""
    fraction, exponent = frexp(x)
    return ldexp(round(ldexp(fraction, _MANTISSA[dtype])), exponent - _MANTISSA[dtype])


def cap(config: Config, key: str, default: float) -> float:
    """Read a soft cap; null means no cap, and an absent field means the default of the class."""
    return (config.optional_number(key) or 0.0) if key in config else default


def _scaled(config: Config, architecture: str, stack: tuple[LayerLike, ...], **differences: Any) -> Decoder:
    """Scale embeddings by √hidden, rounded to the model's dtype, and tie the head to the embeddings."""
    scale = rounded(config.integer("hidden_size") ** 0.5, config.dtype())
    return decoder(config, architecture, stack, tied_default=True, embedding_scale=scale, **differences)


def _gemma(config: Config, architecture: str, stack: tuple[Layer, ...], **differences: Any) -> Decoder:
    """Build a decoder with norms that store their weights minus 1."""
    norm = Norm(config.number("rms_norm_eps", 1e-6), offset=1.0)
    return _scaled(config, architecture, stack, norm=norm, **differences)


def by_layer(
    config: Config, architecture: str, stack: tuple[LayerLike, ...], size: int, **differences: Any
) -> Decoder:
    """Build a decoder with plain norms and per-layer embeddings of `size`, scaled by √size."""
    rows = config.integer("vocab_size_per_layer_input", 262144)
    table = LayerTable(rows, len(stack), size, rounded(size**0.5, config.dtype())) if size else None
    return _scaled(config, architecture, stack, layer_table=table, **differences)


@family("GemmaForCausalLM", "gemma")
def gemma(config: Config) -> Decoder:
    """GemmaForCausalLM: Llama with these norms and embeddings, and heads of size 256."""
    config.fill(num_attention_heads=16, num_key_value_heads=16, head_dim=256, vocab_size=256000)
    bias, acts = config.flag("attention_bias", False), activation(config, default=TANH)
    config.unmodelled("hidden_activation", (None, config.fields.get("hidden_act")), "another activation")
    mixer = attention(config, positions_default=8192, qkv_bias=bias, out_bias=bias)
    return _gemma(config, "GemmaForCausalLM", (Layer(mixer, mlp(config, activation=acts)),) * layers(config))


def _windows(
    config: Config,
    architecture: str,
    every: int,
    caps: tuple[float, float],
    local: Rope | None,
    norms: Norms = SANDWICH,
    **how: Any,
) -> Decoder:
    """Build layers with norms around both sublayers, soft caps, and windows except in every `every`-th layer.

    `norms` replaces the norms. With `local`, layers with a window have separate rotary positions.
    """
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    scores, logits = (cap(config, name, default) for name, default in zip(names, caps, strict=True))
    bias, scale = config.flag("attention_bias", False), config.number("query_pre_attn_scalar", 256) ** -0.5
    full = attention(config, qkv_bias=bias, out_bias=bias, scale=scale, cap=scores, **how)
    sliding = replace(full, mask=window(config, 4096), rope=local or full.rope)
    config.ignore("hidden_act")  # these classes read `hidden_activation`
    feed = mlp(config, activation=activation(config, "hidden_activation", TANH))
    kinds = Layer(full, feed, norms), Layer(sliding, feed, norms)
    stack = tuple(kinds[slide] for slide in sliding_layers(config, all_but_every(every)))
    return _gemma(config, architecture, stack, logits_cap=logits)


@family("Gemma2ForCausalLM", "gemma2")
def gemma2(config: Config) -> Decoder:
    """Gemma2ForCausalLM: a window in every second layer, soft caps."""
    config.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=256000)
    config.unmodelled("sliding_window_size", (None, config.fields.get("sliding_window")), "another window")
    return _windows(config, "Gemma2ForCausalLM", 2, (50.0, 30.0), None, positions_default=8192)


@family("VaultGemmaForCausalLM", "vaultgemma")
def vaultgemma(config: Config) -> Decoder:
    """VaultGemmaForCausalLM: Gemma 2 without the norms after its sublayers."""
    config.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=256000)
    norms = Norms(before_mlp="pre_feedforward_layernorm")
    how: dict[str, Any] = {"positions_default": 8192, "norms": norms}
    return _windows(config, "VaultGemmaForCausalLM", 2, (50.0, 30.0), None, **how)


@family("Gemma3ForCausalLM", "gemma3_text")
def gemma3(config: Config) -> Decoder:
    """Gemma3ForCausalLM: normalized q and k; every sixth layer has no window."""
    config.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262208)
    *_, size = heads(config, None, None)
    local, whole = ropes(config, (size, size), 131072, config.number("rope_local_base_freq", 1e4), 1e6)
    every = config.integer("sliding_window_pattern", 6)
    return _windows(config, "Gemma3ForCausalLM", every, (0.0, 0.0), local, rope=whole, qk_norm="head")
