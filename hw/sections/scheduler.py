"""How an engine fills its steps: the section `scheduler` of its file, by first release."""

from __future__ import annotations

from dataclasses import dataclass

from llmir.hw import schema, versions
from llmir.hw.releases import Releases, releases
from llmir.hw.schema import Key


@dataclass(frozen=True)
class Scheduler:
    """One that `mixes` reads chunks of prompts beside decodes; else prompts go first, and decodes wait."""

    mixes: bool = True
    source: str = ""


SCHEDULER = {
    "mixes": Key("mixes", schema.flag, required=True),
    "source": Key("source", schema.text, required=True),
}


@versions.section("scheduler")
def scheduler(value: object, where: str) -> Releases[Scheduler]:
    """The releases of a file; HardwareError for what is none."""
    return releases(value, where, lambda said, at: Scheduler(**schema.read(said, at, SCHEDULER)))
