"""A diff of two programs or devices as tables on a terminal, HTML, Markdown and CSV.

`workload` and `step` build the tables for a terminal, `workload_html` and `step_html` the tables for
notebooks, and `to_markdown` and `to_csv` the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from llmir.backends.compare.diff import (
    FIGURES,
    Change,
    FigurePair,
    OpTotal,
    StepDiff,
    WorkloadDiff,
    fold_changes,
)
from llmir.backends.request.workload import Workload
from llmir.base.array_namespace import Number
from llmir.base.formats import exporter

from . import json, table, units, wording

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

# Terminal and HTML

HEADINGS = ("op", "before", "after", "change", "FLOPs", "read", "written")
NUMERIC = HEADINGS[1:]
ANSWERS = ("", "before", "after", "change", "relative")
LEGEND = (
    "Times include all repeats; the largest change comes first.",
    "change, FLOPs, read and written: after minus before, so that - is a saving.",
    "–: absent on this side; =: unchanged",
)
_SWAPPED = str.maketrans("_-", "-_")  # `wrap` breaks lines at -, and names have _
_WIDTH = 20  # width of the column of names; the other columns take at most 60 characters


def signed(pair: FigurePair, unit: Any) -> str:
    """The change of a value, with its sign."""
    grown = pair.delta
    if grown is None:
        return "–"
    return f"+{unit(grown)}" if grown > 0 else unit(grown) if grown else "="


def share(pair: FigurePair) -> str:
    """The relative change of a value.

    >>> share(FigurePair(4, 1)), share(FigurePair(2, 2)), share(FigurePair(1, 1.5)), share(FigurePair(2, 9))
    ('-75%', '=', '+50%', '4.50×')
    """
    grown = pair.delta
    if not grown or not pair.before or pair.after is None:
        return "=" if grown == 0 else ""
    part = grown / pair.before
    if part > 1:
        return f"{units.digits(pair.after / pair.before)}×"
    sign = "" if abs(part) < 0.001 else "+" if part > 0 else "-"
    return f"{sign}{units.percent(abs(part))}"


def names(parts: tuple[OpTotal, ...]) -> str:
    """The ops, without the ops inside their bodies."""
    return ", ".join(p.name.rpartition(".")[2] for p in parts)


def repeat_counts(parts: tuple[OpTotal, ...]) -> str:
    """How often the ops run; usually one number."""
    return "/".join(f"×{n}" for n in sorted({p.repeat for p in parts}))


def body(bodies: tuple[str, ...], change: Change) -> tuple[str, str]:
    """The bodies that repeat the ops of a change, and the number of repetitions."""
    shown = dict.fromkeys(repeat_counts(side) for side in (change.before, change.after) if side)
    first, *more = bodies
    inside = f"{first} and {len(more)} more" if len(more) > 1 else ", ".join(bodies)
    often = " → ".join(shown)
    return inside, "" if often == "×1" else often


def ordered(step: StepDiff) -> list[tuple[tuple[str, str], list[Change]]]:
    """The changes, grouped by bodies; the largest change of time comes first."""
    found: dict[tuple[str, str], list[Change]] = {}
    for bodies, change in sorted(fold_changes(step.changes), key=lambda f: -abs(f[1].figure("time_s").delta)):
        found.setdefault(body(bodies, change), []).append(change)
    return list(found.items())


def cells(change: Change) -> tuple[str, ...]:
    """The values of a change, in the order of `HEADINGS`."""
    time = change.figure("time_s")
    shown = [
        units.time(t) if parts else "–" for t, parts in zip(time, (change.before, change.after), strict=True)
    ]
    return (*shown, *_deltas(change.figure))


def _deltas(figure: Any) -> Iterator[str]:
    yield signed(figure("time_s"), units.time)
    yield signed(figure("flops"), units.flops).removesuffix("FLOP")
    yield signed(figure("read_bytes"), units.bytes)
    yield signed(figure("write_bytes"), units.bytes)


def same(step: StepDiff) -> tuple[str, ...]:
    """The line that counts the unchanged ops."""
    time = units.time(sum(float(p.time_s) for p in step.same))
    ops = f"{len(step.same)} {'op' if len(step.same) == 1 else 'ops'} as before"
    return (ops, time, time, *("=",) * 4)


def total(step: StepDiff) -> tuple[str, ...]:
    """The line of the whole steps."""
    return ("total", *map(units.time, step.total("time_s")), *_deltas(step.total))


def _figure(label: str, pair: FigurePair, unit: Any) -> tuple[str, ...]:
    def shown(value: Number | None) -> str:
        return "–" if value is None else unit(value)

    return label, shown(pair.before), shown(pair.after), signed(pair, unit), share(pair)


def answer_rows(diff: WorkloadDiff) -> list[tuple[str, ...]]:
    """The latencies and rates of two workloads: before, after, and the change."""
    rate = diff.total("output_tokens_per_s")
    shown = {"output_tokens_per_s": units.digits, "in_flight": lambda n: f"{n:,}"}
    served = [_figure(row.label, row.pair, shown.get(row.name, units.time)) for row in diff.served]
    return [
        _figure("TTFT", diff.total("ttft_s"), units.time),
        _figure("TPOT (mean)", diff.total("tpot_s"), units.time),
        _figure("end to end", diff.total("e2e_s"), units.time),
        _figure("output tokens/s", rate, units.digits),
        *(_figure(row.label, row.pair, units.digits) for row in diff.spent if any(row.pair)),
        _figure("peak memory", diff.peak_memory_bytes, units.bytes),
        _figure("largest batch", diff.total("max_batch"), lambda n: f"{n:,}"),
        *served,
    ]


def head_lines(diff: WorkloadDiff) -> list[tuple[str, str]]:
    """The two sides of the comparison."""
    sides = (("before", diff.before), ("after", diff.after))
    passes = [f", {p}" if p else ", no passes" for p in diff.pipelines or ()] or ["", ""]
    on = [wording.model_on_devices(w) for _, w in sides]
    loads = [_load(w) for _, w in sides]
    shown = [(name, wording.plain(o + p)) for (name, _), o, p in zip(sides, on, passes, strict=True)]
    basis = [("" if i else "basis", wording.plain(line)) for i, line in enumerate(diff.basis.words())]
    return [*basis, *shown, ("workload", " → ".join(dict.fromkeys(loads)))]


def _load(w: Workload) -> str:
    """The requests of one side, and the token budget of its steps, if there is one."""
    sizes = [f"{name} {n:,}" for name, n in w.asked.items() if n and name != "chunk"]
    return ", ".join((*sizes, *filter(None, [wording.chunk_budget(w)])))


def memory_rows(step: StepDiff) -> str:
    """The peak memory of the whole steps."""
    peak, transient = step.total("peak_memory_bytes"), step.total("activation_peak_bytes")

    def both(pair: FigurePair) -> str:
        sizes = dict.fromkeys(map(units.bytes, pair))
        return " → ".join(sizes) + (f" ({share(pair)})" if len(sizes) > 1 else "")

    return f"peak memory {both(peak)}, of it activations {both(transient)}"


def phase_title(diff: WorkloadDiff, name: str, step: StepDiff) -> str:
    """The work of a phase in one step."""
    does = dict.fromkeys(wording.step_title(r) for r in (step.before, step.after))
    of = ""
    if name == "prefill" and (steps := wording.prefill_steps(diff.before)) > 1:
        of = f", the largest of {steps:,} steps"
    if name == "prefill" and wording.prefill_steps(diff.after) != wording.prefill_steps(diff.before):
        of = ", a step of the smaller budget"
    return f"{wording.TITLES[name]}{of}: {' → '.join(does)}"


@table.table_of(of=WorkloadDiff)
def workload(diff: WorkloadDiff) -> Group:
    """The whole comparison: latencies, rates and ops."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [table.pairs(head_lines(diff)), ""]
    shown = table.columns(ANSWERS, ANSWERS[1:])
    for row in answer_rows(diff):
        table.add(shown, row, styles=["bold"])
    parts += [shown, "", *LEGEND]
    for name, step in diff.phases:
        parts += ["", Text(phase_title(diff, name, step), style="bold"), _table(step), memory_rows(step)]
    return Group(*parts)


@table.table_of(of=StepDiff)
def step(diff: StepDiff) -> Group:
    """Two steps."""
    from rich.console import Group
    from rich.text import Text

    basis = map(wording.plain, diff.basis.words())
    return Group(*basis, Text(_sides(diff), style="bold"), "", _table(diff), memory_rows(diff), "", *LEGEND)


def _sides(step: StepDiff) -> str:
    return " → ".join(
        dict.fromkeys(
            f"{wording.model_on_devices(r)}, {wording.step_title(r)}" for r in (step.before, step.after)
        )
    )


def _table(step: StepDiff) -> Table:
    shown = table.columns(HEADINGS, NUMERIC)
    for (inside, often), changes in ordered(step):
        if inside or often:
            table.add(shown, (f"{inside} {often}".strip(),), style="bold")
        for change in changes:
            _rows(shown, change, " " if inside else "")
    if step.same:
        table.add(shown, same(step), style="dim")
    shown.add_section()
    table.add(shown, total(step), style="bold")
    return shown


def _rows(shown: Table, change: Change, indent: str) -> None:
    """A change; if other ops do the work, the replaced ops are below it."""
    time = change.figure("time_s").delta or 0
    style = "green" if time < 0 else "red" if time > 0 else ""
    first, *further = _wrapped(names(change.after or change.before), _WIDTH)
    table.add(shown, (indent + first, *cells(change)), styles=["", "", "", style])
    for line in further:
        table.add(shown, (indent + line,))
    if change.before and change.after and change.what != "changed":
        for i, line in enumerate(_wrapped(names(change.before), _WIDTH - 6)):
            table.add(shown, (f"{indent}  {'was' if not i else '   '} {line}",), style="dim")


def _wrapped(text: str, width: int) -> list[str]:
    """Break names into lines; a long name is broken after one of its `_`."""
    return [line.translate(_SWAPPED) for line in wrap(text.translate(_SWAPPED), width)]


def flat_table(step: StepDiff) -> tuple[tuple[str, ...], list[tuple[str, ...]], range]:
    """Headings, rows and numeric columns of a flat table, with the total last."""
    rows = []
    for (inside, often), changes in ordered(step):
        for c in changes:
            was = names(c.before) if c.what != "changed" else ""
            now = names(c.after)
            rows.append((now or was, inside, often, *cells(c), c.what, was if now else ""))
    rows += [(name, "", "", *rest, "same", "") for name, *rest in (same(step),) if step.same]
    name, *rest = total(step)
    rows.append((name, "", "", *rest, "", ""))
    return ("op", "in", "×", *NUMERIC, "what", "was"), rows, range(2, 3 + len(NUMERIC))


@exporter("html", ".html", of=StepDiff)
def step_html(step: StepDiff) -> str:
    """One step as HTML."""
    top = table.caption(_sides(step)) + table.caption(wording.plain(step.basis), "small")
    return top + table.html(*flat_table(step)) + _below(memory_rows(step), *LEGEND)


def _below(*lines: str) -> str:
    return "".join(table.caption(line, "small") for line in lines)


@exporter("html", ".html", of=WorkloadDiff)
def workload_html(diff: WorkloadDiff) -> str:
    """Two workloads as HTML."""
    sides = " → ".join(dict.fromkeys(map(wording.model_on_devices, (diff.before, diff.after))))
    parts = [table.caption(sides), table.html(("", ""), head_lines(diff))]
    parts.append(table.html(ANSWERS, answer_rows(diff), range(1, 5)))
    for name, step in diff.phases:
        parts += [
            table.caption(phase_title(diff, name, step)),
            table.html(*flat_table(step)),
            _below(memory_rows(step)),
        ]
    return "".join((*parts, _below(*LEGEND)))


# Markdown and CSV


@exporter("md", ".md", of=WorkloadDiff)
def to_markdown(diff: WorkloadDiff) -> str:
    """Two workloads as text."""
    parts = ["# Difference\n", json.to_markdown(("", ""), head_lines(diff))]
    parts.append(json.to_markdown(ANSWERS, answer_rows(diff), range(1, 5)))
    for name, step in diff.phases:
        title = phase_title(diff, name, step)
        parts += [
            f"## {title[:1].upper()}{title[1:]}\n",
            json.to_markdown(*flat_table(step)),
            f"{json.md(memory_rows(step))}.\n",
        ]
    return "\n".join([*parts, f"{' '.join(LEGEND)}\n"])


@exporter("csv", ".csv", of=WorkloadDiff)
def to_csv(diff: WorkloadDiff) -> str:
    """One line for each change in each phase, and a total for each phase."""
    return json.to_csv(to_rows(diff))


def to_rows(diff: WorkloadDiff) -> list[dict[str, Any]]:
    """One flat row for each change of each phase, and a total for each phase, in SI units."""
    found = []
    for phase, step in diff.phases:
        lines: list[tuple[dict[str, Any], Any]] = [(_change_fields(c), c.figure) for c in step.changes]
        sides = {"before": step.basis.before, "after": step.basis.after}
        bases = {f"basis_{name}": "; ".join(map(str, side.shares)) for name, side in sides.items()}
        for said, figure in [
            *lines,
            (_change_fields(Change((), ())) | {"what": "total"} | bases, step.total),
        ]:
            pairs = {name: figure(name).to_dict() for name in FIGURES}
            found.append(
                {"phase": phase} | said | {f"{n}_{k}": v for n, p in pairs.items() for k, v in p.items()}
            )
    return found


def _change_fields(change: Change) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    names = {name: " ".join(p.name for p in parts) for name, parts in sides.items()}
    times = {f"repeat_{name}": repeat_counts(parts).replace("×", "") for name, parts in sides.items()}
    bases = {
        f"basis_{name}": "; ".join(dict.fromkeys(str(p.basis) for p in parts))
        for name, parts in sides.items()
    }
    return {"what": change.what, **names, **times, **bases}
