"""MiniCPM 1 to 3, Youtu-LLM. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.attention_config import latent
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.latent_attention import LatentAttention
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.parts import attention, decoder, layers, mlp


def _scaled(config: Config, architecture: str, mixer: Attention | LatentAttention, eps: float) -> Decoder:
    """Embeddings, layer outputs and logits are scaled."""
    count, hidden = layers(config), config.integer("hidden_size")
    depth = _scale(config, "scale_depth", 1.4) or count**0.5
    layer = Layer(mixer, mlp(config, bias=config.flag("mlp_bias", False)), residual=depth / count**0.5)
    return decoder(
        config,
        architecture,
        (layer,) * count,
        eps_default=eps,
        tied_default=True,
        embedding_scale=config.number("scale_emb", 12),
        logits_scale=(_scale(config, "dim_model_base", 256) or hidden) / hidden,
    )


@family("MiniCPM3ForCausalLM", "minicpm3")
def minicpm3(config: Config) -> Decoder:
    """MiniCPM3ForCausalLM."""
    mixer = latent(config, (768, 256, 64, 32, None), positions_default=32768, interleaved=False)
    return _scaled(config, "MiniCPM3ForCausalLM", mixer, 1e-5)


@family("MiniCPMForCausalLM", "minicpm")
def minicpm(config: Config) -> Decoder:
    """MiniCPMForCausalLM, by the code in its checkpoints: Llama's attention."""
    for key in ("scale_emb", "scale_depth", "dim_model_base"):
        config.number(key)
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias)
    return _scaled(config, "MiniCPMForCausalLM", mixer, 1e-6)


@family("YoutuForCausalLM", "youtu")
def youtu(config: Config) -> Decoder:
    """YoutuForCausalLM: DeepSeek V3's latent attention with dense MLPs."""
    pairs = config.flag("rope_interleave", True)
    mixer = latent(config, (1536, 512, 128, 64, 128), positions_default=131072, interleaved=pairs)
    return decoder(
        config, "YoutuForCausalLM", (Layer(mixer, mlp(config)),) * layers(config), tied_default=True
    )


def _scale(config: Config, key: str, default: float) -> float | None:
    """Read a number; None for null."""
    return config.optional_number(key) if key in config else default
