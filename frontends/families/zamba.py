"""Zamba2. Defaults for absent fields are transformers' own."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

from ..config import Config
from ..decoder import Decoder, Names
from ..family import family
from ..layers import Layer, Norms
from ..mixers import Attention, Shared
from ..mlps import Mlp
from ..parts import activation, attention, decoder, kinds
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
_NORMS = Norms("mamba_decoder.input_layernorm")
_ATTENTION = {f"self_attn.{part}_proj": f"self_attn.linear_{part}_adapter_list" for part in "qkv"}
_MLP = {"feed_forward.gate_up_proj": "feed_forward.gate_up_proj_adapter_list"}


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
    plain, within = Layer(keeps, None), replace(keeps, module="mamba_decoder.mamba")
    use = f"{{layer:{'.'.join(map(str, uses))}}}"
    adapters = tuple((module, f"{adapter}.{use}") for module, adapter in _adapters(config).items())
    shared = replace(_shared(config), adapters=adapters)
    stems = [f"model.layers.{first}.shared_transformer." for first in uses]
    hybrid = Layer(within, None, _NORMS)
    each = [replace(hybrid, shared=replace(shared, stem=stem)) for stem in stems]
    blocks = cycle(each[: config.integer("num_mem_blocks", 1)])
    stack = tuple(next(blocks) if kind == "hybrid" else plain for kind in found)
    names = Names(norm="model.final_layernorm")
    return decoder(config, "Zamba2ForCausalLM", stack, eps_default=1e-5, tied_default=True, names=names)


def _adapters(config: Config) -> dict[str, str]:
    """Modules of a block, and the lists of what adapts them in each layer."""
    config.unmodelled("use_shared_mlp_adapter", (None, True), "MLPs that no layer adapts")
    if not config.flag("use_shared_attention_adapter", False):
        return _MLP
    why = "keys and values that are adapted and shared by heads"
    config.unmodelled("num_key_value_heads", (None, config.integer("num_attention_heads")), why)
    return {**_ATTENTION, **_MLP}


def _shared(config: Config) -> Shared:
    """A block: an MLP after attention of twice the hidden size."""
    width = config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size")
    config.unmodelled("ffn_hidden_size", (None, width), "an MLP of another size than intermediate_size")
    names = ("gate_up_proj[0]", "gate_up_proj[1]", "down_proj")
    act, bias = activation(config, default="gelu"), config.flag("add_bias_linear", False)
    fed = Mlp(width, bias, "feed_forward", matrices=names, activation=act)
    return Shared("", _attention(config), fed, rank=config.integer("adapter_rank", 128))


def _attention(config: Config) -> Attention:
    """Heads are twice as large as usual, and their scores are scaled as if they were not."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    size = 2 * hidden // heads
    due = {"attention_hidden_size": 2 * hidden, "attention_head_dim": size}
    due |= {"kv_channels": hidden // heads, "num_query_groups": heads}
    for key, value in due.items():
        config.unmodelled(key, (None, value), "other sizes than follow from the hidden one")
    config.unmodelled("use_long_context", (None, False), "positions beyond the trained ones")
    turned = rope(config, size, 4096) if config.flag("use_mem_rope", False) else None
    config.ignore("rope_theta", "rope_parameters", "rope_scaling")
    return attention(config, head_dim=size, rope=turned, scale=(size / 2) ** -0.5, given="s h")
