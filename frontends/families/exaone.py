"""EXAONE 4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import BEHIND, Layer
from ..parts import all_but_every, attention, decoder, mlp, slides, window


@family("Exaone4ForCausalLM", "exaone4")
def exaone4(config: Config) -> Decoder:
    """Exaone4ForCausalLM: windows in all layers but each fourth, which knows no positions then."""
    mask, pattern = window(config, 4096), "sliding_window_pattern"
    if mask == "causal" or config.texts("layer_types"):  # the pattern does not act, and may be "LLLG"
        config.ignore(pattern)
        every = 0
    else:
        every = config.integer(pattern, 4)
    mixer = attention(config, kv_default=32, qk_norm="head")
    sliding, full = replace(mixer, mask=mask), replace(mixer, rope=mixer.rope if mask == "causal" else None)
    feed = mlp(config)
    kinds = Layer(full, feed, BEHIND), Layer(sliding, feed, BEHIND)
    stack = tuple(kinds[slide] for slide in slides(config, all_but_every(every)))
    return decoder(config, "Exaone4ForCausalLM", stack, eps_default=1e-5)
