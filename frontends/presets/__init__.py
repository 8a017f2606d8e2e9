"""Published models by name: enough of each Hugging Face config to rebuild its graph, and its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmir.names import normalize


@dataclass(frozen=True)
class Preset:
    """One published model.

    `parameters` is the total its publisher states, counted over weights only (not over buffers such
    as rotary tables). `aliases` are releases with the same weight shapes: they may differ in how long
    a context they were tuned for.
    """

    name: str
    hf_id: str
    config: Mapping[str, object]
    parameters: int
    aliases: tuple[str, ...] = ()

    def spellings(self) -> set[str]:
        """Every name that finds this preset, normalized."""
        return {normalize(name) for name in (self.name, self.hf_id, *self.aliases)}


# Below the class because the tables are made of it.
from llmir.frontends.presets import llama, qwen  # noqa: E402

PRESETS = {preset.name: preset for preset in (*llama.presets(), *qwen.presets())}
_BY_SPELLING = {spelling: preset for preset in PRESETS.values() for spelling in preset.spellings()}


def find(name: str) -> Preset | None:
    """The preset of that name, Hugging Face id or alias, whatever its case, dashes and organisation.

    >>> find("qwen/QWEN3_30b-a3b").name
    'Qwen3-30B-A3B'
    """
    return _BY_SPELLING.get(normalize(name))


def names() -> list[str]:
    """The display names, by family and then by age and size."""
    return list(PRESETS)
