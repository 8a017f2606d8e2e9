"""Readers of config fields for linear attention, Mamba, and shared blocks (Zamba2).

Mamba fields have the names that hybrid models use; `PLAIN` and `STANDALONE` list the other spellings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmir.frontends.config.reader import Config

from .attention import Attention
from .linear_attention import DeltaNet, kda
from .mamba import Mamba, Mamba2
from .mlp import Mlp
from .parts import activation, attention
from .rope import rope
from .shared_block import SharedBlock

# --- Shared blocks ---

_ATTENTION = {f"self_attn.{part}_proj": f"self_attn.linear_{part}_adapter_list" for part in "qkv"}
_MLP = {"feed_forward.gate_up_proj": "feed_forward.gate_up_proj_adapter_list"}


def shared_blocks(config: Config, uses: Sequence[int]) -> list[SharedBlock]:
    """The shared block of each layer in `uses`, in rotation: attention over both inputs, then an MLP.

    Checkpoints store each block at its first use, together with the adapters of all its uses.
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
    return [SharedBlock(stem, mixer, fed, adapters, rank) for stem in stems]


def _adapters(config: Config) -> dict[str, str]:
    """The modules of a block, with the lists of their adapters by layer."""
    config.unmodelled("use_shared_mlp_adapter", (None, True), "MLPs that no layer adapts")
    if not config.flag("use_shared_attention_adapter", False):
        return _MLP
    why = "keys and values that are adapted and shared by heads"
    config.unmodelled("num_key_value_heads", (None, config.integer("num_attention_heads")), why)
    return {**_ATTENTION, **_MLP}


def _attention(config: Config) -> Attention:
    """Attention with twice the head size; the scale of scores is that of the original head size."""
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


# --- Delta nets ---

_KIMI = (  # fields next to the object for linear layers, or inside it
    ("linear_num_heads", "num_heads", 32),
    ("linear_head_dim", "head_dim", 128),
    ("linear_conv_kernel_dim", "short_conv_kernel_size", 4),
)


def delta_net(
    config: Config,
    heads: tuple[int, int],
    sizes: tuple[int, int],
    eps: float,
    projections: tuple[tuple[str, int, str], ...],
    **differences: Any,
) -> DeltaNet:
    """Read a DeltaNet; the arguments give heads and sizes of keys and values, and the other fields."""
    keys, values = heads
    if values % keys:
        raise config.error("linear_num_value_heads", f"{values} is no multiple of {keys} key heads")
    taps = config.integer("linear_conv_kernel_dim", 4)
    return DeltaNet(keys, values, *sizes, taps, eps, projections, **differences)


def qwen_delta(config: Config, stacks: tuple[str, ...], *, by_head: bool) -> DeltaNet:
    """Read Qwen's DeltaNet; its projections may be stacked by key head."""
    keys, values = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
    sizes = config.integer("linear_key_head_dim", 128), config.integer("linear_value_head_dim", 128)
    projections = tuple((f"in_proj_{parts}", keys if by_head else 1, parts) for parts in stacks)
    return delta_net(config, (keys, values), sizes, config.number("rms_norm_eps", 1e-6), projections)


def kimi_delta(config: Config, linear: Config) -> DeltaNet:
    """Read Kimi's delta net; `linear` is the config object that may contain its sizes."""
    sizes = (linear.integer(inner, config.integer(key, default)) for key, inner, default in _KIMI)
    return kda(*sizes, eps=config.number("rms_norm_eps", 1e-5))


# --- Mamba ---

PLAIN = {"mamba_d_conv": "conv_kernel", "mamba_proj_bias": "use_bias", "mamba_conv_bias": "use_conv_bias"}
STANDALONE = {
    **PLAIN,
    "mamba_expand": "expand",
    "mamba_d_state": "state_size",
    "mamba_dt_rank": "time_step_rank",
    "mamba_n_heads": "num_heads",
    "mamba_d_head": "head_dim",
    "mamba_n_groups": "n_groups",
}
"""What models of nothing but scans call them."""


def channels(config: Config) -> int:
    """The channels of a scan: a multiple of the hidden size."""
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def mamba(config: Config, inner: int = 0, **differences: Any) -> Mamba:
    """Read a scan of `inner` channels; by default, the rank of steps is hidden / 16."""
    return Mamba(
        inner or channels(config),
        config.integer("mamba_d_state", 16),
        config.stated("mamba_dt_rank") or -(-config.integer("hidden_size") // 16),
        config.integer("mamba_d_conv", 4),
        config.flag("mamba_proj_bias", False),
        config.flag("mamba_conv_bias", True),
        **differences,
    )


def mamba2(
    config: Config,
    inner: int = 0,
    *,
    heads: int = 128,
    size: int = 0,
    groups: int = 1,
    state: int = 256,
    **differences: Any,
) -> Mamba2:
    """Read Mamba-2 with `inner` channels, by default heads · head size; other arguments are defaults.

    Without a default for the head size, the heads share the channels equally.
    """
    heads, groups = config.integer("mamba_n_heads", heads), config.integer("mamba_n_groups", groups)
    if heads % groups:
        raise config.error("mamba_n_groups", f"{groups} does not divide {heads} heads")
    size = config.stated("mamba_d_head") or size or inner // heads
    if inner and heads * size != inner:
        raise config.error("mamba_n_heads", f"{heads} of size {size} are not the {inner} channels")
    return Mamba2(
        heads,
        size,
        groups,
        config.integer("mamba_d_state", state),
        config.integer("mamba_d_conv", 4),
        config.flag("mamba_proj_bias", False),
        config.flag("mamba_conv_bias", True),
        **differences,
    )
