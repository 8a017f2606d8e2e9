"""What makes up a row that is no op: what the engine adds to the ops of a stage, or why the stage waits."""

from __future__ import annotations

from llmir.backends.step.costs import BUBBLE, OVERHEAD, OpCost
from llmir.backends.step.evaluate import late
from llmir.backends.step.report import Report
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError


@dataclass(frozen=True)
class Term:
    """A time on the way to that of the row: what it is, how it comes about, and seconds."""

    what: str
    says: str
    time_s: float


def find(report: Report, name: str) -> OpCost | None:
    """The row of that name, or whose last part that is; `InputError` if several stages have one."""
    rows = [row for row in report.ops if row.kind == OVERHEAD]
    found = [row for row in rows if name in (row.name, row.name.rpartition(".")[2])]
    if len(found) > 1:
        raise InputError(f"op {name!r} is ambiguous: {', '.join(row.name for row in found)}")
    return found[0] if found else None


def terms(report: Report, row: OpCost) -> tuple[Term, ...]:
    """Times of which the row is the last less the first, once."""
    return _bubble(report, row) if row.bound == BUBBLE else _engine(report, row)


def _engine(report: Report, row: OpCost) -> tuple[Term, ...]:
    """Of a micro-batch on its stage: the ops alone, in a graph, as the CPU launches them, and after it."""
    host = report.plan.host
    assert host is not None, "an engine's row is there with its host only"
    added, whole = report.plan.overheads(report.at)[row.stage], report.stages[row.stage].time_s
    kernels = sum(r.repeat for r in report.plan.rows if r.stage == row.stage)
    alone = float(whole - sum(added))
    cpu = host.scheduling(report.plan.sequences(report.at))
    captured = bool(report.plan.captured(report.at))
    hidden = f"{100 * host.hidden:.3g}%" if captured and host.hidden > 0.0005 else "nothing"
    return (
        Term("ops alone", f"{kernels:,} kernels, each with its launch", alone),
        Term("in a graph", f"that hides {hidden} of each launch", alone + float(added.hidden_s)),
        Term(
            "as launched",
            "at once" if captured else f"by the CPU, {host.launching}",
            float(whole - added.host_s - added.skew_s),
        ),
        *_late(report, row, host.skew_us, float(whole - added.host_s)),
        Term("as scheduled", "at the first stage" if row.stage else f"by the CPU: {cpu}", float(whole)),
    )


def _late(report: Report, row: OpCost, skew_us: float, time_s: float) -> tuple[Term, ...]:
    """That collectives wait for the last rank, where there are any."""
    counts: dict[int, int] = {}
    for r in report.plan.rows:
        if r.stage == row.stage and late(r):
            counts[r.work.ranks] = counts.get(r.work.ranks, 0) + r.repeat
    if not counts:
        return ()
    calls = ", ".join(f"{n:,} collectives of {ranks} ranks" for ranks, n in sorted(counts.items()))
    return (Term("ranks together", f"{calls}, each is {skew_us:.3g} µs late", time_s),)


def _bubble(report: Report, row: OpCost) -> tuple[Term, ...]:
    """Of a step: what the stage works, and what all take."""
    parts, stage = report.program.micro_batches, report.stages[row.stage]
    each = f"{parts} micro-batch{'es' if parts > 1 else ''} of {1e3 * float(stage.time_s):.3g} ms"
    times = ", ".join(f"{1e3 * float(s.time_s):.3g}" for s in report.stages)
    return (
        Term("stage works", each, parts * float(stage.time_s)),
        Term("step", f"Σt + {parts - 1} · max t; stages take {times} ms", float(report.time_s)),
    )
