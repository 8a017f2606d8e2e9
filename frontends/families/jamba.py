"""Jamba: Mamba, and in some layers attention or experts. Absent fields as in transformers."""

from __future__ import annotations

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.blocks import Norm
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Norms
from llmir.frontends.layers.mlp import Mlp, Moe, Routing
from llmir.frontends.layers.parts import attention, check_chosen, decoder, layer_pairs, layers
from llmir.frontends.layers.state_config import mamba

_NORMS = Norms(before_mlp="pre_ff_layernorm")
_MODULE = "feed_forward"


@family("JambaForCausalLM", "jamba")
def jamba(config: Config) -> Decoder:
    """JambaForCausalLM: no rotary positions, and normalized inputs of scans."""
    keeps = mamba(config, norm=Norm(config.number("rms_norm_eps", 1e-6)), module="mamba")
    attends = attention(config, kv_default=8, rope=None)
    dense = Mlp(config.integer("intermediate_size"), module=_MODULE)
    experts = Moe(
        count=config.assumed("num_experts", 16),
        chosen=config.assumed("num_experts_per_tok", 2),
        intermediate=dense.intermediate,
        routing=Routing(),
        module=_MODULE,
        router="router",
    )
    sparse = check_chosen(config, experts) if experts.count > 1 else dense
    at = _period(config, "attn_layer", 8, 4)
    chosen = _period(config, "expert_layer", 2, 1)
    every = range(layers(config))
    mixers = (attends if i in at else keeps for i in every)
    stack = layer_pairs(mixers, (sparse if i in chosen else dense for i in every), _NORMS)
    names = CheckpointNames(norm="model.final_layernorm")
    return decoder(config, "JambaForCausalLM", stack, names=names)


def _period(config: Config, what: str, period: int, offset: int) -> range:
    """The layers that have a part, given the period and the offset of this part."""
    step = config.integer(f"{what}_period", period)
    return range(config.integer(f"{what}_offset", offset, minimum=0), layers(config), step)
