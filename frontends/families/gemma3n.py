"""Gemma 3n (text): layers that share keys, read the tokens anew, and alternate between streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..altup import Alternating, AltUp, Laurel
from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layer_input import LayerTable, PerLayer
from ..layers import Layer, Whole
from ..mixers import Attention
from ..mlps import Mlp
from ..parts import activation, attention, decoder, heads, kinds, layers, window
from ..rope import ropes
from .gemma import SANDWICH, TANH, rounded

KINDS = SLIDING, FULL = ("sliding_attention", "full_attention")


def mixers(config: Config, full: Attention, sliding: Attention, types: tuple[str, ...], shared: int) -> Any:
    """By layer its attention; the last ones, `shared` unless it is stated, have no keys of their own."""
    key = "num_kv_shared_layers"
    shared = config.integer(key, shared, minimum=0, maximum=len(types))
    own = types[: len(types) - shared]
    if shared and {*own} != {*types}:
        missing = min({*types} - {*own})
        raise config.error(key, f"{shared} leaves no {missing} with keys of its own, which others read")
    each = {FULL: full, SLIDING: sliding}
    lending = {kind: replace(mixer, lends=mixer.sees) if shared else mixer for kind, mixer in each.items()}
    borrowing = {kind: replace(mixer, borrows=mixer.sees) for kind, mixer in each.items()}
    return [lending[kind] for kind in own] + [borrowing[kind] for kind in types[len(own) :]]


def model(
    config: Config, architecture: str, stack: tuple[Whole, ...], size: int, cap: float, **how: Any
) -> Decoder:
    """Plain norms, embeddings times √hidden and those of layers times √size, as the model's type has it."""
    dtype, key = config.dtype(), "final_logit_softcapping"
    rows = config.integer("vocab_size_per_layer_input", 262144)
    return decoder(
        config,
        architecture,
        stack,
        tied_default=True,
        embedding_scale=rounded(config.integer("hidden_size") ** 0.5, dtype),
        logits_cap=(config.optional_number(key) or 0.0) if key in config else cap,
        layer_table=LayerTable(rows, len(stack), size, rounded(size**0.5, dtype)) if size else None,
        **how,
    )


@family("Gemma3nForCausalLM", "gemma3n_text")
def gemma3n(config: Config) -> Decoder:
    """Gemma3nForCausalLM: windows in all layers but each fifth; the first MLPs are sparse."""
    config.fill(num_attention_heads=8, num_key_value_heads=2, head_dim=256, vocab_size=262400)
    *_, size = heads(config, None, None)
    local, whole = ropes(config, (size, size), 32768, config.number("rope_local_base_freq", 1e4), 1e6)
    bias, tanh = config.flag("attention_bias", False), activation(config, "hidden_activation", TANH)
    how: dict[str, Any] = {"qkv_bias": bias, "out_bias": bias, "qk_norm": "head", "bare_v": True}
    full = attention(config, rope=whole, scale=1.0, **how)
    sliding = replace(full, mask=window(config, 512), rope=local)
    types = kinds(config, [FULL if i % 5 == 4 else SLIDING for i in range(layers(config))], *KINDS)
    count = config.integer("altup_num_inputs", 4, minimum=2)
    streams = AltUp(count, config.integer("altup_active_idx", 0, minimum=0))
    if streams.active >= count:
        raise config.error("altup_active_idx", f"{streams.active} is none of {count} streams")
    config.ignore("altup_coef_clip")  # acts in training
    laurel = Laurel(config.integer("laurel_rank", 64))
    own = PerLayer(config.integer("hidden_size_per_layer_input", 256), tanh)
    scaled = config.flag("altup_correct_scale", True)
    stack = tuple(
        Alternating(Layer(mixer, mlp, SANDWICH, laurel=laurel, tail=own), streams, scaled)
        for mixer, mlp in zip(mixers(config, full, sliding, types, 15), _mlps(config, tanh), strict=True)
    )
    return model(config, "Gemma3nForCausalLM", stack, own.size, 30.0, altup=streams)


def _mlps(config: Config, activation: str) -> list[Mlp]:
    """By layer: a width for all or one for each, and a sparsity for each; absent, the first ten have one."""
    key, sparse, count = "intermediate_size", "activation_sparsity_pattern", layers(config)
    several = isinstance(config.fields.get(key), list | tuple)
    widths = config.integers(key) if several else (config.integer(key, 16384),) * count
    if len(widths) != count or not all(widths):
        raise config.error(key, f"expected a positive width for each of {count} layers, got {len(widths)}")
    shares = (0.95,) * 10 + (0.0,) * (count - 10) if count > 10 else (0.0,) * count
    if config.fields.get(sparse) is not None:
        shares = config.numbers(sparse, count, zero=True)
    config.ignore(sparse)
    if max(shares) >= 1:
        raise config.error(sparse, f"expected shares below 1, got {max(shares)}")
    return [Mlp(w, activation=activation, sparsity=s) for w, s in zip(widths, shares, strict=True)]
