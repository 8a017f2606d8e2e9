"""Zamba2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import Attention, Shared
from ..mlps import Mlp
from ..parts import activation, attention, decoder, kinds, layers
from ..rope import rope
from ..scans import channels, mamba2

_SPELLED = {
    "mamba_n_heads": "n_mamba_heads",
    "mamba_n_groups": "mamba_ngroups",
    "mamba_d_head": "mamba_headdim",
    "mamba_proj_bias": "add_bias_linear",
    "layer_types": "layers_block_type",
}
_MAMBA, _HYBRID = ("linear_attention",), ("hybrid",)
_USUAL = _MAMBA + (_MAMBA * 5 + _HYBRID) * 7 + _MAMBA * 4 + _HYBRID + _MAMBA * 3 + _HYBRID + _MAMBA * 2
_NORM = "mamba_decoder.input_layernorm"


@family("Zamba2ForCausalLM", "zamba2")
def zamba2(config: Config) -> Decoder:
    """Zamba2ForCausalLM: Mamba-2, and in hybrid layers what few blocks give that they share in turn."""
    inner = channels(config.spelled(**_SPELLED))
    config.ignore("use_conv_bias", "use_mem_eff_path")  # the class has biases there, and one way
    least = config.number("time_step_min", 0.001)
    keeps = mamba2(config, inner, heads=8, state=64, least=least, module="mamba")
    found = kinds(config, _USUAL, *_MAMBA, *_HYBRID, "mamba")
    uses = [i for i, kind in enumerate(found) if kind == "hybrid"]
    config.unmodelled("hybrid_layer_ids", (None, uses), "blocks in other layers than are hybrid")
    stack = [Layer(keeps, None)] * layers(config)
    inside = replace(keeps, module="mamba_decoder.mamba")
    hybrid = Layer(inside, None, Norms(_NORM))
    count, shared = config.integer("num_mem_blocks", 1), _shared(config, uses)
    stems = (f"model.layers.{first}.shared_transformer." for first in uses)
    blocks = [replace(hybrid, shared=replace(shared, stem=stem)) for stem in stems][:count]
    for use, layer in enumerate(uses):
        stack[layer] = blocks[use % count]
    how: dict[str, Any] = {"tied_default": True, "eps_default": 1e-5}
    names = Names(norm="model.final_layernorm")
    return decoder(config, "Zamba2ForCausalLM", tuple(stack), names=names, **how)


def _shared(config: Config, uses: list[int]) -> Shared:
    """A block that sees twice the hidden size, with adapters by the number of the use."""
    use = f"{{layer:{'.'.join(map(str, uses))}}}"
    adapters = tuple((module, f"{adapter}.{use}") for module, adapter in _adapters(config))
    gate_up, bias = "gate_up_proj", config.flag("add_bias_linear", False)
    width = config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size")
    fed = Mlp(
        width,
        bias,
        "feed_forward",
        matrices=(f"{gate_up}[0]", f"{gate_up}[1]", "down_proj"),
        activation=activation(config, default="gelu"),
    )
    config.unmodelled("use_shared_mlp_adapter", (None, True), "MLPs that no layer adapts")
    return Shared("", _attention(config), fed, adapters, config.integer("adapter_rank", 128))


def _attention(config: Config) -> Attention:
    """Heads are twice as large as usual, and their scores are scaled as if they were not."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    size, why = 2 * hidden // heads, "other sizes than follow from the hidden one"
    for key, due in (("attention_head_dim", size), ("attention_hidden_size", 2 * hidden)):
        config.unmodelled(key, (None, due), why)
    config.unmodelled("kv_channels", (None, hidden // heads), why)
    config.unmodelled("num_query_groups", (None, heads), why)
    config.unmodelled("use_long_context", (None, False), "positions beyond the trained ones")
    turned = rope(config, size, 4096) if config.flag("use_mem_rope", False) else None
    config.ignore("rope_theta", "rope_parameters", "rope_scaling")
    return attention(config, head_dim=size, rope=turned, scale=(size / 2) ** -0.5, given="s h")


def _adapters(config: Config) -> Iterator[tuple[str, str]]:
    """Modules of a block, and what is called by a number for each use of it."""
    if config.flag("use_shared_attention_adapter", False):
        why = "keys and values that are adapted and shared by heads"
        config.unmodelled("num_key_value_heads", (None, config.integer("num_attention_heads")), why)
        for part in "qkv":
            yield f"self_attn.{part}_proj", f"self_attn.linear_{part}_adapter_list"
    yield "feed_forward.gate_up_proj", "feed_forward.gate_up_proj_adapter_list"
