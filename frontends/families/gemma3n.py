"""Gemma 3n (text): shared keys, per-layer embeddings, and several streams of hidden states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention_config import FULL, KINDS, SLIDING, kv_sharing
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import AlternatingLayer, AlternatingUpdates, Laurel, Layer, PerLayer
from llmir.frontends.layers.mlp import Mlp
from llmir.frontends.layers.parts import activation, attention, heads, kinds, layers, widths, window
from llmir.frontends.layers.rope import ropes

from .gemma import SANDWICH, TANH, by_layer, cap


@family("Gemma3nForCausalLM", "gemma3n_text")
def gemma3n(config: Config) -> Decoder:
    """Gemma3nForCausalLM: windows except in every fifth layer; the first MLPs have sparse activations."""
    config.fill(num_attention_heads=8, num_key_value_heads=2, head_dim=256, vocab_size=262400)
    *_, size = heads(config, None, None)
    local, whole = ropes(config, (size, size), 32768, config.number("rope_local_base_freq", 1e4), 1e6)
    bias, tanh = config.flag("attention_bias", False), activation(config, "hidden_activation", TANH)
    how: dict[str, Any] = {"qkv_bias": bias, "out_bias": bias, "qk_norm": "head", "bare_v": True}
    full = attention(config, rope=whole, scale=1.0, **how)
    sliding = replace(full, mask=window(config, 512), rope=local)
    types = kinds(config, [FULL if i % 5 == 4 else SLIDING for i in range(layers(config))], *KINDS)
    count = config.integer("altup_num_inputs", 4, minimum=2)
    streams = AlternatingUpdates(count, config.integer("altup_active_idx", 0, minimum=0))
    if streams.active >= count:
        raise config.error("altup_active_idx", f"{streams.active} is none of {count} streams")
    config.ignore("altup_coef_clip")  # acts in training
    laurel = Laurel(config.integer("laurel_rank", 64))
    own = PerLayer(config.integer("hidden_size_per_layer_input", 256), tanh)
    scaled = config.flag("altup_correct_scale", True)
    pairs = zip(widths(config), _shares(config), strict=True)
    mlps = [Mlp(width, activation=tanh, sparsity=share) for width, share in pairs]
    stack = tuple(
        AlternatingLayer(Layer(mixer, mlp, SANDWICH, laurel=laurel, tail=own), streams, scaled)
        for mixer, mlp in zip(kv_sharing(config, full, sliding, types, 15), mlps, strict=True)
    )
    logits = cap(config, "final_logit_softcapping", 30.0)
    return by_layer(config, "Gemma3nForCausalLM", stack, own.size, logits_cap=logits, altup=streams)


def _shares(config: Config) -> tuple[float, ...]:
    """The fraction of activations set to 0 by layer; by default, only the first ten layers have one."""
    key, count = "activation_sparsity_pattern", layers(config)
    found = tuple(0.95 if count > 10 and i < 10 else 0.0 for i in range(count))
    if config.fields.get(key) is not None:
        found = config.numbers(key, count, zero=True)
    config.ignore(key)
    if max(found) >= 1:
        raise config.error(key, f"expected shares below 1, got {max(found)}")
    return found
