"""The page of a timeline: the work of each stage, to scale, with the activations that are alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llmir.backends.export import timeline as kineto
from llmir.backends.export import units, wording
from llmir.backends.request.workload import Workload
from llmir.backends.step.evaluate import BUBBLE
from llmir.backends.step.report import Report, TimeSlice

from .document import Document, column, document, json_value, sheet

_PLACE = ("stage", "rank", "micro_batch")
_KEYS = ("op", "fact", "path", *_PLACE, "start_s", "end_s", "live_bytes")
_FACTS = ("bound", "basis", "error", "flops", "read_bytes", "write_bytes", "comm_bytes")


def timeline(job: Report | Workload, phase: str = "both") -> Mapping[str, Any]:
    """The data of the page: a strip and a table for each step."""
    steps = kineto.steps_of(job, phase)
    program, views = job.program, []
    for number, step in enumerate(steps):
        title = wording.step_title(step)
        slices = step.timeline()
        views += [_strip(title, step, slices, number), _table(title, step, slices, number)]
    chips = [
        ("device", f"{program.devices:,} × {job.device.name}" if program.devices > 1 else job.device.name),
        *((("split", " ".join(split)),) if (split := program.parallelism.words()) else ()),
    ]
    times = (f"{units.time(float(step.time_s))}{wording.error_band(step.error)}" for step in steps)
    answer = "; ".join(f"{wording.step_title(step)}: {time}" for step, time in zip(steps, times, strict=True))
    how = "predicted, not recorded; slices of a stream neither overlap nor leave gaps"
    basis = f"times: {wording.cost_model(steps[0])}; {how}"
    return document(
        program.name,
        chips,
        (),
        views,
        answer=answer,
        lines=[line for step in steps for line in wording.sums(step)],
        basis=basis,
        notes=job.notes,
    )


def _at(s: TimeSlice) -> tuple[int, int]:
    return s.stage, s.micro_batch


def _strip(title: str, step: Report, slices: tuple[TimeSlice, ...], number: int) -> Document:
    """A strip; initially, it shows an enlarged layer in the middle of the first stage."""
    ops, told, rows = _FirstSeenNumbers(), _FirstSeenNumbers(), []
    for s in slices:
        fact = told.number(tuple(json_value(getattr(s, name)) for name in _FACTS))
        places = [getattr(s, name) for name in _PLACE]
        times = (float(s.start_s), float(s.end_s), json_value(s.live_bytes))
        rows.append([ops.number(s.op), fact, s.path, *places, *times])
    start, end = _layer(slices)
    depth, program = step.plan.depth, step.program
    ranks = program.devices // depth
    sends = {row.name for row in step.plan.rows if row.work.wire and max(row.work.group) >= ranks}
    stages = [
        {
            "name": f"stage {stage}" if depth > 1 else "step",
            "ranks": f"{ranks:,} GPU{'s' if ranks > 1 else ''}",
            "below": _below(step, stage),
            "sends": json_value(sum(s.comm_bytes for s in slices if _at(s) == (stage, 0) and s.op in sends)),
        }
        for stage in range(depth)
    ]
    return {
        "kind": "strip",
        "title": f"Timeline: {title}",
        "look": "wide",
        "file": f"timeline-{number}",
        "note": "A click, or Enter, enlarges what it is on; ◀ ▶ + − move what is enlarged.",
        "said": "Point at a slice, or go to it by Tab and arrows, for its numbers.",
        "keys": _KEYS,
        "ops": list(ops.known),
        "facts": [dict(zip(_FACTS, fact, strict=True)) for fact in told.known],
        "slices": rows,
        "bounds": list(dict.fromkeys(s.bound for s in slices)),
        "stages": stages,
        "micro_batches": program.micro_batches,
        "end": float(step.time_s),
        "from": start,
        "to": end,
    }


class _FirstSeenNumbers:
    """Values, each replaced by the index of its first occurrence."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        return self.known.setdefault(thing, len(self.known))


def _below(step: Report, stage: int) -> str:
    """The memory of a GPU of a stage that is not used by activations."""
    memory = step.plan.memories[stage]
    weights, caches = (units.bytes(float(step.at(size))) for size in (memory.weights, memory.caches))
    return f"below them: weights {weights} + caches {caches}"


def _layer(slices: Iterable[TimeSlice]) -> tuple[float, float]:
    """The time span of the middle layer of the first stage; without layers, of the whole stage."""
    own = [s for s in slices if s.stage == 0 and s.micro_batch == 0 and s.bound != BUBBLE]
    spans: dict[str, tuple[float, float]] = {}
    for s in own:
        first, bracket, _ = s.path.rpartition("]")
        if bracket:
            start, _ = spans.get(first, (s.start_s, 0.0))
            spans[first] = start, s.end_s
    every = sorted(spans.values())
    start, end = every[len(every) // 2] if every else (own[0].start_s, own[-1].end_s)
    return float(start), float(end)


def _table(title: str, step: Report, slices: tuple[TimeSlice, ...], number: int) -> Document:
    """All runs of each op together, over all stages and micro-batches."""
    found: dict[str, list[TimeSlice]] = {}
    for s in slices:
        found.setdefault(s.op, []).append(s)
    columns = [
        column("op", "op"),
        column("stage", "stage", "whole"),
        column("runs", "runs", "whole"),
        column("time_s", "time of all", "time"),
        column("share", "share of its stage", "percent"),
        column("bound", "bound"),
        column("flops", "FLOPs", "flops"),
        column("bytes", "bytes", "bytes"),
        column("comm_bytes", "sent", "bytes"),
    ]
    whole = float(step.time_s)
    rows = []
    for op, own in found.items():
        seconds = sum(s.time_s for s in own)
        amounts = (
            sum(s.flops for s in own) or None,
            sum(s.read_bytes + s.write_bytes for s in own) or None,
            sum(s.comm_bytes for s in own) or None,
        )
        share = seconds / whole if whole else 0.0
        rows.append((op, own[0].stage, len(own), seconds, share, own[0].bound, *amounts))
    return sheet(f"Ops: {title}", columns, rows, file=f"ops-{number}")
