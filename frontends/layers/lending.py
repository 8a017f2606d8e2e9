"""Layers of two kinds, of which the last read keys and values of others."""

from __future__ import annotations

from dataclasses import replace

from llmir.frontends.config.reader import Config

from .attention import Attention

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
