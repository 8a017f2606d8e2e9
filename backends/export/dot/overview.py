"""Level `overview`: layers folded, each part of a layer one tile with its longest ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from llmir.backends.export import units
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report

from .canvas import Frame, Tile
from .columns import Column, draw_columns
from .label import INK, MUTED, PAINT, bar, fit, font, left, right, table, width, wrapped
from .labels import tile_of, tip, two
from .lanes import Wire
from .outline import Stage
from .page import SECTION
from .sections import Box, Section

KEY = (
    "Layers: time of all their runs, and share of the step. Bars are against the longest op. Dashed: to the "
    "next layer. Point at a box for its ops."
)
_TOP, _NAME, _BAR, _TIME = 3, 126, 68, 56
_WIDE = float(_NAME + _BAR + _TIME)


def draw(job: Report | Workload, panels: Sequence[Any]) -> Any:
    """The picture as a `graphviz.Digraph`."""
    return draw_columns(job, panels, Parts, _WIDE, KEY, gap=16.0)


class Parts(Column):
    """A step with a tile for each part of a layer, and for each run of ops around the layers."""

    def _section(self, section: Section, stage: Stage) -> Iterator[Tile | Frame]:
        if not section.prefix:
            for name, run in groupby(section.boxes, lambda b: b.group):
                boxes = tuple(run)
                yield self._part(name or self.outline.report.program.name, boxes, whole=len(boxes) > 1)
            return
        tiles = tuple(self._part(name, boxes, whole=True) for name, boxes in section.groups.items())
        yield Frame(section.id, SECTION, 12, tiles, self._section_head(section))
        if section.times > section.micro_batches * section.stages and len(tiles) > 1:
            self.back.append((tiles[-1].id, tiles[0].id))

    def wires(self) -> Iterator[Wire]:
        """From each part to the next, to the next stage, and from a layer's last part to its first."""
        chain = [name for name in self.order if name in self.parts]
        for tail, ahead in pairwise(chain):
            if pill := self.crossings.get((self.stages[tail], self.stages[ahead])):
                yield Wire(tail, pill, strong=True)
                yield Wire(pill, ahead, strong=True)
            else:
                yield Wire(tail, ahead, f"{self.parts[tail]} → {self.parts[ahead]}")
        for tail, ahead in self.back:
            yield Wire(tail, ahead, "to the next layer", dashed=True)

    def _part(self, name: str, boxes: Sequence[Box], *, whole: bool) -> Tile:
        """A tile for some ops: their longest, and how much the others take."""
        longest = sorted(boxes, key=lambda b: -b.total_s)
        first = longest[0]
        title = name or "other" if whole else first.name
        seconds = sum(b.total_s for b in boxes)
        time, share = units.time(seconds), units.percent(self.outline.share(seconds))
        paint = PAINT[str(first.cost.bound)]
        second = max(width(time, 12, bold=True), width(share, 9))
        named, *more = wrapped(title, 12, _WIDE - second - 8, _WIDE, bold=True)
        lines = [
            (18.0, two(font(named, 12, INK, bold=True), font(time, 12, paint.ink, bold=True), _WIDE, second))
        ]
        lines += [(15.0, _line(font(words, 12, INK, bold=True))) for words in more]
        kind = f"mostly {first.cost.bound}" if len(boxes) > 1 else str(first.cost.bound)
        lines.append((13.0, two(font(kind, 9, MUTED), font(share, 9, MUTED), _WIDE, second)))
        if whole:
            lines += [(15.0, self._bar(box)) for box in longest[:_TOP]]
        if rest := longest[_TOP:]:
            after = f"{len(rest)} more op{'s' if len(rest) > 1 else ''}"
            said = f"+ {after}, {units.time(sum(b.total_s for b in rest))}"
            lines.append((13.0, _line(font(said, 9, MUTED))))
        for note in list(dict.fromkeys(b.note for b in boxes if b.note))[:1]:
            lines.append((12.0, _line(font(fit(note, 9, _WIDE), 9, MUTED))))
        said = "\n\n".join(f"{box.path}\n{tip(self.outline, box)}" for box in boxes)
        self.parts[first.id] = title
        return self._known(tile_of(first.id, lines, _WIDE, paint, said))

    def _bar(self, box: Box) -> str:
        name = left(font(fit(box.name, 10, _NAME - 6), 10), f'WIDTH="{_NAME}"')
        drawn = bar(box.total_s / (self.outline.longest_s or 1), _BAR, PAINT[str(box.cost.bound)].line, 7)
        time = right(font(units.time(box.total_s), 10), f'WIDTH="{_TIME}"')
        return f'<TD COLSPAN="2">{table([f"{name}<TD>{drawn}</TD>{time}"])}</TD>'


def _line(content: str) -> str:
    return left(content, f'COLSPAN="2" WIDTH="{_WIDE:.0f}"')
