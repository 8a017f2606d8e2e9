"""The bundled models: an index of their names, and one YAML file for each model.

`index.yaml` lists the names. The file of a model has its config, its published number of parameters, and the
sources of both. It is read when the model is first used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from llmir.base import readers
from llmir.base.dataclass import dataclass
from llmir.base.names import normalize
from llmir.base.values import FrozenDict, Immutable, Record

FOLDER = Path(__file__).parent

# An entry of the index, which is read without a YAML parser: 0.5 ms instead of 6 ms.
_ENTRY = re.compile(r"^(\S+): \[([^]]*)\]", re.MULTILINE)


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

    @property
    def architectures(self) -> tuple[str, ...]:
        """The classes in its config."""
        found = self.config["architectures"]
        return tuple(map(str, found)) if isinstance(found, Iterable) else ()

    def spellings(self) -> set[str]:
        """Every name that finds this preset, normalized."""
        return {normalize(name) for name in (self.name, self.hf_id, *self.aliases) if name}


class Presets(Immutable, Mapping[str, Preset]):
    """The presets by display name, in the order of the index."""

    def __getitem__(self, name: str) -> Preset:
        return _read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_index())

    def __len__(self) -> int:
        return len(_index())


PRESETS = Presets()


def find(name: str) -> Preset | None:
    """The preset with a name, Hugging Face id or alias, ignoring case, dashes and organization.

    >>> find("qwen/QWEN3_30b-a3b").name
    'Qwen3-30B-A3B'
    """
    found = _by_spelling().get(normalize(name))
    return None if found is None else PRESETS[found]


def names() -> list[str]:
    """The display names, by family and then by age and size."""
    return list(PRESETS)


@cache
def _index() -> Mapping[str, tuple[str, ...]]:
    """The id on the hub, and then the aliases, by display name."""
    text = (FOLDER / "index.yaml").read_text("utf-8")
    entries = _ENTRY.findall(text)
    return FrozenDict({name: tuple(x.strip(' "\n') for x in others.split(",")) for name, others in entries})


@cache
def _by_spelling() -> Mapping[str, str]:
    """The display name by each normalized spelling of a name."""
    spellings = ((spelling, name) for name, others in _index().items() for spelling in (name, *others))
    return {normalize(spelling): name for spelling, name in spellings if spelling}


@cache
def _read(name: str) -> Preset:
    hf_id, *aliases = _index()[name]
    fields = readers.load_yaml(readers.read_bytes(FOLDER / f"{name.lower()}.yaml", readers.BUDGET))
    return Preset(name, hf_id, fields["config"], fields["parameters"], tuple(aliases))
