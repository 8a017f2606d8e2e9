"""Pictures of a comparison: both sides next to each other, the replaced ops, and the saved time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from llmir.backends.compare.diff import (
    Change,
    FigurePair,
    OpTotal,
    StepDiff,
    WorkloadDiff,
    fold_changes,
    op_key,
)
from llmir.backends.export import diff as diff_text
from llmir.backends.export import units, wording
from llmir.base.dataclass import dataclass

from .columns import BARE, SECTION, band, block, lines_of, new_canvas
from .labels import (
    INK,
    INSET,
    MUTED,
    PAINT,
    PLAIN,
    Area,
    BoundColors,
    Canvas,
    Tile,
    across,
    bar,
    centered,
    font,
    left,
    one,
    right,
    table,
    tile_of,
    tip_of,
    two,
    width,
    wrapped,
)

KEY = (
    "Left before, right after, in the order of the second; times of all runs together, bars on one scale. "
    "Grey and dashed: replaced. On edges: what that saved (-) or lost (+), in time and in bytes moved."
)
REPLACED = BoundColors("#f3f4f6", "#9aa3af", "#4b5563", "rounded,filled,dashed")
# width in points of the text in the tiles, and of the gap between them
LEFT, MIDDLE, RIGHT = 238.0, 158.0, 248.0
_SAVED, _LOST = "#157347", "#b91c1c"
_GAP, _STACK = 12.0, 3.0
_ACROSS = LEFT + RIGHT + MIDDLE + 4 * INSET


@dataclass(frozen=True, eq=False)
class DiffItem:
    """A change or an unchanged op, and the bodies in which it occurs."""

    bodies: tuple[str, ...]
    change: Change
    same: bool = False


def draw(diff: StepDiff | WorkloadDiff, phase: str) -> Canvas:
    """The picture."""
    steps = _steps(diff, phase)
    title = " → ".join(dict.fromkeys(wording.model_on_devices(s) for s in (diff.before, diff.after)))
    title += "" if "→" in title else ": before → after"
    canvas = new_canvas(title)
    y = 0.0
    for number, (name, step) in enumerate(steps):
        y = _Panel(canvas, step, f"d{number}_").draw(name, y) - _GAP
    if isinstance(diff, WorkloadDiff):
        _answers(canvas, diff, y)
        said = [
            (10.0, f"{name}: {words}" if name else words, INK) for name, words in diff_text.head_lines(diff)
        ]
    else:
        said = [(10.0, wording.plain(words), INK) for words in diff.basis.words()]
    bounds = {str(p.bound) for _, s in steps for c in s.changes for p in c.after}
    block(canvas, title, said, bounds, KEY, _ACROSS)
    return canvas


def _steps(diff: StepDiff | WorkloadDiff, phase: str) -> list[tuple[str, StepDiff]]:
    """The steps to draw, with a description of each."""
    from llmir.base.errors import InputError

    if isinstance(diff, StepDiff):
        titles = dict.fromkeys(wording.step_title(r) for r in (diff.before, diff.after))
        return [(" → ".join(titles), diff)]
    known = dict(diff.phases)
    if phase != "both" and phase not in known:
        raise InputError(f"phase: this difference has no {phase} step; draw its {' or '.join(known)}")
    return [(diff_text.phase_title(diff, n, s), s) for n, s in known.items() if phase in (n, "both")]


def items_of(step: StepDiff) -> list[DiffItem]:
    """All changes and unchanged ops, in the order of the second program."""
    at = _order(step)
    changed = [DiffItem(of, change) for of, change in fold_changes(step.changes)]
    alike = [
        DiffItem(of, change, True) for of, change in fold_changes([Change((p,), (p,)) for p in step.same])
    ]
    return sorted((*changed, *alike), key=lambda item: at(item.change))


def _order(step: StepDiff) -> Any:
    """The position of a change: the position of its first new op, or directly after the previous op."""
    orders: list[dict[str, int]] = []
    for report in (step.before, step.after):
        names = (
            op_key(op.name.removeprefix(report.program.prefix(report.program.entries[op.stage])), "").path
            for op in report.work
        )
        orders.append({name: i for i, name in enumerate(dict.fromkeys(names))})
    old, new = orders
    last = len(old) + len(new)
    both = {name: new[name] for name in old if name in new}
    for change in step.changes:
        if change.before and change.after:
            both |= dict.fromkeys((p.name for p in change.before), new.get(change.after[0].name, last))

    def place(change: Change) -> tuple[float, int]:
        if change.after:
            return float(new.get(change.after[0].name, last)), 0
        first = old.get(change.before[0].name, last)
        earlier = [both[name] for name, i in old.items() if i < first and name in both]
        return (earlier[-1] + 0.5 if earlier else -1.0), first

    return place


@dataclass(eq=False)
class _Panel:
    canvas: Canvas
    step: StepDiff
    ids: str
    count: int = 0

    def draw(self, title: str, top: float) -> float:
        """Draw the strip from `top` down, and return its lower edge."""
        self.longest = max(
            (self._time(p) for c in self.step.changes for p in (*c.before, *c.after)), default=0.0
        )
        with self.canvas.graph.subgraph(name=f"cluster_{self.ids}panel") as into:
            pair = self.step.total("time_s")
            figure = f"{_arrow(pair, units.time)} ({_share(pair)})"
            head = band(self._id(), title, figure, [], _ACROSS - 20, 14, "#ffffff")
            y = self.canvas.tile(head, self._middle, top - 8, into).bottom - 8
            for bodies, run in groupby(items_of(self.step), lambda item: item.bodies):
                y = self._body(into, bodies, list(run), y) - _GAP
            y = self.canvas.tile(self._sum(), self._middle, y, into).bottom
            half = _ACROSS / 2 + 12
            style = {"style": "rounded", "color": "#cbd5e1", "bgcolor": "#ffffff", "penwidth": "1.3"}
            self.canvas.frame(into, Area(self._middle - half, top, self._middle + half, y - 10), style)
        return y - 10

    @property
    def _middle(self) -> float:
        return _ACROSS / 2

    def _id(self, what: str = "t") -> str:
        self.count += 1
        return f"{self.ids}{what}{self.count}"

    def _time(self, part: OpTotal) -> float:
        return float(part.time_s)

    def _body(self, into: Any, bodies: tuple[str, ...], items: Sequence[DiffItem], top: float) -> float:
        """Draw the items that occur in some bodies, in the frame of these bodies."""
        if not bodies[0]:
            return self._items(into, items, top)
        on_both = next((i for i in items if i.change.before and i.change.after), items[0])
        title = " ".join(diff_text.body(bodies, on_both.change)).strip().replace("×", "× ")
        with into.subgraph(name=f"cluster_{self._id('body')}") as inner:
            y = self.canvas.tile(
                band(self._id(), title, "", [], _ACROSS - 20, 12, SECTION["fillcolor"]),
                self._middle,
                top - 5,
                inner,
            ).bottom
            y = self._items(inner, items, y - 6)
            half = _ACROSS / 2 + 6
            self.canvas.frame(inner, Area(self._middle - half, top, self._middle + half, y - 8), SECTION)
        return y - 8

    def _items(self, into: Any, items: Sequence[DiffItem], top: float) -> float:
        y = top
        for same, run in groupby(items, lambda item: item.same):
            if same:
                y = (
                    self.canvas.tile(self._as_is([i.change for i in run]), self._middle, y, into).bottom
                    - _GAP
                )
                continue
            for item in run:
                y = self._change(into, item.change, y) - _GAP
        return y + _GAP

    def _as_is(self, changes: Iterable[Change]) -> Tile:
        """Draw unchanged ops as one tile over both columns."""
        parts = [p for c in changes for p in c.after]
        time = units.time(sum(map(self._time, parts)))
        inner = _ACROSS - 2 * INSET
        second = max(width(time, 10, bold=True), 60.0)
        words = lines_of(f"as is: {diff_text.names(tuple(parts))}".split(" "), 9, inner - second)
        first, *more = (font(line, 9, MUTED) for line in words)
        rows = [two(14.0, first, font(time, 10, MUTED, bold=True), inner, second)]
        rows += [one(12.0, line, inner) for line in more]
        paint = BoundColors("#ffffff", "#b6c2d2", MUTED, "rounded,filled,dotted")
        return tile_of(self._id("same"), rows, inner, paint, f"as before, {time}")

    def _change(self, into: Any, change: Change, top: float) -> float:
        """Draw the old ops, the new ops, and the saving between them."""
        gone = change.what != "changed"
        old = [self._tile(p, LEFT, REPLACED if gone else None) for p in change.before]
        new = [self._tile(p, RIGHT, None) for p in change.after]
        if not old or not new:
            word = "gone" if old else "new"
            empty = BoundColors("#ffffff", "#b6c2d2", MUTED, "rounded,filled,dotted")
            inner = RIGHT if old else LEFT
            tile = tile_of(self._id("none"), [one(14.0, font(word, 10, MUTED), inner)], inner, empty, word)
            old, new = (old or [tile]), (new or [tile])
        heights = [sum(t.high for t in side) + _STACK * (len(side) - 1) for side in (old, new)]
        high = max(*heights, 44.0)
        middles = LEFT / 2 + INSET, _ACROSS - RIGHT / 2 - INSET
        spots: list[list[Area]] = []
        for side, tall, x in zip((old, new), heights, middles, strict=True):
            y = top - (high - tall) / 2
            spots.append([])
            for tile in side:
                spots[-1].append(self.canvas.tile(tile, x, y, into))
                y = spots[-1][-1].bottom - _STACK
        self._edge(into, change, old, new, spots, top - high / 2)
        return top - high

    def _edge(
        self,
        into: Any,
        change: Change,
        old: Sequence[Tile],
        new: Sequence[Tile],
        spots: Sequence[Sequence[Area]],
        y: float,
    ) -> None:
        """Draw a brace on each side, and an arrow with the saving between them."""
        x0, x1 = spots[0][0].right + 10, spots[1][0].left - 10
        for tiles, places, x in ((old, spots[0], x0), (new, spots[1], x1)):
            if len(tiles) > 1:
                ends = [(places[0].top + places[0].bottom) / 2, (places[-1].top + places[-1].bottom) / 2]
                edge = places[0].right if x == x0 else places[0].left
                corners = [(edge, ends[0]), (x, ends[0]), (x, ends[1]), (edge, ends[1])]
                self.canvas.wire(tiles[0].id, tiles[-1].id, corners, arrowhead="none")
        start = spots[0][0].right if len(old) == 1 else x0
        end = spots[1][0].left if len(new) == 1 else x1
        time = change.figure("time_s").delta
        moved = sum(change.figure(name).delta for name in ("read_bytes", "write_bytes", "comm_bytes"))
        words = f"{'+' if moved > 0 else ''}{units.bytes(float(moved))}" if moved else "bytes as before"
        before, after = diff_text.names(change.before), diff_text.names(change.after)
        said = f"{before} → {after}: {self._signed(time)}\n{words}"
        self.canvas.wire(old[0].id, new[0].id, [(start, y), (end, y)], said, **{"class": "saved"})
        color = _SAVED if time < 0 else _LOST if time > 0 else MUTED
        self._words(self._signed(time), 12, color, y + 18, into, bold=True)
        self._words(f"{change.what}: {words}", 9, MUTED, y - 4, into)

    def _words(
        self, words: str, size: float, color: str, top: float, into: Any, *, bold: bool = False
    ) -> None:
        wide = width(words, size, bold=bold)
        cell = centered(font(words, size, color, bold=bold), wide, size + 3)
        middle = LEFT + 2 * INSET + MIDDLE / 2
        self.canvas.tile(Tile(self._id("saved"), (cell,), wide, size + 3, BARE, words), middle, top, into)

    def _signed(self, seconds: float) -> str:
        return f"+{units.time(seconds)}" if seconds > 0 else units.time(float(seconds))

    def _tile(self, part: OpTotal, inner: float, paint: BoundColors | None) -> Tile:
        """An op: first its name and time, then its bound and bar; a replaced op takes one more line."""
        time, of = units.time(self._time(part)), PAINT[str(part.bound)]
        drawn = paint or of
        short = part.name.rpartition(".")[2]
        second, long = 64.0, 42.0
        share = self._time(part) / (self.longest or 1)
        line = bar(share, long, drawn.line if paint else of.line, 5)
        room = inner - second - long - 12
        name, *more = wrapped(short, 10, room, inner, bold=True)
        cells = left(font(name, 10, drawn.ink if paint else INK, bold=True), room, 15)
        cells += f'<TD WIDTH="{long:.0f}">{line}</TD><TD WIDTH="{inner - room - long - second:.0f}"></TD>'
        cells += right(font(time, 10, drawn.ink, bold=True), second, 15)
        rows = [across(15.0, table([cells]))]
        rows += [one(14.0, font(words, 10, drawn.ink if paint else INK, bold=True), inner) for words in more]
        if paint is None:
            figures = [str(part.bound), units.flops(float(part.flops)) if part.flops else ""]
            moved = float(part.read_bytes + part.write_bytes)
            figures += [units.bytes(moved) if moved else ""]
            rows.append(one(12.0, font(" · ".join(filter(None, figures)), 9, MUTED), inner))
        return tile_of(self._id("op"), rows, inner, drawn, tip_of(part))

    def _sum(self) -> Tile:
        """The savings on the edges, which add up to the difference of the totals."""
        step, pair = self.step, self.step.total("time_s")
        deltas = sorted(
            (c.figure("time_s").delta for _, c in fold_changes(step.changes)), key=lambda d: -abs(d)
        )
        terms = [self._signed(float(d)) for d in deltas if d]
        said = (
            " ".join([*terms, "=", self._signed(float(pair.delta or 0))])
            if terms
            else "nothing changes in time"
        )
        inner = _ACROSS - 2 * INSET
        moved = FigurePair(
            *(sum(getattr(r, n) for n in ("read_bytes", "write_bytes")) for r in (step.before, step.after))
        )
        over = (
            "of all stages together"
            if len(step.before.stages) > 1 or len(step.after.stages) > 1
            else "of the step"
        )
        texts = [
            f"time {over} {_arrow(pair, units.time)} ({_share(pair)}): the edges add up",
            said,
            f"read and written {_arrow(moved, units.bytes)} ({_share(moved)})",
            diff_text.memory_rows(step),
        ]
        rows = []
        for i, text in enumerate(texts):
            size, bold = (11.0, True) if not i else (9.0, False)
            for line in lines_of(text.split(" "), size, inner, bold=bold):
                rows.append(one(size + 4, font(line, size, INK if i < 2 else MUTED, bold=bold), inner))
        return tile_of(self._id("sum"), rows, inner, PLAIN, "\n".join(texts))


def _arrow(pair: FigurePair, unit: Any) -> str:
    return " → ".join(dict.fromkeys("–" if v is None else unit(v) for v in pair))


def _share(pair: FigurePair) -> str:
    """The relative change of a value."""
    found = diff_text.share(pair)
    return "as before" if found == "=" else found


def _answers(canvas: Canvas, diff: WorkloadDiff, top: float) -> None:
    """The latencies of both sides, in a strip at the top."""
    inner = (_ACROSS - 2 * INSET) / 3
    cell = partial(_answer, inner=inner)
    answers = [row for row in diff_text.answer_rows(diff) if row[1] != "–" or row[2] != "–"]
    rows = []
    for start in range(0, len(answers), 3):
        shown = answers[start : start + 3]
        cells = "".join(f"<TD>{cell(row)}</TD>" for row in shown)
        cells += f'<TD WIDTH="{inner:.0f}"></TD>' * (3 - len(shown))
        rows.append(across(44.0, table([cells]), 'ALIGN="LEFT"'))
    canvas.tile(tile_of("answers", rows, _ACROSS - 2 * INSET, PLAIN, "what a user sees"), _ACROSS / 2, top)


def _answer(row: tuple[str, ...], inner: float) -> str:
    name, before, after, _, share = row
    values = before if before == after else f"{before} → {after}"
    return table(
        [
            left(font(name, 9, MUTED), inner, 12),
            left(font(values, 11, INK, bold=True), inner, 15),
            left(font(share if share != "=" else "as before", 9, MUTED), inner, 13),
        ]
    )
