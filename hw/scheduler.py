"""How an engine fills its steps: the section `scheduler` of its file, by first release."""

from __future__ import annotations

from llmir.base.dataclass import dataclass

from . import engine, schema
from .releases import records
from .schema import Key


@dataclass(frozen=True)
class Scheduler:
    """One that `mixes` reads chunks of prompts beside decodes; else prompts go first, and decodes wait.

    One that goes `ahead` fills a step while the one before it runs.
    One that `pads` runs all sequences of a step as if they were as long as the longest.
    """

    mixes: bool = True
    pads: bool = False
    ahead: bool = False
    source: str = ""


scheduler = engine.section("scheduler")(
    records(
        Scheduler,
        {
            "mixes": Key("mixes", schema.flag, required=True),
            "pads": Key("pads", schema.flag),
            "ahead": Key("ahead", schema.flag),
            "source": Key("source", schema.text, required=True),
        },
    )
)
