"""Sections of a picture: ops as boxes, layer by layer, and layers that are alike drawn once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from llmir.backends.step.costs import OpCost
from llmir.base.dataclass import dataclass
from llmir.ir.core.op import Op
from llmir.ir.core.tensor import Tensor


@dataclass(frozen=True)
class Held:
    """A weight or cache that an op reads or writes: its role, its name and what a rank has of it."""

    role: str
    name: str
    type: Tensor


@dataclass(frozen=True, eq=False)
class Box:
    """A row as drawn, an op and its results or no op; a step runs it `times` times, each `cost.time_s`."""

    id: str
    path: str
    cost: OpCost
    times: int
    group: str
    note: str = ""
    op: Op | None = None
    results: tuple[Tensor, ...] = ()
    equation: str = ""
    held: tuple[Held, ...] = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def total_s(self) -> float:
        """Seconds of all its runs."""
        return self.times * float(self.cost.time_s)

    @property
    def bytes(self) -> float:
        """Bytes that one run reads and writes."""
        return float(self.cost.read_bytes + self.cost.write_bytes)

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for ops that do the same at the same cost in another layer."""
        return (self.name, self.op, self.results, self.cost.time_s, self.bytes, self.cost.repeat)


@dataclass(frozen=True, eq=False)
class Section:
    """Ops in schedule order that lie in one layer, or (`prefix` empty) around the layers.

    `folded` are the full paths of the layers that it stands for, those of the `stages` alike among them;
    `nest` is how often each repeat around it runs, outermost first, and `body` the graph that it is. Where
    that lies in several `places` of the pattern, it is drawn once, and `nest` is of the first.
    """

    prefix: str
    boxes: tuple[Box, ...]
    folded: tuple[str, ...]
    micro_batches: int = 1
    stages: int = 1
    nest: tuple[int, ...] = ()
    body: str = ""
    places: int = 1

    @property
    def id(self) -> str:
        """Its name among all sections: that of its first op."""
        return self.boxes[0].id

    @property
    def times(self) -> int:
        """How often a step runs it."""
        return min(b.times for b in self.boxes)

    @property
    def period(self) -> tuple[str, int] | None:
        """The body of several layers that it is one of, and how often that runs; None of a layer alone."""
        nested = len(self.nest) > 1 and self.places == 1
        return (self.prefix.rpartition(".")[0], prod(self.nest[:-1])) if nested else None

    @property
    def sees(self) -> str:
        """What its attention says of itself, such as its window; or nothing."""
        notes = [b.note for b in self.boxes if b.note and b.cost.kind == "attention"]
        return f", {notes[0]}" if notes else ""

    @property
    def title(self) -> str:
        """Its name, with `layer` said if the name doesn't."""
        words = self.prefix.split(".")
        if len(self.folded) > 1 and words[-1].isdigit():
            words.pop()
        name = words[-1] if len(self.nest) > 1 else " ".join(words)
        return name if "layer" in name else f"{name} layer"

    @property
    def count(self) -> str:
        """How often a micro-batch runs it, on each of its stages."""
        nest = f" = {' × '.join(map(str, self.nest))}" if self.period and self.nest[-1] > 1 else ""
        return f"× {self.times // self.micro_batches // self.stages}{nest}"

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for layers that do the same at the same cost, wherever they are and however often."""
        ops = ((b.name, type(b.op), b.results, b.cost.time_s, b.bytes) for b in self.boxes)
        return (self.prefix, *ops)

    @property
    def total_s(self) -> float:
        """Seconds of all its runs."""
        return sum(b.total_s for b in self.boxes)

    @property
    def groups(self) -> dict[str, tuple[Box, ...]]:
        """Its ops by part of the layer, in order of first appearance."""
        names = dict.fromkeys(b.group for b in self.boxes)
        return {name: tuple(b for b in self.boxes if b.group == name) for name in names}


def gathered(sections: Sequence[Section]) -> Iterator[Section]:
    """Each body once, where some lie in several places of a pattern; as they are where none does."""
    found: dict[object, list[Section]] = {}
    for section in sections:
        ops = (b.likeness[:-1] for b in section.boxes)  # but how often the step runs each
        found.setdefault((section.body, *ops) if section.body else section, []).append(section)
    if all(len(alike) == 1 for alike in found.values()):
        yield from sections
        return
    for first, *others in found.values():
        boxes = tuple(
            replace(b, times=b.times + sum(s.boxes[i].times for s in others))
            for i, b in enumerate(first.boxes)
        )
        folded = (*first.folded, *(path for s in others for path in s.folded))
        places = max(len(alike) for alike in found.values())
        yield replace(first, boxes=boxes, folded=folded, places=places if first.body else 1)


def grouped(boxes: Iterable[Box]) -> tuple[Box, ...]:
    """The boxes with each norm put to the part of the layer that it prepares."""
    found: list[Box] = []
    following = ""
    for box in reversed(list(boxes)):
        own = "" if box.group in ("norm", "streams") else box.group
        following = own or following
        found.append(replace(box, group=following or box.group))
    return tuple(reversed(found))


def folded(sections: Iterable[Section]) -> Iterator[Section]:
    """Runs of equal layers as one section each."""

    def likeness(section: Section) -> object:
        stem = re.sub(r"(^|\.)\d+$", r"\1", section.prefix)
        return (stem, *(b.likeness for b in section.boxes))

    for _, run in groupby(sections, likeness):
        first, *others = run
        folds = 1 + len(others)
        boxes = tuple(replace(b, times=b.times * folds) for b in first.boxes)
        yield replace(first, boxes=boxes, folded=(*first.folded, *(p for s in others for p in s.folded)))


def over_stages(
    stages: Iterable[tuple[Section, ...]],
) -> Iterator[tuple[tuple[int, ...], tuple[Section, ...]]]:
    """Pipeline stages in a row that do alike, as one: their numbers, and the sections of the first."""

    def likeness(numbered: tuple[int, tuple[Section, ...]]) -> object:
        return [(s.likeness, *(b.times for b in s.boxes)) for s in numbered[1]]

    for _, run in groupby(enumerate(stages), likeness):
        numbers, (first, *others) = zip(*run, strict=True)
        count = len(numbers)
        merged = tuple(
            replace(
                s,
                boxes=tuple(replace(b, times=b.times * count) for b in s.boxes),
                folded=(*s.folded, *(p for other in others for p in other[i].folded)),
                stages=count,
            )
            for i, s in enumerate(first)
        )
        yield numbers, merged
