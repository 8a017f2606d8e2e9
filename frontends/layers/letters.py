"""Layers of one sublayer, which configs name by a word or by a letter each (Nemotron-H)."""

from __future__ import annotations

from llmir.frontends.config.reader import Config
from llmir.frontends.config.source import show

_PATTERN = "hybrid_override_pattern"
_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_KINDS |= {kind: kind for kind in _KINDS.values()}
_KINDS |= {"mamba": "linear_attention", "attention": "full_attention"}


def kinds_by_letter(config: Config) -> tuple[str, ...]:
    """Of each layer, by its word or by a letter each."""
    field = next((key for key in ("layers_block_type", "layer_types") if config.texts(key)), _PATTERN)
    pattern = config.text(_PATTERN, "M*-E")
    for each in (found := config.texts(field) if field != _PATTERN else tuple(pattern)):
        if each not in _KINDS:
            raise config.error(field, f"{show(each)} is no layer; {', '.join(_KINDS)} are")
    return tuple(_KINDS[each] for each in found)
