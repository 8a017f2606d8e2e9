"""Granite 3 with experts, and with a shared expert. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.attention import Attention
from llmir.frontends.layers.decoder import Decoder
from llmir.frontends.layers.layer import Layer
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import check_chosen, decoder, layers

from .granite import scored, windowed


@family("GraniteMoeForCausalLM", "granitemoe")
def granite_moe(config: Config) -> Decoder:
    """GraniteMoeForCausalLM: embeddings, scores, residuals and logits are scaled; experts are stacked."""
    return _granite(config, "GraniteMoeForCausalLM", (scored(config),) * layers(config), None)


@family("GraniteMoeSharedForCausalLM", "granitemoeshared")
def granite_moe_shared(config: Config) -> Decoder:
    """GraniteMoeSharedForCausalLM: Granite MoE with a shared expert, unless its width is 0."""
    return _granite(
        config, "GraniteMoeSharedForCausalLM", (scored(config),) * layers(config), _always(config)
    )


@family("GraniteMoeSWAForCausalLM", "granitemoe_swa")
def granite_moe_swa(config: Config) -> Decoder:
    """GraniteMoeSWAForCausalLM: Granite MoE with windows and sinks."""
    return _granite(config, "GraniteMoeSWAForCausalLM", windowed(config, scored(config)), _always(config))


def _granite(config: Config, architecture: str, mixers: tuple[Attention, ...], always: Mlp | None) -> Decoder:
    experts = replace(stacked(config, config.assumed("num_local_experts", 8)), shared=always)
    routed, part = check_chosen(config, experts), config.number("residual_multiplier", 1.0)
    return decoder(
        config,
        architecture,
        tuple(Layer(mixer, routed, residual=part) for mixer in mixers),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )


def _always(config: Config) -> Mlp | None:
    width = config.integer("shared_intermediate_size", 0, minimum=0)
    return shared(width) if width else None


def shared(width: int) -> Mlp:
    """The shared expert, with gate and up in one tensor."""
    names = ("input_linear[0]", "input_linear[1]", "output_linear")
    return Mlp(width, module="shared_mlp", block="shared_experts", prefix="shared_", matrices=names)


def stacked(config: Config, count: int) -> Moe:
    """Granite's experts; the routing weights of a token add up to 1."""
    return Moe(
        count=count,
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=config.integer("intermediate_size"),
        routing=Routing(normalize=True),
        module="block_sparse_moe",
        router="router.layer",
        matrices=("input_linear.weight[0]", "input_linear.weight[1]", "output_linear.weight"),
    )
