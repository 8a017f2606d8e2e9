"""Which passes make of a model what an engine runs: the section `passes` of its file, by first release."""

from __future__ import annotations

from llmir.base.dataclass import dataclass

from . import engine, schema
from .releases import records
from .schema import Key


@dataclass(frozen=True)
class Passes:
    """What it does to every model by default, as a pipeline spells it."""

    pipeline: str
    source: str = ""


passes = engine.section("passes")(
    records(
        Passes,
        {
            "pipeline": Key("pipeline", schema.text, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)
