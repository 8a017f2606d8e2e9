"""What configs say of linear attention by the delta rule."""

from __future__ import annotations

from typing import Any

from llmir.frontends.config.reader import Config

from .linear_attention import DeltaNet, kda

_KIMI = (  # beside the object of them, or in it
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
    """With heads of keys and of values, and their sizes; `differences` are further fields of `DeltaNet`."""
    keys, values = heads
    if values % keys:
        raise config.error("linear_num_value_heads", f"{values} is no multiple of {keys} key heads")
    taps = config.integer("linear_conv_kernel_dim", 4)
    return DeltaNet(keys, values, *sizes, taps, eps, projections, **differences)


def qwen_delta(config: Config, stacks: tuple[str, ...], *, by_head: bool) -> DeltaNet:
    """Qwen's, whose projections are so stacked: by key head, or not."""
    keys, values = config.integer("linear_num_key_heads", 16), config.integer("linear_num_value_heads", 32)
    sizes = config.integer("linear_key_head_dim", 128), config.integer("linear_value_head_dim", 128)
    projections = tuple((f"in_proj_{parts}", keys if by_head else 1, parts) for parts in stacks)
    return delta_net(config, (keys, values), sizes, config.number("rms_norm_eps", 1e-6), projections)


def kimi_delta(config: Config, linear: Config) -> DeltaNet:
    """Kimi's; `linear` is the object that may state its sizes."""
    sizes = (linear.integer(inner, config.integer(key, default)) for key, inner, default in _KIMI)
    return kda(*sizes, eps=config.number("rms_norm_eps", 1e-5))
