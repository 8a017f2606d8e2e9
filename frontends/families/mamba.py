"""Mamba and Mamba-2 (Mamba-Codestral). Defaults for absent fields are transformers' own."""

from __future__ import annotations

from ..blocks import Norm
from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import Mamba, Mamba2
from ..parts import activation, decoder, layers

_NAMES = Names("backbone.embeddings", "backbone.layers.{layer}", "backbone.norm_f")


def _stack(config: Config, architecture: str, mixer: Mamba | Mamba2, *, tied: bool) -> Decoder:
    """A norm and a mixer in each layer, and nothing else."""
    if activation(config) != "silu":
        raise config.error("hidden_act", "expected silu or swish, which scans are made for")
    layer = Layer(mixer, None, Norms("norm"))
    norm = Norm(config.number("layer_norm_epsilon", 1e-5))
    stack = (layer,) * layers(config)
    return decoder(config, architecture, stack, norm=norm, tied_default=tied, names=_NAMES)


@family("MambaForCausalLM", "mamba")
def mamba(config: Config) -> Decoder:
    """MambaForCausalLM. Steps have a rank of a sixteenth of the hidden size, unless stated."""
    hidden = config.integer("hidden_size")
    channels = config.integer("expand", 2) * hidden
    if config.integer("intermediate_size", channels) != channels:
        raise config.error("intermediate_size", f"expected expand · hidden_size, {channels}")
    stated = config.fields.get("time_step_rank", "auto") != "auto"
    config.ignore("time_step_rank")
    mixer = Mamba(
        channels,
        config.integer("state_size", 16),
        config.integer("time_step_rank") if stated else -(-hidden // 16),
        config.integer("conv_kernel", 4),
        config.flag("use_bias", False),
        config.flag("use_conv_bias", True),
    )
    return _stack(config, "MambaForCausalLM", mixer, tied=True)


@family("Mamba2ForCausalLM", "mamba2")
def mamba2(config: Config) -> Decoder:
    """Mamba2ForCausalLM: groups of heads are normalized each by itself."""
    config.ignore("time_step_rank")  # of Mamba 1; this class does not read it
    heads, size = config.integer("num_heads", 128), config.integer("head_dim", 64)
    inner = config.integer("expand", 2) * config.integer("hidden_size")
    if heads * size != inner:
        raise config.error("num_heads", f"{heads} of head_dim {size} are not expand · hidden_size, {inner}")
    groups = config.integer("n_groups", 8)
    if heads % groups:
        raise config.error("n_groups", f"{groups} does not divide {heads} heads")
    mixer = Mamba2(
        heads,
        size,
        groups,
        config.integer("state_size", 128),
        config.integer("conv_kernel", 4),
        config.flag("use_bias", False),
        config.flag("use_conv_bias", True),
        eps=config.number("layer_norm_epsilon", 1e-5),
    )
    return _stack(config, "Mamba2ForCausalLM", mixer, tied=False)
