"""Zamba2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

from llmir.frontends.config.family import family
from llmir.frontends.config.reader import Config
from llmir.frontends.layers.decoder import CheckpointNames, Decoder
from llmir.frontends.layers.layer import Layer, Norms
from llmir.frontends.layers.parts import decoder, kinds
from llmir.frontends.layers.state_config import channels, mamba2, shared_blocks

_SPELLED = {
    "mamba_n_heads": "n_mamba_heads",
    "mamba_n_groups": "mamba_ngroups",
    "mamba_d_head": "mamba_headdim",
    "mamba_proj_bias": "add_bias_linear",
    "layer_types": "layers_block_type",
}
_MAMBA, _HYBRID = ("linear_attention",), ("hybrid",)
_USUAL = _MAMBA + (_MAMBA * 5 + _HYBRID) * 7 + _MAMBA * 4 + _HYBRID + _MAMBA * 3 + _HYBRID + _MAMBA * 2
_NORMS = Norms("mamba_decoder.input_layernorm")


@family("Zamba2ForCausalLM", "zamba2")
def zamba2(config: Config) -> Decoder:
    """Zamba2ForCausalLM: Mamba-2; hybrid layers also use one of a few shared blocks, in rotation."""
    inner = channels(config.spelled(**_SPELLED))
    config.ignore("use_conv_bias", "use_mem_eff_path")  # the class has these biases, and only one form
    least = config.number("time_step_min", 0.001)
    keeps = mamba2(config, inner, heads=8, state=64, least=least, module="mamba")
    found = kinds(config, _USUAL, *_MAMBA, *_HYBRID, "mamba")
    uses = [i for i, kind in enumerate(found) if kind == "hybrid"]
    config.unmodelled("hybrid_layer_ids", (None, uses), "blocks in other layers than are hybrid")
    plain = Layer(keeps, None)
    hybrid = Layer(replace(keeps, module="mamba_decoder.mamba"), None, _NORMS)
    blocks = cycle(replace(hybrid, shared=block) for block in shared_blocks(config, uses))
    stack = tuple(next(blocks) if kind == "hybrid" else plain for kind in found)
    names = CheckpointNames(norm="model.final_layernorm")
    return decoder(config, "Zamba2ForCausalLM", stack, eps_default=1e-5, tied_default=True, names=names)
