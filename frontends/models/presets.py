"""The table of bundled models, and the search by name, id or alias."""

from __future__ import annotations

from llmir.base.names import normalize
from llmir.base.values import FrozenDict

from . import (
    allenai,
    cohere,
    deepseek,
    gemma,
    gemma4,
    images,
    llama,
    mistral,
    newest,
    older,
    others,
    phi,
    qwen,
    recent,
    remote,
    sparse,
    state,
)
from .preset import Preset

_FAMILIES = (
    llama,
    mistral,
    others,
    phi,
    qwen,
    deepseek,
    newest,
    sparse,
    gemma,
    gemma4,
    cohere,
    allenai,
    older,
    state,
    images,
    recent,
    remote,
)
PRESETS = FrozenDict({preset.name: preset for family in _FAMILIES for preset in family.presets()})
_BY_SPELLING = {spelling: preset for preset in PRESETS.values() for spelling in preset.spellings()}


def find(name: str) -> Preset | None:
    """The preset with a name, Hugging Face id or alias, ignoring case, dashes and organization.

    >>> find("qwen/QWEN3_30b-a3b").name
    'Qwen3-30B-A3B'
    """
    return _BY_SPELLING.get(normalize(name))


def names() -> list[str]:
    """The display names, by family and then by age and size."""
    return list(PRESETS)
