"""Mamba, Falcon-Mamba and Mamba-2 (Mamba-Codestral). Defaults for absent fields are transformers' own."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.mamba import Mamba, Mamba2
from llmir.frontends.layers.parts import activation, decoder, layers
from llmir.frontends.layers.state_config import STANDALONE, channels, mamba, mamba2

_NAMES = CheckpointNames("backbone.embeddings", "backbone.layers.{layer}", "backbone.norm_f")


@family("MambaForCausalLM", "mamba")
def mamba_1(config: Config) -> Decoder:
    """MambaForCausalLM."""
    return _stack(config, "MambaForCausalLM", mamba(config, _inner(config)), tied=True)


@family("FalconMambaForCausalLM", "falcon_mamba")
def falcon_mamba(config: Config) -> Decoder:
    """FalconMambaForCausalLM: the inputs of a scan pass through norms without weights."""
    config.ignore("use_falcon_mambapy")
    norm = Norm(config.number("mixer_rms_eps", 1e-6), learns=())
    return _stack(config, "FalconMambaForCausalLM", mamba(config, _inner(config), norm=norm), tied=True)


@family("Mamba2ForCausalLM", "mamba2")
def mamba_2(config: Config) -> Decoder:
    """Mamba2ForCausalLM: each group of heads is normalized separately."""
    config.ignore("time_step_rank")  # a field of Mamba 1, which this class does not read
    inner, eps = channels(config.spelled(**STANDALONE)), config.number("layer_norm_epsilon", 1e-5)
    mixer = mamba2(config, inner, size=64, groups=8, state=128, eps=eps)
    return _stack(config, "Mamba2ForCausalLM", mixer, tied=False)


def _inner(config: Config) -> int:
    """The number of channels of a scan: `intermediate_size` if present, else by `expand`."""
    return config.integer("intermediate_size", channels(config.spelled(**STANDALONE)))


def _stack(config: Config, architecture: str, mixer: Mamba | Mamba2, *, tied: bool) -> Decoder:
    """A decoder whose layers have a norm and a mixer, and no MLP."""
    if activation(config) != "silu":
        raise config.error("hidden_act", "expected silu or swish, which scans are made for")
    layer = Layer(mixer, None, Norms("norm"))
    norm = Norm(config.number("layer_norm_epsilon", 1e-5))
    stack = (layer,) * layers(config)
    return decoder(config, architecture, stack, norm=norm, tied_default=tied, names=_NAMES)
