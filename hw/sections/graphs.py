"""Which steps an engine launches as a graph: the section `graphs` of its file, by first release."""

from __future__ import annotations

from typing import Any

from llmir.dataclass import dataclass
from llmir.dim import Number
from llmir.hw import schema, versions
from llmir.hw.releases import records
from llmir.hw.schema import Key


@dataclass(frozen=True)
class Graphs:
    """Graphs of up to so many `tokens` on a rank, 0 where none are; if `mixed`, of prompts' steps too."""

    tokens: float
    mixed: bool = False
    source: str = ""

    def hold(self, tokens: Number, decodes: Any) -> Any:
        """Whether a step of so many tokens on a rank is in one, which decodes alone or does not."""
        return (tokens <= self.tokens) & (decodes | self.mixed)


graphs = versions.section("graphs")(
    records(
        Graphs,
        {
            "tokens": Key("tokens", schema.amount, required=True),
            "mixed": Key("mixed", schema.flag, required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)
