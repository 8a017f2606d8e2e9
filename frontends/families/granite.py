"""Granite 3, HyperCLOVA X. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import attention, decoder, layers, mlp, sliding_layers, window


def _scaled(
    config: Config, architecture: str, mixers: tuple[Attention, ...], norms: Norms, logits: float, **ends: Any
) -> Decoder:
    """Llama with scaled embeddings, scores, residuals and logits."""
    feed, part = mlp(config, bias=config.flag("mlp_bias", False)), config.number("residual_multiplier", 1.0)
    stack = tuple(Layer(mixer, feed, norms, residual=part) for mixer in mixers)
    ends |= {"embedding_scale": config.number("embedding_multiplier", 1.0), "logits_scale": logits}
    return decoder(config, architecture, stack, **ends)


def scored(config: Config, **how: Any) -> Attention:
    """Attention whose score scale is a separate config field."""
    scale = config.number("attention_multiplier", 1.0)
    return attention(config, bias=config.flag("attention_bias", False), scale=scale, **how)


def windowed(config: Config, mixer: Attention) -> tuple[Attention, ...]:
    """The attention of each layer, with sinks, and with windows except in every fourth layer."""
    count, own = layers(config), sliding_layers(config, lambda layer: layer % 4 > 0)
    stated = config.fields.get("layer_rope_theta") is not None
    config.ignore("layer_rope_theta")
    thetas = config.numbers("layer_rope_theta", count, zero=True) if stated else (None,) * count
    full = replace(mixer, sinks="sinks")
    sliding = replace(full, mask=window(config, 128))
    positions = mixer.rope and {
        theta: replace(mixer.rope, theta=theta or mixer.rope.theta) for theta in thetas
    }
    return tuple(
        replace(sliding if slide else full, rope=None if theta == 0 or not positions else positions[theta])
        for slide, theta in zip(own, thetas, strict=True)
    )


@family("GraniteForCausalLM", "granite")
def granite(config: Config) -> Decoder:
    """GraniteForCausalLM: logits are divided by `logits_scaling`."""
    logits = 1 / config.number("logits_scaling", 1.0)
    return _scaled(config, "GraniteForCausalLM", (scored(config),) * layers(config), Norms(), logits)


@family("GraniteSWAForCausalLM", "granite_swa")
def granite_swa(config: Config) -> Decoder:
    """GraniteSWAForCausalLM: Granite with windows."""
    mixers = windowed(config, scored(config, positions_default=8192, kv_default=4))
    logits, ends = 1 / config.number("logits_scaling", 1.0), {"eps_default": 1e-5, "tied_default": True}
    return _scaled(config, "GraniteSWAForCausalLM", mixers, Norms(), logits, **ends)


@family("HyperCLOVAXForCausalLM", "hyperclovax")
def hyperclovax(config: Config) -> Decoder:
    """HyperCLOVAXForCausalLM: logits are multiplied by the scale, and sublayers may end with a norm."""
    behind = Norms(after_mixer="post_norm1", after_mlp="post_norm2")
    norms = behind if config.flag("use_post_norm", True) else Norms()
    bias, scale = config.flag("attention_bias", False), config.optional_number("attention_multiplier")
    mixer = attention(config, bias=bias, scale=scale)
    logits = config.number("logits_scaling", 1.0)
    return _scaled(config, "HyperCLOVAXForCausalLM", (mixer,) * layers(config), norms, logits)
