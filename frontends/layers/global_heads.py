"""Attention that has heads of another size and number in layers that see all (Gemma 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmir.base.errors import UnsupportedError
from llmir.frontends.config.reader import Config

from .attention import Attention
from .lending import FULL, SLIDING
from .parts import attention, heads, window
from .rope import ropes

_GROUPS = "num_global_key_value_heads"
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


def global_heads(config: Config, types: tuple[str, ...]) -> tuple[Attention, Attention]:
    """That of layers that see all, whose keys and values may be of one projection; and that with windows."""
    bias, one = config.flag("attention_bias", False), config.flag("attention_k_eq_v", False)
    count, kv, size = heads(config, None, None)
    wide, groups = _sizes(config, types, size, kv, apart=one)
    if count % groups:
        raise config.error(_GROUPS, f"{groups} does not divide {count} attention heads")
    local, whole = ropes(config, (size, wide), 131072, 1e4, 1e6, default=_ROPES)
    how: dict[str, Any] = {"qk_norm": "head", "bare_v": True, "scale": 1.0, "mask": window(config, 512)}
    sliding = attention(config, rope=local, qkv_bias=bias, out_bias=bias, **how)
    full = replace(sliding, rope=whole, mask="causal", head_dim=wide, kv_heads=groups, one_kv=one)
    return full, sliding


def _sizes(config: Config, types: tuple[str, ...], size: int, kv: int, *, apart: bool) -> tuple[int, int]:
    """The head size and key/value heads of layers that see all, in either spelling.

    The first has its number of heads act where those layers are `apart`.
    """
    key, stated = "per_layer_config", config.nested("per_layer_config")
    wide, groups = config.integer("global_head_dim", 512), config.optional_integer(_GROUPS)
    if stated is None:
        return wide, groups if apart and groups else kv
    each = {name: stated.nested(name) or config for name in stated.fields}
    found = {(own.integer("head_dim", size), own.integer("num_key_value_heads", kv)) for own in each.values()}
    full = [i for i, kind in enumerate(types) if kind == FULL]
    if len(found) != 1 or sorted(int(i) if i.isdigit() else -1 for i in each) != full:
        fact = f"sizes other than one for all layers of {FULL} are not modelled"
        raise config.error(key, fact, UnsupportedError)
    return found.pop()
