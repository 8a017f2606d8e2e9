"""What a total is the sum of: a tile of bars that follow one another, to scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llmir.backends.export import units, wording

from .canvas import Tile
from .label import FAINT, INK, MUTED, PAINT, PLAIN, Paint, fit, font, left, right, table, width
from .labels import one, tile_of
from .outline import Outline, Stage

_DARK = Paint("#ffffff", "#475569", INK)
_SHARE = 0.3  # of a line, for its bar


class Term(NamedTuple):
    """A summand: its words, its value, and its colours."""

    words: str
    value: float
    paint: Paint


def sum_tile(
    id: str,
    title: str,
    terms: Sequence[Term],
    whole: float,
    unit: Callable[[float], str],
    inner: float,
    below: Sequence[str] = (),
) -> Tile:
    """A line for each term, its bar where those before it end; the bars' scale is `whole`."""
    second = max((width(unit(t.value), 9) for t in terms), default=0.0)
    long = round(_SHARE * inner)
    first = inner - long - second - 14
    lines = [(16.0, one(font(fit(title, 11, inner, bold=True), 11, bold=True), inner))]
    start = 0.0
    for term in terms:
        cells = (
            left(font(fit(term.words, 9, first), 9), f'WIDTH="{first:.0f}"')
            + f'<TD WIDTH="{long}">{_bar(start, term.value, whole, long, term.paint.line)}</TD>'
            + '<TD WIDTH="10"></TD>'
            + right(font(unit(term.value), 9, term.paint.ink), f'WIDTH="{second:.0f}"')
        )
        lines.append((13.0, f'<TD COLSPAN="2">{table([cells])}</TD>'))
        start += term.value
    lines += [(12.0, one(font(fit(words, 9, inner), 9, MUTED), inner)) for words in below]
    said = "\n".join([title, *(f"{unit(t.value)} {t.words}" for t in terms), *below])
    return tile_of(id, lines, inner, PLAIN, said)


def _bar(start: float, value: float, whole: float, long: int, color: str) -> str:
    """A bar from where others end; one below zero goes back."""
    begin, end = sorted((start, start + value))
    x0, x1 = (round(max(0.0, min(1.0, x / whole if whole else 0.0)) * long) for x in (begin, end))
    if value and x1 == x0:
        x0, x1 = (x0 - 1, x1) if x1 == long else (x0, x1 + 1)
    parts = [(x0, FAINT), (x1 - x0, color), (long - x1, FAINT)]
    cells = "".join(
        f'<TD FIXEDSIZE="TRUE" WIDTH="{n}" HEIGHT="6" BGCOLOR="{paint}"></TD>' for n, paint in parts if n
    )
    return table([cells])


def step_terms(outline: Outline) -> list[Term]:
    """What the step's time is the sum of: layers, other ops and overhead, or the stages on its way."""
    report = outline.report
    if len(report.stages) > 1:
        found = [_stage_term(outline, stage) for stage in outline.stages]
        times = [float(s.time_s) for s in report.stages]
        slowest = max(range(len(times)), key=times.__getitem__)
        if more := report.program.micro_batches - 1:
            words = f"{more} × stage {slowest}, slowest"
            found.append(Term(words, more * times[slowest], PAINT["memory"]))
        return found
    found, rest = [], 0.0
    for section in outline.sections:
        if section.prefix:
            most = max(section.boxes, key=lambda b: b.total_s)
            found.append(
                Term(f"{section.title} {section.count}", section.total_s, PAINT[str(most.cost.bound)])
            )
        else:
            rest += section.total_s
    only = outline.sections[0].boxes if len(outline.sections) == 1 and not found else ()
    if only:
        found = [Term(b.name, b.total_s, PAINT[str(b.cost.bound)]) for b in only[:12]]
        rest = sum(b.total_s for b in only[12:])
    if rest:
        found.append(Term("other ops", rest, _DARK))
    overheads = [b for stage in outline.stages for b in stage.overheads]
    return [*found, *(Term(b.name, b.total_s, PAINT["overhead"]) for b in overheads)]


def _stage_term(outline: Outline, stage: Stage) -> Term:
    each = float(outline.report.stages[stage.numbers[0]].time_s)
    most = max(stage.boxes, key=lambda b: b.total_s if b.op else 0.0)
    count = len(stage.numbers)
    return Term(stage_name(stage), count * each, PAINT[str(most.cost.bound)])


def stage_name(stage: Stage) -> str:
    """`stage 0`, or `stages 1–2`."""
    first, last = stage.numbers[0], stage.numbers[-1]
    return f"stage {first}" if first == last else f"stages {first}–{last}"


def step_tile(outline: Outline, id: str, inner: float) -> Tile:
    """The step's time as a sum."""
    report = outline.report
    time = float(report.time_s)
    terms = step_terms(outline)
    title = f"step {units.time(time)}{wording.within(report.error)} = {'sum' if len(terms) > 1 else 'all'} of"
    below = ["first micro-batch, then the others"] if len(report.stages) > 1 else []
    below += [f"{name} {value}" for name, value in wording.pipeline_lines(report)[1:]]
    return sum_tile(
        id, title, terms, max(time, *(t.value for t in terms)) if terms else time, units.time, inner, below
    )


def memory_tile(outline: Outline, id: str, inner: float, capacity: float, stage: int | None = None) -> Tile:
    """What a rank holds at the fullest moment, of one stage, or of the fullest."""
    rows = outline.report.stages
    row = rows[stage] if stage is not None else max(rows, key=lambda r: float(r.peak_memory_bytes))
    peak = float(row.peak_memory_bytes)
    transient = peak - float(row.weight_bytes) - float(row.kv_cache_bytes)
    held = (
        ("weights", float(row.weight_bytes)),
        ("KV cache", float(row.kv_cache_bytes)),
        ("activations", transient),
    )
    terms = [Term(words, value, _DARK) for words, value in held if value]
    over = "" if peak <= capacity else ": does not fit"
    title = f"memory {units.bytes(peak)} of {units.bytes(capacity)}{over}"
    return sum_tile(id, title, terms, max(capacity, peak), units.bytes, inner)
