"""A timeline as PyTorch's profiler writes one, for Perfetto, chrome://tracing and HolisticTraceAnalysis.

The format is Chrome's ("Trace Event Format", Google 2016) with the categories and arguments of Kineto
(pytorch/kineto, libkineto/src/output_json.cpp): a process a rank, a thread a stream, times in µs.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from llmir.backends.request.workload import Workload
from llmir.backends.step.costs import BUBBLE, OVERHEAD
from llmir.backends.step.report import Report
from llmir.backends.step.timeline import STREAM, Slice
from llmir.base import arguments
from llmir.base.arguments import choice
from llmir.base.errors import InputError, OutputError
from llmir.base.names import plain

from . import wording
from .files import check_writable, write

Event = dict[str, Any]
SUFFIXES = (".json", ".json.gz")
WAITS = 0  # the thread of what is no kernel: the engine's CPU, and waiting
PHASES = ("encode", "prefill", "decode", "draft", "both")


def write_trace(
    job: Report | Workload, path: str | os.PathLike[str], *, phase: str = "both", rank: int | None = None
) -> Path:
    """Write the steps of a job, one after another, to a `.json` or `.json.gz`; return the path.

    The ranks of a pipeline stage do the same, so that the first of each stands for them; with `rank` it is
    one rank's file, as the profiler writes them. `InputError` for a step or rank that there is not,
    `OutputError` for a file that cannot be written.
    """
    return write_document(lambda: trace(job, phase=phase, rank=rank), path)


def write_document(make: Callable[[], Event], path: str | os.PathLike[str]) -> Path:
    """Write what `make` gives to a `.json` or `.json.gz`; `OutputError` before that, where it cannot be."""
    target = check_target(path)
    text = json.dumps(make(), ensure_ascii=False, allow_nan=False)
    data = text.encode("utf-8", "backslashreplace")
    write(path, gzip.compress(data, mtime=0) if target.name.lower().endswith(".gz") else data)
    return Path(path)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The path; `OutputError` for one that cannot be written, or is no trace's."""
    target = check_writable(path)
    if not target.name.lower().endswith(SUFFIXES):
        shown = plain(os.fspath(path), limit=1000)
        raise OutputError(f"{shown}: a trace is a {' or '.join(SUFFIXES)}, as Perfetto reads them")
    return target


def trace(job: Report | Workload, *, phase: str = "both", rank: int | None = None) -> dict[str, Any]:
    """The document: what ran on what, and the events."""
    steps = steps_of(job, phase)
    program, device = job.program, job.device
    first, each = 0, program.devices // len(program.entries)
    if rank is not None:
        rank = arguments.integer("rank", rank, 0, program.devices - 1)
        first = rank % each
    shown = [r for r in range(first, program.devices, each) if rank in (None, r)]
    starts = list(accumulate((float(step.time_s) for step in steps), initial=0.0))
    slices = [[s for s in step.timeline() if s.rank + first in shown] for step in steps]
    return {
        "schemaVersion": 1,
        "predicted": f"by llmir, {wording.cost_model(steps[0])}; nothing of this was recorded",
        "model": program.name,
        "deviceProperties": [
            {"id": r, "name": device.name, "totalGlobalMem": device.memory_bytes} for r in shown
        ],
        "distributedInfo": {"backend": "nccl", "rank": shown[0], "world_size": program.devices},
        "displayTimeUnit": "ms",
        "traceEvents": [
            *(event for r in shown for event in _process(r, each, job)),
            *(
                event
                for number, (step, own, start) in enumerate(zip(steps, slices, starts, strict=False))
                for stage, run in groupby(own, lambda s: s.rank + first)
                for event in _step(number, wording.step_title(step), stage, list(run), start)
            ),
        ],
    }


def steps_of(job: Report | Workload, phase: str) -> list[Report]:
    """The steps of a phase, or the one that it is."""
    phase = choice("phase", phase, PHASES)
    if isinstance(job, Report):
        return [job]
    if not isinstance(job, Workload):
        arguments.refuse("trace", job, "a Report or a Workload")
    if phase not in ("both", *job.steps):
        raise InputError(f"phase: this workload has no {phase} step; trace its {' or '.join(job.steps)}")
    return [step for name, step in job.steps.items() if phase in (name, "both")]


def _process(rank: int, ranks: int, job: Report | Workload) -> Iterator[Event]:
    """What the process and the threads of a rank are called."""
    stage = f", pipeline stage {rank // ranks}" if len(job.program.entries) > 1 else ""
    alike = f", one of {ranks} alike" if ranks > 1 else ""
    names = {"process_name": f"rank {rank}{stage}{alike}", "process_labels": job.device.name}
    for key, name in names.items():
        yield meta(rank, WAITS, key, {"labels" if key == "process_labels" else "name": name})
    yield meta(rank, WAITS, "process_sort_index", {"sort_index": rank})
    for thread, name in ((WAITS, "engine and waits"), (STREAM, f"stream {STREAM}")):
        yield meta(rank, thread, "thread_name", {"name": name})


def meta(rank: int, thread: int, name: str, args: Event) -> Event:
    """What a process or thread is called."""
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "ts": 0, "args": args}


def _step(number: int, title: str, rank: int, slices: Sequence[Slice], start_s: float) -> Iterator[Event]:
    """A step of one rank: its range, its blocks' ranges, its slices, and the counters beside them."""
    if not slices:
        return
    whole = start_s + slices[0].start_s, start_s + slices[-1].end_s
    yield complete("user_annotation", f"ProfilerStep#{number}", rank, WAITS, *whole, {"step": title})
    yield complete("gpu_user_annotation", f"ProfilerStep#{number}", rank, STREAM, *whole, {"step": title})
    yield from _blocks(slices, rank, start_s, 0)
    live = -1.0
    for s in slices:
        if s.time_s:  # what moves nothing is no kernel
            yield _slice(s, rank, start_s)
        if s.kind == OVERHEAD:
            yield counter("memory bandwidth", rank, start_s + s.start_s, {"B/s": 0})
            continue
        if s.live_bytes != live:
            live = s.live_bytes
            yield counter("live activations", rank, start_s + s.start_s, {"bytes": live})
        rate = (s.read_bytes + s.write_bytes) / s.time_s if s.time_s else 0.0
        yield counter("memory bandwidth", rank, start_s + s.start_s, {"B/s": rate})
    yield counter("memory bandwidth", rank, whole[1], {"B/s": 0})


def _blocks(slices: Iterable[Slice], rank: int, start_s: float, depth: int) -> Iterator[Event]:
    """The ranges of numbered blocks such as `layer[17]`, and of those inside them."""

    def block(s: Slice) -> tuple[int, str]:
        parts = s.path.split(".")[:-1]
        return s.micro_batch, ".".join(parts[: depth + 1]) if len(parts) > depth else ""

    for (_, name), run in groupby((s for s in slices if s.kind != OVERHEAD), block):
        if name:
            own = list(run)
            times = start_s + own[0].start_s, start_s + own[-1].end_s
            yield complete(
                "gpu_user_annotation", name.rpartition(".")[2], rank, STREAM, *times, {"path": name}
            )
            yield from _blocks(own, rank, start_s, depth + 1)


def _slice(s: Slice, rank: int, start_s: float) -> Event:
    """A kernel, or on a thread of its own a wait."""
    args: Event = {"path": s.path, "micro_batch": s.micro_batch, "bound": s.bound, "basis": s.basis}
    if s.error is not None:
        args["mean relative error"] = s.error
    times = start_s + s.start_s, start_s + s.end_s
    name = s.path.rpartition(".")[2]
    if s.kind == OVERHEAD:
        return complete("bubble" if s.bound == BUBBLE else "cpu_op", name, rank, WAITS, *times, args)
    counts = ("flops", "read_bytes", "write_bytes", "comm_bytes")
    args |= {"device": rank, "stream": s.stream, **{key: getattr(s, key) for key in counts}}
    called = f"ncclDevKernel_{name}" if s.comm_bytes else name  # what tools know a collective by
    return complete("kernel", called, rank, s.stream, *times, args)


def complete(cat: str, name: str, rank: int, thread: int, start_s: float, end_s: float, args: Event) -> Event:
    """A complete event; in whole nanoseconds, so that what adjoins or nests does so after reading too."""
    start, end = round(start_s * 1e9), round(end_s * 1e9)
    event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": thread}
    return {**event, "ts": start / 1000, "dur": (end - start) / 1000, "args": args}


def counter(name: str, rank: int, at_s: float, args: Event) -> Event:
    """Values from a time on."""
    return {"ph": "C", "name": name, "pid": rank, "tid": WAITS, "ts": round(at_s * 1e9) / 1000, "args": args}
