"""Arcee: AFM. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer
from ..parts import activation, attention, decoder, layers, mlp


@family("ArceeForCausalLM", "arcee")
def arcee(config: Config) -> Decoder:
    """ArceeForCausalLM: llama with an MLP of squared ReLU that has no gate."""
    bias = config.flag("attention_bias", False)
    feed = mlp(
        config,
        bias=config.flag("mlp_bias", False),
        matrices=("up_proj", "down_proj"),
        activation=activation(config, default="relu2"),
    )
    layer = Layer(attention(config, positions_default=4096, bias=bias), feed)
    return decoder(config, "ArceeForCausalLM", (layer,) * layers(config), eps_default=1e-5)
