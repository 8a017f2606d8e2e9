"""Phi-3, Phi-3.5 and Phi-4. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..parts import attention, decoder, layers, mlp, window

_POSITIONS = 4096


@family("Phi3ForCausalLM", "phi3")
def phi3(config: Config) -> Decoder:
    """Phi3ForCausalLM: q, k and v, and gate and up, are stored as one tensor each."""
    mixer = attention(
        config,
        positions_default=_POSITIONS,
        trained_default=_POSITIONS,
        share_default=1.0,
        mask=window(config, None),
        matrices=("qkv_proj[0]", "qkv_proj[1]", "qkv_proj[2]", "o_proj"),
    )
    layer = Layer(mixer, mlp(config, matrices=("gate_up_proj[0]", "gate_up_proj[1]", "down_proj")))
    return decoder(config, "Phi3ForCausalLM", (layer,) * layers(config), eps_default=1e-5)
