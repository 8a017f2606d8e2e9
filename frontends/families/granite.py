"""Granite 3, HyperCLOVA X. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..decoder import Decoder
from ..family import family
from ..layers import Layer, Norms
from ..parts import attention, decoder, layers, mlp


def _scaled(config: Config, architecture: str, scale: float | None, norms: Norms, logits: float) -> Decoder:
    """Llama whose embeddings, scores, residuals and logits are scaled."""
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias, scale=scale)
    feed = mlp(config, bias=config.flag("mlp_bias", False))
    layer = Layer(mixer, feed, norms, residual=config.number("residual_multiplier", 1.0))
    embeddings = config.number("embedding_multiplier", 1.0)
    how: dict[str, Any] = {"embedding_scale": embeddings, "logits_scale": logits}
    return decoder(config, architecture, (layer,) * layers(config), **how)


@family("GraniteForCausalLM", "granite")
def granite(config: Config) -> Decoder:
    """GraniteForCausalLM: logits are divided by their scaling."""
    scale, logits = config.number("attention_multiplier", 1.0), 1 / config.number("logits_scaling", 1.0)
    return _scaled(config, "GraniteForCausalLM", scale, Norms(), logits)


@family("HyperCLOVAXForCausalLM", "hyperclovax")
def hyperclovax(config: Config) -> Decoder:
    """HyperCLOVAXForCausalLM: logits are multiplied by it, and sublayers may be normed behind too."""
    behind = Norms(after_mixer="post_norm1", after_mlp="post_norm2")
    norms = behind if config.flag("use_post_norm", True) else Norms()
    scale, logits = config.optional_number("attention_multiplier"), config.number("logits_scaling", 1.0)
    return _scaled(config, "HyperCLOVAXForCausalLM", scale, norms, logits)
