"""Which passes make of a model what an engine runs: the section `passes` of its file, by first release."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.hw import schema, versions
from llmir.hw.releases import Releases, releases
from llmir.hw.schema import Key


@dataclass(frozen=True)
class Passes:
    """What it does to every model by default, as a pipeline spells it."""

    pipeline: str
    source: str = ""


PASSES = {
    "pipeline": Key("pipeline", schema.text, required=True),
    "source": Key("source", schema.text, required=True),
}


@versions.section("passes")
def passes(value: object, where: str) -> Releases[Passes]:
    """The releases of a file; HardwareError for what is none."""
    return releases(value, where, lambda said, at: Passes(**schema.read(said, at, PASSES)))
