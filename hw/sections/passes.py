"""Which passes make of a model what an engine runs: the section `passes` of its file, by first release."""

from __future__ import annotations

from llmir.dataclass import dataclass
from llmir.hw import schema, versions
from llmir.hw.releases import records
from llmir.hw.schema import Key


@dataclass(frozen=True)
class Passes:
    """What it does to every model by default, as a pipeline spells it."""

    pipeline: str
    source: str = ""


passes = versions.section("passes")(
    records(
        Passes,
        {
            "pipeline": Key("pipeline", schema.text, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)
