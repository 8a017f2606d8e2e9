"""Which steps an engine launches as a graph: the section `graphs` of its file, by first release."""

from __future__ import annotations

from typing import Any

from llmir.dataclass import dataclass
from llmir.dim import Number
from llmir.frozen import Record
from llmir.hw import Device, schema, versions
from llmir.hw.by_device import ByDevice, first, options
from llmir.hw.releases import records
from llmir.hw.schema import Key


@dataclass(frozen=True, eq=False, kw_only=True)
class Captured(ByDevice):
    """The largest graphs, in tokens of a data-parallel rank: of steps that only decode, and of others.

    0 where there are none.
    """

    decodes: float = 0
    prompts: float = 0

    def hold(self, tokens: Number, decodes: Any) -> Any:
        """Whether a step of so many tokens on a rank is in one, which decodes alone or does not."""
        return (decodes & (tokens <= self.decodes)) | ((decodes ^ True) & (tokens <= self.prompts))


@dataclass(frozen=True, eq=False)
class Graphs(Record):
    """The largest graphs by device."""

    largest: tuple[Captured, ...]
    source: str = ""

    def on(self, device: Device, tp: int) -> Captured:
        """Those of a device in so many tensor-parallel ranks."""
        return first(self.largest, device, tp)


CAPTURED = {
    "decodes": Key("decodes", schema.amount, required=True),
    "prompts": Key("prompts", schema.amount),
}

graphs = versions.section("graphs")(
    records(
        Graphs,
        {
            "largest": Key("largest", options(Captured, CAPTURED), required=True),
            "source": Key("source", schema.text, required=True),
        },
    )
)
