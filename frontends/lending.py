"""Layers of two kinds, of which the last read keys and values of others; one kind may have other heads."""

from __future__ import annotations

from dataclasses import replace

from llmir.errors import UnsupportedError

from .config import Config
from .mixers import Attention

GROUPS = "num_global_key_value_heads"
KINDS = SLIDING, FULL = ("sliding_attention", "full_attention")


def lending(
    config: Config, full: Attention, sliding: Attention, types: tuple[str, ...], shared: int
) -> list[Attention]:
    """By layer its attention; the last ones, `shared` unless it is stated, have no keys of their own."""
    key = "num_kv_shared_layers"
    shared = config.integer(key, shared, minimum=0, maximum=len(types))
    own = types[: len(types) - shared]
    if shared and {*own} != {*types}:
        missing = min({*types} - {*own})
        raise config.error(key, f"{shared} leaves no {missing} with keys of its own, which others read")
    each = {FULL: full, SLIDING: sliding}
    lent = {kind: replace(mixer, lends=mixer.sees) if shared else mixer for kind, mixer in each.items()}
    borrowing = {kind: replace(mixer, borrows=mixer.sees) for kind, mixer in each.items()}
    return [lent[kind] for kind in own] + [borrowing[kind] for kind in types[len(own) :]]


def sizes(config: Config, types: tuple[str, ...], size: int, kv: int, *, apart: bool) -> tuple[int, int]:
    """The head size and key/value heads of layers that see all, in either spelling.

    The first has its number of heads act where those layers are `apart`.
    """
    key, stated = "per_layer_config", config.nested("per_layer_config")
    wide, groups = config.integer("global_head_dim", 512), config.optional_integer(GROUPS)
    if stated is None:
        return wide, groups if apart and groups else kv
    each = {name: stated.nested(name) or config for name in stated.fields}
    found = {(own.integer("head_dim", size), own.integer("num_key_value_heads", kv)) for own in each.values()}
    full = [i for i, kind in enumerate(types) if kind == FULL]
    if len(found) != 1 or sorted(int(i) if i.isdigit() else -1 for i in each) != full:
        fact = f"sizes other than one for all layers of {FULL} are not modelled"
        raise config.error(key, fact, UnsupportedError)
    return found.pop()
