"""The record of a published model: its name, config, parameter count and aliases."""

from __future__ import annotations

from collections.abc import Mapping

from llmir.base.dataclass import dataclass
from llmir.base.names import normalize
from llmir.base.values import Record


@dataclass(frozen=True, eq=False)
class Preset(Record):
    """One published model.

    `parameters` is the published total of weights (without buffers such as rotary tables). It equals the
    total of transformers' class with this config, if the class exists (`scripts/preset_totals.py` compares
    them all). `aliases` are releases with the same weight shapes; their context lengths may differ. `hf_id`
    is empty if the hub lacks the model.
    """

    name: str
    hf_id: str
    config: Mapping[str, object]
    parameters: int
    aliases: tuple[str, ...] = ()

    def spellings(self) -> set[str]:
        """Every name that finds this preset, normalized."""
        return {normalize(name) for name in (self.name, self.hf_id, *self.aliases) if name}
