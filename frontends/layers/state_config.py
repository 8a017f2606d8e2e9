"""What configs say of blocks that layers share in turn (Zamba2)."""

from __future__ import annotations

from collections.abc import Sequence

from llmir.frontends.config.reader import Config

from .attention import Attention
from .mlp import Mlp
from .parts import activation, attention
from .rope import rope
from .shared_block import Shared

_ATTENTION = {f"self_attn.{part}_proj": f"self_attn.linear_{part}_adapter_list" for part in "qkv"}
_MLP = {"feed_forward.gate_up_proj": "feed_forward.gate_up_proj_adapter_list"}


def shared_blocks(config: Config, uses: Sequence[int]) -> list[Shared]:
    """The blocks that layers of the numbers in `uses` have in turn: an MLP after attention of both inputs.

    Checkpoints hold each where it is used first, and beside each the adapters of all its uses.
    """
    use = f"{{layer:{'.'.join(map(str, uses))}}}"
    adapters = tuple((module, f"{adapter}.{use}") for module, adapter in _adapters(config).items())
    width = config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size")
    config.unmodelled("ffn_hidden_size", (None, width), "an MLP of another size than intermediate_size")
    names = ("gate_up_proj[0]", "gate_up_proj[1]", "down_proj")
    act, bias = activation(config, default="gelu"), config.flag("add_bias_linear", False)
    fed, mixer = Mlp(width, bias, "feed_forward", matrices=names, activation=act), _attention(config)
    rank, count = config.integer("adapter_rank", 128), config.integer("num_mem_blocks", 1)
    stems = [f"model.layers.{first}.shared_transformer." for first in uses[:count]]
    return [Shared(stem, mixer, fed, adapters, rank) for stem in stems]


def _adapters(config: Config) -> dict[str, str]:
    """Modules of a block, and the lists of what adapts them in each layer."""
    config.unmodelled("use_shared_mlp_adapter", (None, True), "MLPs that no layer adapts")
    if not config.flag("use_shared_attention_adapter", False):
        return _MLP
    why = "keys and values that are adapted and shared by heads"
    config.unmodelled("num_key_value_heads", (None, config.integer("num_attention_heads")), why)
    return {**_ATTENTION, **_MLP}


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
