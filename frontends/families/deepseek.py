"""DeepSeek V2 and V3, and what has their shape. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..latents import latent
from ..layers import Layer
from ..mlps import Mlp
from ..parts import decoder, layers


@family("DeepseekV3ForCausalLM", "deepseek_v3")
def deepseek_v3(config: Config) -> Decoder:
    """DeepseekV3ForCausalLM: V3, V3.1, R1, Kimi-K2."""
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=4096, interleaved=config.flag("rope_interleave", True))
    dense = Mlp(config.assumed("intermediate_size", 18432))
    first = config.integer("first_k_dense_replace", 3, minimum=0)
    stack = tuple(Layer(mixer, dense) for i in range(layers(config)))
    return decoder(config, "DeepseekV3ForCausalLM", stack)
