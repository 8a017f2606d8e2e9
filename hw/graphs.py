"""Which steps an engine launches as a graph: the section `graphs` of its file, by first release."""

from __future__ import annotations

from typing import Any

from llmir.base.array_namespace import Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.base.values import Record

from . import engine, schema
from .by_device import ByDevice, first, options
from .device import Device
from .releases import records
from .schema import Key

Sizes = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Captured(ByDevice):
    """The largest graphs, in tokens of a data-parallel rank: of steps that only decode, and of others.

    0 where there are none.
    """

    decodes: float = 0
    prompts: float = 0

    def hold(self, tokens: Number, decodes: Any, reads: Any) -> Any:
        """Whether a step of so many tokens on a rank is in one, if it may be of decodes, of prompts or both.

        A few new tokens of each sequence are either: drafts to verify, or the rest of a prompt.
        """
        return (decodes & (tokens <= self.decodes)) | (reads & (tokens <= self.prompts))


@dataclass(frozen=True, eq=False)
class Graphs(Record):
    """The largest graphs by device, and of how many sequences there are any.

    `sizes` are pairs (most, multiple): up to so many sequences there is one of each multiple, which runs
    where fewer decode. Without any, each number has its own.
    """

    largest: tuple[Captured, ...]
    sizes: Sizes = ()
    source: str = ""

    def padded(self, sequences: Number, xp: Namespace) -> Number:
        """Of how many sequences the graph is that decodes these; beyond all of them, these.

        >>> from llmir.base.array_namespace import SCALARS
        >>> graphs = Graphs((), ((1, 1), (2, 2), (4, 4), (256, 8)))
        >>> [graphs.padded(n, SCALARS) for n in (1, 2, 3, 5, 8, 33, 300)]
        [1, 2, 4, 8, 8, 40, 300]
        """
        found = sequences
        for most, multiple in reversed(self.sizes):
            found = xp.where(sequences <= most, xp.ceildiv(sequences, multiple) * multiple, found)
        return found

    def on(self, device: Device, tp: int) -> Captured:
        """Those of a device in so many tensor-parallel ranks."""
        return first(self.largest, device, tp)


CAPTURED = {
    "decodes": Key("decodes", schema.amount, required=True),
    "prompts": Key("prompts", schema.amount),
}


def _sizes(value: object, where: str, unit: float) -> Sizes:
    pairs = schema.mapping(value, where).items()
    found = tuple(
        (schema.count(most, where, unit), schema.count(each, f"{where}.{most}", unit)) for most, each in pairs
    )
    if list(found) != sorted(found) or any(most % each for most, each in found):
        wanted = "rising numbers of sequences, each with what it is a multiple of"
        raise HardwareError(f"{where}: expected {wanted}, got {schema.show(value)}")
    return found


graphs = engine.section("graphs")(
    records(
        Graphs,
        {
            "largest": Key("largest", options(Captured, CAPTURED), required=True),
            "sizes": Key("sizes", _sizes),
            "source": Key("source", schema.text, required=True),
        },
    )
)
