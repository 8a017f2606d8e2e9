"""The record of a published model: its name, config, parameter count and aliases."""

from __future__ import annotations

from collections.abc import Mapping

from llmir.base.dataclass import dataclass
from llmir.base.names import normalize
from llmir.base.values import Record


@dataclass(frozen=True, eq=False)
class Preset(Record):
    """One published model.

    `parameters` is the total its publisher states, counted over weights only (not over buffers such
    as rotary tables), and what transformers' class has with the same config, where it has the class
    (`scripts/preset_totals.py` compares them all). `aliases` are releases with the same weight shapes: they
    may differ in how long a context they were tuned for. `hf_id` is empty where the hub has none.
    """

    name: str
    hf_id: str
    config: Mapping[str, object]
    parameters: int
    aliases: tuple[str, ...] = ()

    def spellings(self) -> set[str]:
        """Every name that finds this preset, normalized."""
        return {normalize(name) for name in (self.name, self.hf_id, *self.aliases) if name}
