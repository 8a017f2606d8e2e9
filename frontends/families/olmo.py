"""OLMo 1, 2 and 3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import POST_NORMS, Layer
from llmir.frontends.layers.parts import (
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


@family("OlmoForCausalLM", "olmo")
def olmo(config: Config) -> Decoder:
    """OlmoForCausalLM: norms without weights; q, k and v may be clipped."""
    bias, clip = config.flag("attention_bias", False), config.optional_number("clip_qkv") or 0.0
    layer = Layer(attention(config, bias=bias, clip=clip), mlp(config))
    norm = Norm(1e-5, "layer_norm", ())
    return decoder(config, "OlmoForCausalLM", (layer,) * layers(config), norm=norm)


def _attention(config: Config, **how: Any) -> Attention:
    """Attention with q and k normalized over all heads."""
    bias = config.flag("attention_bias", False)
    return attention(config, bias=bias, qk_norm="whole", **how)


def _olmo(config: Config, architecture: str, mixers: tuple[Attention, ...], own: Sequence[int]) -> Decoder:
    """Build a decoder with norms after sublayers instead of before; `own` selects each layer's mixer."""
    feed = mlp(config)
    kinds = [Layer(mixer, feed, POST_NORMS) for mixer in mixers]
    return decoder(config, architecture, tuple(kinds[kind] for kind in own), eps_default=1e-5)


@family("Olmo2ForCausalLM", "olmo2")
def olmo2(config: Config) -> Decoder:
    """Olmo2ForCausalLM."""
    return _olmo(config, "Olmo2ForCausalLM", (_attention(config),), [0] * layers(config))


@family("Olmo3ForCausalLM", "olmo3")
def olmo3(config: Config) -> Decoder:
    """Olmo3ForCausalLM: windows except in every fourth layer; only full layers have scaled positions."""
    *_, size = heads(config, None, None)
    local, whole = ropes(config, (size, size), 2048, 5e5, 5e5)
    full = _attention(config, rope=whole)
    sliding = replace(full, rope=local, mask=window(config, 4096))
    return _olmo(config, "Olmo3ForCausalLM", (full, sliding), sliding_layers(config, all_but_every(4)))
