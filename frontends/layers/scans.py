"""What configs say of Mamba and Mamba-2, in the names that hybrids have; others spell them otherwise."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.reader import Config

from .mamba import Mamba, Mamba2

PLAIN = {"mamba_d_conv": "conv_kernel", "mamba_proj_bias": "use_bias", "mamba_conv_bias": "use_conv_bias"}
ALONE = {
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
    """Those of a scan: so many times the hidden size."""
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def mamba(config: Config, **differences: Any) -> Mamba:
    """Steps have a rank of a sixteenth of the hidden size, unless stated."""
    return Mamba(
        channels(config),
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
    """Of `inner` channels, or as many as heads have; what follows are a class's defaults.

    Without one for their size, heads have what is theirs of the channels.
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
