"""SmolLM3. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import (
    all_but_every,
    attention,
    decoder,
    layers,
    mlp,
    sliding_layers,
    window,
)


@family("SmolLM3ForCausalLM", "smollm3")
def smollm3(config: Config) -> Decoder:
    """SmolLM3ForCausalLM: every fourth layer has no positions, and only such layers may have a window."""
    bias = config.flag("attention_bias", False)
    how: dict[str, Any] = {"positions_default": 32768, "theta_default": 2e6, "kv_default": 4}
    mixer = attention(config, bias=bias, **how)
    acts = config.flag("use_sliding_window", False)
    mask = window(config, None, acts=acts)
    default = all_but_every(config.integer("no_rope_layer_interval", 4))
    turned = config.integers("no_rope_layers", [int(default(i)) for i in range(layers(config))])
    if len(turned) != layers(config):
        raise config.error("no_rope_layers", f"{len(turned)} numbers for {layers(config)} layers")
    own = sliding_layers(config, lambda layer: mask != "causal" and not turned[layer])
    feed = mlp(config, bias=config.flag("mlp_bias", False))
    kinds = [(slide, bool(turn)) for slide, turn in zip(own, turned, strict=True)]
    made = {
        (slide, turn): Layer(
            replace(mixer, mask=mask if slide else "causal", rope=mixer.rope if turn else None), feed
        )
        for slide, turn in {*kinds}
    }
    return decoder(config, "SmolLM3ForCausalLM", tuple(made[kind] for kind in kinds), tied_default=True)
