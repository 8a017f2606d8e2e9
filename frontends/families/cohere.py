"""Cohere: Command-R, Command-R+, Command-R7B, Command-A. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer, Norms
from ..mixers import Attention
from ..parts import all_but_every, attention, decoder, interleaved, layers, mlp, slides, window

# What older configs say of their layers, and classes do not read.
_SAID = {
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
}


def _attention(config: Config, **how: Any) -> Attention:
    bias = config.flag("attention_bias", False)
    return interleaved(attention(config, positions_default=8192, bias=bias, **how))


def _cohere(config: Config, architecture: str, mixers: tuple[Attention, ...], own: Sequence[int]) -> Decoder:
    """Both sublayers see one LayerNorm of the layer's input; logits are scaled. `own` says which mixer."""
    feed = mlp(config)
    kinds = [Layer(mixer, feed, Norms(before_mlp=None), parallel=True) for mixer in mixers]
    return decoder(
        config,
        architecture,
        tuple(kinds[kind] for kind in own),
        tied_default=True,
        norm=Norm(config.number("layer_norm_eps", 1e-5), "layer_norm"),
        logits_scale=config.number("logit_scale", 0.0625),
    )


@family("CohereForCausalLM", "cohere")
def cohere(config: Config) -> Decoder:
    """CohereForCausalLM: with `use_qk_norm`, each head of q and k has a norm of its own."""
    norm = "heads" if config.flag("use_qk_norm", False) else ""
    mixer = _attention(config, theta_default=5e5, qk_norm=norm)
    return _cohere(config, "CohereForCausalLM", (mixer,), [0] * layers(config))


@family("Cohere2ForCausalLM", "cohere2")
def cohere2(config: Config) -> Decoder:
    """Cohere2ForCausalLM: windows in all layers but each fourth, which knows no positions."""
    every = config.integer("sliding_window_pattern", 4)
    config.fixed("another kind of layers", **_SAID, layer_switch=every)
    mixer = _attention(config)
    sliding, full = replace(mixer, mask=window(config, 4096)), replace(mixer, rope=None)
    return _cohere(config, "Cohere2ForCausalLM", (full, sliding), slides(config, all_but_every(every)))
