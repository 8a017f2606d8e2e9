"""MiniCPM3 and Youtu-LLM: latent attention, dense. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..latents import latent
from ..layers import Layer
from ..parts import decoder, layers, mlp


@family("MiniCPM3ForCausalLM", "minicpm3")
def minicpm3(config: Config) -> Decoder:
    """MiniCPM3ForCausalLM: latent attention; embeddings, what layers add, and logits are scaled."""
    count, hidden = layers(config), config.integer("hidden_size")
    depth = _scale(config, "scale_depth", 1.4) or count**0.5
    mixer = latent(config, (768, 256, 64, 32, None), positions_default=32768, interleaved=False)
    layer = Layer(mixer, mlp(config, bias=config.flag("mlp_bias", False)), residual=depth / count**0.5)
    return decoder(
        config,
        "MiniCPM3ForCausalLM",
        (layer,) * count,
        eps_default=1e-5,
        tied_default=True,
        embedding_scale=config.number("scale_emb", 12),
        logits_scale=(_scale(config, "dim_model_base", 256) or hidden) / hidden,
    )


@family("YoutuForCausalLM", "youtu")
def youtu(config: Config) -> Decoder:
    """YoutuForCausalLM: DeepSeek V3's latent attention."""
    pairs = config.flag("rope_interleave", True)
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=131072, interleaved=pairs)
    return decoder(
        config, "YoutuForCausalLM", (Layer(mixer, mlp(config)),) * layers(config), tied_default=True
    )


def _scale(config: Config, key: str, default: float) -> float | None:
    """A number, of which null is none."""
    return config.optional_number(key) if key in config else default
