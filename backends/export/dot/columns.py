"""Levels `layer` and `full`: each step a column of ops in schedule order, with lanes beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from llmir.backends.export import units, wording
from llmir.backends.request.workload import Workload
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass

from .canvas import Frame, Tile, stack
from .label import MUTED, PAINT, PLAIN, font, width
from .labels import INSET, inlet_tile, inner_width, one, op_tile, shape_words, tile_of, two
from .lanes import Wire
from .outline import Inlet, Link, Outline, Stage
from .page import (
    GROUP,
    PANEL,
    PERIOD,
    SECTION,
    STAGE,
    band,
    head,
    new_canvas,
    panel_head,
    side_by_side,
    where,
)
from .sections import Box, Section
from .sums import memory_tile, stage_name, step_tile
from .wires import draw_wires, lanes_of

KEY = (
    "Box: time of one run, share of the whole step (bar: against the largest), then FLOPs · bytes · FLOPs "
    "per byte. Dashed: a residual. Point at a box for its equation and numbers."
)
FULL = (
    "Every layer. Box: time of one run, share of the step, FLOPs · bytes · FLOPs per byte, weights, caches. "
    "On edges: what a rank passes on. Dashed: a residual."
)
_GAP = {False: 15.0, True: 19.0}  # between tiles; in `full` edges have words


def draw(job: Report | Workload, panels: Sequence[Outline], *, full: bool = False) -> Any:
    """The picture as a `graphviz.Digraph`."""
    inner = max(inner_width(o, full=full) for o in panels)
    return draw_columns(job, panels, partial(Column, full=full), inner, FULL if full else KEY, _GAP[full])


def draw_columns(
    job: Report | Workload,
    panels: Sequence[Outline],
    column: Callable[[Outline, str, float, float], Column],
    inner: float,
    key: str,
    gap: float,
) -> Any:
    """The picture of some steps, each a column of tiles with text `inner` points wide."""
    canvas = new_canvas(f"{job.program.name} on {where(job)}")
    capacity = float(job.capacity_bytes if isinstance(job, Workload) else job.device.capacity_bytes)

    def panel(number: int, x: float, y: float) -> tuple[float, float]:
        made = column(panels[number], f"p{number}_", inner, capacity)
        if isinstance(job, Workload) and panels[number].report is job.prefill and wording.reads(job) > 1:
            made.note = f"the largest of {wording.reads(job):,} steps that read prompts"
        frame = made.frame(f"panel{number}")
        wires = [*made.wires()]
        lanes = lanes_of(frame, wires)
        half = inner / 2 + INSET
        reach = half + lanes.wide(False), half + lanes.wide(True)
        middle = x + reach[0] + frame.inset
        at = stack(canvas, frame, middle, reach, y, gap)
        draw_wires(canvas, lanes, wires, (middle - half, middle + half))
        return at.right, at.bottom

    across, _ = side_by_side(canvas, len(panels), panel)
    head(canvas, job, panels, across, key)
    return canvas.graph


@dataclass(eq=False)
class Column:
    """The tiles of a step, and the wires between them. `homes` says which tile stands for a box or inlet."""

    outline: Outline
    ids: str
    inner: float
    capacity: float
    full: bool = False
    note: str = ""  # below the panel's title
    homes: dict[str, str] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)  # of tiles, downwards
    stages: dict[str, int] = field(default_factory=dict)  # of each tile
    first: dict[tuple[object, ...], Stage] = field(default_factory=dict)  # where a layer is written out
    crossings: dict[tuple[int, int], str] = field(default_factory=dict)
    made: dict[int, Tile] = field(default_factory=dict)  # of ops, by the identity of their cost
    parts: dict[str, str] = field(default_factory=dict)  # names of tiles that stand for several ops
    back: list[tuple[str, str]] = field(default_factory=list)  # from a layer's last part to its first

    def frame(self, id: str) -> Frame:
        """The whole panel."""
        outline, many = self.outline, len(self.outline.report.stages) > 1
        items: list[Tile | Frame] = []
        for number, stage in enumerate(outline.stages):
            inside = list(self._stage(stage))
            for tile in (t for i in inside for t in ([i] if isinstance(i, Tile) else i.tiles)):
                self.stages[tile.id] = number
            if many:
                items += [self._crossing(number)] if number else []
                items.append(
                    Frame(f"stage_{inside_id(inside)}", STAGE, 24, tuple(inside), self._stage_head(stage))
                )
            else:
                items += inside
        items.append(step_tile(outline, f"{self.ids}sum", self.inner))
        if not many:
            items.append(memory_tile(outline, f"{self.ids}memory", self.inner, self.capacity))
        top = panel_head(outline, f"{self.ids}head", self.inner, self.note)
        found = Frame(id, PANEL, 32 if many else 24, tuple(items), top)
        self.order = {tile.id: i for i, tile in enumerate(found.tiles)}
        return found

    def _stage(self, stage: Stage) -> Iterator[Tile | Frame]:
        for period, run in groupby(stage.sections, lambda section: section.period):
            sections = list(run)
            items = [item for section in sections for item in self._section(section, stage)]
            if period:
                name, times = period
                title = f"{name} × {times}, each"
                parts = [f"{s.nest[-1]} × {s.prefix.rpartition('.')[2]}{s.sees}" for s in sections]
                top = band(f"{inside_id(items)}_period", title, "", parts, self.inner, 12, "#ffffff")
                yield Frame(f"period_{inside_id(items)}", PERIOD, 18, tuple(items), top)
            else:
                yield from items
        for box in stage.overheads:
            if box.total_s:
                yield self._op(box)
        if len(self.outline.report.stages) > 1:
            id = f"{self.ids}memory_{stage.numbers[0]}"
            yield memory_tile(self.outline, id, self.inner, self.capacity, stage.numbers[0])

    def _section(self, section: Section, stage: Stage) -> Iterator[Tile | Frame]:
        inlets = self._entering.get(section.id, [])
        if not section.prefix:
            for inlet in inlets:
                yield self._known(inlet_tile(self.outline, inlet))
            for box in section.boxes:
                yield self._op(box)
            return
        seen = self.first.setdefault(section.likeness, stage)
        if seen is not stage and not self.full:
            yield self._again(section, seen, [i.id for i in inlets])
            return
        items: list[Tile | Frame] = [self._known(inlet_tile(self.outline, i)) for i in inlets]
        for name, boxes in section.groups.items():
            tiles = tuple(self._op(box) for box in boxes)
            if self.full:
                items += tiles
            else:
                items.append(Frame(f"group_{boxes[0].id}", GROUP, 6, tiles, self._group_head(name, boxes)))
        yield Frame(section.id, SECTION, 12, tuple(items), self._section_head(section))

    @cached_property
    def _entering(self) -> dict[str, list[Inlet]]:
        """What enters each section, first what was computed last: that is right above."""
        at = {b.id: i for i, b in enumerate(self.outline.boxes)}
        tails = {x.head: at.get(x.tail, -1) for x in self.outline.links}
        found: dict[str, list[Inlet]] = {}
        for inlet in sorted(self.outline.inlets, key=lambda i: -tails.get(i.id, -1)):
            found.setdefault(inlet.section, []).append(inlet)
        return found

    def _op(self, box: Box) -> Tile:
        """The tile of an op; layers that are alike have alike ones."""
        tile = self.made.get(id(box.cost))
        if tile is None:
            tile = self.made[id(box.cost)] = op_tile(self.outline, box, self.inner, full=self.full)
        return self._known(replace(tile, id=box.id, tip=f"{box.path}\n{tile.tip}"))

    def _known(self, tile: Tile) -> Tile:
        self.homes[tile.id] = tile.id
        return tile

    def _again(self, section: Section, stage: Stage, inlets: Iterable[str]) -> Tile:
        """What a later stage does as an earlier one, which is written out there."""
        id = f"{section.id}_again"
        self.homes |= dict.fromkeys([*(b.id for b in section.boxes), *inlets], id)
        paint = PAINT[str(max(section.boxes, key=lambda b: b.total_s).cost.bound)]
        each = units.time(section.total_s / section.times)
        time, share = units.time(section.total_s), units.percent(self.outline.share(section.total_s))
        second = max(width(time, 12, bold=True), width(share, 9))
        title = f"{section.title} {section.count}"
        lines = [
            (18.0, two(font(title, 12, bold=True), font(time, 12, paint.ink, bold=True), self.inner, second)),
            (
                13.0,
                two(
                    font(f"as in {stage_name(stage)}, {each} each", 9, MUTED),
                    font(share, 9, MUTED),
                    self.inner,
                    second,
                ),
            ),
        ]
        return tile_of(id, lines, self.inner, paint, f"{title}: as in {stage_name(stage)}")

    def _section_head(self, section: Section) -> Tile:
        share = units.percent(self.outline.share(section.total_s))
        each, whole = units.time(section.total_s / section.times), units.time(section.total_s)
        count = section.count.replace(" ", "\N{NO-BREAK SPACE}")
        name = f"{section.title} {count}" if section.times > section.micro_batches else section.title
        figure = f"{whole} · {share}"
        below = [f"{each} each{section.sees}"] if section.times > 1 else []
        return band(f"{section.id}_head", name, figure, below, self.inner, 12, SECTION["fillcolor"])

    def _group_head(self, name: str, boxes: Sequence[Box]) -> Tile:
        each = units.time(sum(float(b.cost.time_s) for b in boxes))
        figure = f"{each} · {units.percent(self.outline.share(sum(b.total_s for b in boxes)))}"
        return band(f"{boxes[0].id}_group", name or "other", figure, [], self.inner, 11, GROUP["fillcolor"])

    def _stage_head(self, stage: Stage) -> Tile:
        report, first = self.outline.report, stage.numbers[0]
        ranks = report.program.devices // len(report.stages)
        start, end = first * ranks, (stage.numbers[-1] + 1) * ranks - 1
        where = f"device{'s' if end > start else ''} {start}" + (f"–{end}" if end > start else "")
        each = units.time(float(report.stages[first].time_s))
        parts = [p for p in (where, stage.layers, f"{each} a micro-batch") if p]
        if len(stage.numbers) > 1:
            parts.append(f"{len(stage.numbers)} stages alike, drawn once")
        return band(
            f"{self.ids}stage_{first}",
            stage_name(stage),
            each,
            [" · ".join(parts)],
            self.inner,
            14,
            "#ffffff",
        )

    def _crossing(self, number: int) -> Tile:
        """What goes from the stage before to this one, with its bytes and the time that it takes."""
        outline, id = self.outline, f"{self.ids}cross_{number}"
        before, here = outline.stages[number - 1], outline.stages[number]
        tails, heads = ({b.id: b for b in s.boxes} for s in (before, here))
        links = [x for x in outline.links if x.tail in tails and x.head in heads]
        self.crossings[number - 1, number] = id
        lines, said = [], []
        for link in links:
            box = tails[link.tail]
            sent = float(box.cost.comm_bytes)
            words = [f"{units.bytes(sent)} sent", units.time(float(box.cost.time_s))] if sent else []
            shapes = [shape_words(outline, type) for _, type in link.values]
            lines += [(14.0, one(font(shape, 10, PAINT["network"].ink, bold=True), 220)) for shape in shapes]
            lines += [(12.0, one(font(" · ".join([*words, "each micro-batch"]), 9, MUTED), 220))]
            said += [*shapes, *words]
        return tile_of(
            id, lines or [(12.0, one("nothing", 220))], 220, PLAIN.tinted(PAINT["network"]), "\n".join(said)
        )

    def wires(self) -> Iterator[Wire]:
        """Dataflow between tiles, each pair once."""
        found: dict[tuple[str, str], list[Link]] = {}
        for link in self.outline.links:
            tail, ahead = self.homes[link.tail], self.homes[link.head]
            if tail != ahead:
                found.setdefault((tail, ahead), []).append(link)
        inlets = {i.id for i in self.outline.inlets}
        for (tail, ahead), links in found.items():
            said = partial(self._said, links)
            sides = self.stages[tail], self.stages[ahead]
            if pill := self.crossings.get(sides):
                yield Wire(tail, pill, said(), strong=True)
                yield Wire(pill, ahead, said(), strong=True)
                continue
            residual = any(self.outline.role(x) == "residual" for x in links) or ahead in inlets
            residual = residual and self.order[ahead] - self.order[tail] > 1
            yield Wire(tail, ahead, said(), self._words(links) if self.full else "", dashed=residual)

    def _said(self, links: Sequence[Link]) -> str:
        values = dict.fromkeys(v for link in links for v in link.values)
        return "\n".join(f"{name}: {shape_words(self.outline, type)}" for name, type in values)

    def _words(self, links: Sequence[Link]) -> str:
        types = [type for link in links for _, type in link.values]
        more = f" (+{len(types) - 1})" if len(types) > 1 else ""
        return shape_words(self.outline, types[0]).replace(" × ", "×") + more if types else ""


def inside_id(items: Sequence[Tile | Frame]) -> str:
    """The id of the first of some items."""
    return items[0].id
