"""Timelines of steps and simulations as trace files for Perfetto and chrome://tracing.

The format is Chrome's ("Trace Event Format", Google 2016), with the categories and arguments of Kineto
(pytorch/kineto, libkineto/src/output_json.cpp): a process per rank, a thread per stream, and times in µs.
`trace` builds the document of a step or request. `serving_trace` builds the document of a simulation: a
process per server, with steps, counters, and requests. Requests are nestable asynchronous events, because
many run at the same time.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from llmir.backends.request.workload import Workload
from llmir.backends.simulate.load import Array
from llmir.backends.simulate.result import PoolSimulation, Simulation
from llmir.backends.step.evaluate import BUBBLE, OVERHEAD
from llmir.backends.step.report import STREAM, Report, TimeSlice
from llmir.base import arguments
from llmir.base.arguments import choice
from llmir.base.errors import InputError, OutputError
from llmir.base.names import plain

from . import wording
from .files import check_writable, write

# Steps and requests

Event = dict[str, Any]
SUFFIXES = (".json", ".json.gz")
WAITS = 0  # the thread that shows waits: engine CPU time and others
PHASES = ("encode", "prefill", "decode", "draft", "both")


def write_trace(
    job: Report | Workload, path: str | os.PathLike[str], *, phase: str = "both", rank: int | None = None
) -> Path:
    """Write the steps of a job, one after another, to a `.json` or `.json.gz`; return the path.

    The ranks of a pipeline stage do the same work, so the first rank of each stage stands for the others;
    with `rank`, the file contains one rank, as a profiler writes it. `InputError` for an unknown step or
    rank, `OutputError` for a file that cannot be written.
    """
    return write_document(lambda: trace(job, phase=phase, rank=rank), path)


def write_document(make: Callable[[], Event], path: str | os.PathLike[str]) -> Path:
    """Write the result of `make` to a `.json` or `.json.gz` file; raise OutputError before the work starts if
    this is impossible.
    """
    target = check_target(path)
    text = json.dumps(make(), ensure_ascii=False, allow_nan=False)
    data = text.encode("utf-8", "backslashreplace")
    write(path, gzip.compress(data, mtime=0) if target.name.lower().endswith(".gz") else data)
    return Path(path)


def check_target(path: str | os.PathLike[str]) -> Path:
    """The path; OutputError if it cannot be written, or if its suffix is not that of a trace."""
    target = check_writable(path)
    if not target.name.lower().endswith(SUFFIXES):
        shown = plain(os.fspath(path), limit=1000)
        raise OutputError(f"{shown}: a trace is a {' or '.join(SUFFIXES)}, as Perfetto reads them")
    return target


def trace(job: Report | Workload, *, phase: str = "both", rank: int | None = None) -> dict[str, Any]:
    """The document: the program and device, and the events."""
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
        "predicted": f"by llmir, {wording.cost_model(steps[0])}; estimated, not recorded",
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
    """The steps of a phase, or the only step."""
    phase = choice("phase", phase, PHASES)
    if isinstance(job, Report):
        return [job]
    if not isinstance(job, Workload):
        arguments.refuse("trace", job, "a Report or a Workload")
    if phase not in ("both", *job.steps):
        raise InputError(f"phase: this workload has no {phase} step; trace its {' or '.join(job.steps)}")
    return [step for name, step in job.steps.items() if phase in (name, "both")]


def _process(rank: int, ranks: int, job: Report | Workload) -> Iterator[Event]:
    """The names of the process and the threads of a rank."""
    stage = f", pipeline stage {rank // ranks}" if len(job.program.entries) > 1 else ""
    alike = f", one of {ranks} alike" if ranks > 1 else ""
    names = {"process_name": f"rank {rank}{stage}{alike}", "process_labels": job.device.name}
    for key, name in names.items():
        yield name_event(rank, WAITS, key, {"labels" if key == "process_labels" else "name": name})
    yield name_event(rank, WAITS, "process_sort_index", {"sort_index": rank})
    for thread, name in ((WAITS, "engine and waits"), (STREAM, f"stream {STREAM}")):
        yield name_event(rank, thread, "thread_name", {"name": name})


def name_event(rank: int, thread: int, name: str, args: Event) -> Event:
    """The name of a process or thread."""
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "ts": 0, "args": args}


def _step(number: int, title: str, rank: int, slices: Sequence[TimeSlice], start_s: float) -> Iterator[Event]:
    """A step of one rank: its range, the ranges of its blocks, its slices, and counters."""
    if not slices:
        return
    whole = start_s + slices[0].start_s, start_s + slices[-1].end_s
    yield complete_event("user_annotation", f"ProfilerStep#{number}", rank, WAITS, *whole, {"step": title})
    yield complete_event(
        "gpu_user_annotation", f"ProfilerStep#{number}", rank, STREAM, *whole, {"step": title}
    )
    yield from _blocks(slices, rank, start_s, 0)
    live = -1.0
    for s in slices:
        if s.time_s:  # a slice that takes no time is not a kernel
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


def _blocks(slices: Iterable[TimeSlice], rank: int, start_s: float, depth: int) -> Iterator[Event]:
    """The ranges of numbered blocks such as `layer[17]`, including nested ones."""

    def block(s: TimeSlice) -> tuple[int, str]:
        parts = s.path.split(".")[:-1]
        return s.micro_batch, ".".join(parts[: depth + 1]) if len(parts) > depth else ""

    for (_, name), run in groupby((s for s in slices if s.kind != OVERHEAD), block):
        if name:
            own = list(run)
            times = start_s + own[0].start_s, start_s + own[-1].end_s
            yield complete_event(
                "gpu_user_annotation", name.rpartition(".")[2], rank, STREAM, *times, {"path": name}
            )
            yield from _blocks(own, rank, start_s, depth + 1)


def _slice(s: TimeSlice, rank: int, start_s: float) -> Event:
    """A kernel; or a wait, which is on a separate thread."""
    args: Event = {"path": s.path, "micro_batch": s.micro_batch, "bound": s.bound, "basis": s.basis}
    if s.error is not None:
        args["mean relative error"] = s.error
    times = start_s + s.start_s, start_s + s.end_s
    name = s.path.rpartition(".")[2]
    if s.kind == OVERHEAD:
        return complete_event("bubble" if s.bound == BUBBLE else "cpu_op", name, rank, WAITS, *times, args)
    counts = ("flops", "read_bytes", "write_bytes", "comm_bytes")
    args |= {"device": rank, "stream": s.stream, **{key: getattr(s, key) for key in counts}}
    called = (
        f"ncclDevKernel_{name}" if s.comm_bytes else name
    )  # the name by which profiling tools recognize a collective
    return complete_event("kernel", called, rank, s.stream, *times, args)


def complete_event(
    cat: str, name: str, rank: int, thread: int, start_s: float, end_s: float, args: Event
) -> Event:
    """A complete event in whole nanoseconds, so that adjacent and nested events stay adjacent and nested
    after reading.
    """
    start, end = round(start_s * 1e9), round(end_s * 1e9)
    event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": thread}
    return {**event, "ts": start / 1000, "dur": (end - start) / 1000, "args": args}


def counter(name: str, rank: int, at_s: float, args: Event) -> Event:
    """Counter values that apply from a time on."""
    return {"ph": "C", "name": name, "pid": rank, "tid": WAITS, "ts": round(at_s * 1e9) / 1000, "args": args}


# Simulations


def serving_trace(found: Simulation) -> dict[str, Any]:
    """The document: the servers and the load, and the events."""
    job = found.job
    names = _names(found)
    return {
        "schemaVersion": 1,
        "predicted": f"by llmir, {wording.cost_model(job.prefill)}; estimated, not recorded",
        "model": job.program.name,
        "displayTimeUnit": "ms",
        "traceEvents": [
            *(event for number, name in enumerate(names) for event in _server(number, name, job.device.name)),
            *_steps(found, len(names)),
            *_requests(found),
        ],
    }


def _names(found: Simulation) -> list[str]:
    if isinstance(found, PoolSimulation) and found.prefill and found.decode:
        pools = (("prefill", found.prefill), ("decode", found.decode))
        return [f"{name} server {number}" for name, fleet in pools for number in range(len(fleet.replicas))]
    return [f"server {number}" for number in range(len(getattr(found, "replicas", ())) or 1)]


def _server(number: int, name: str, device: str) -> Iterator[Event]:
    for key, text in (("name", name), ("labels", device)):
        yield name_event(number, STREAM, f"process_{key}", {key: text})
    yield name_event(number, STREAM, "process_sort_index", {"sort_index": number})
    yield name_event(number, STREAM, "thread_name", {"name": "steps"})


def _steps(found: Simulation, servers: int) -> Iterator[Event]:
    """A slice for each series of equal steps, and counters of requests in decode, in prefill and waiting."""
    columns = {name: column.tolist() for name, column in found.events.items()}
    where = columns.get("replica") or [0] * len(columns["start_s"])
    last = [0.0] * servers
    names = ("start_s", "time_s", "steps", "decodes", "kept", "new", "reads", "waiting")
    rows = zip(*(columns[name] for name in names), where, strict=True)
    for start, time, steps, decodes, kept, new, reads, waiting, server in rows:
        name = " and ".join(["prefill"] * bool(reads) + ["decode"] * bool(decodes))
        args = {"steps": int(steps), "decodes": int(decodes), "cached tokens": int(kept)}
        args |= {"prompts": int(reads), "new tokens": int(new)}
        last[server] = start + time
        yield complete_event("user_annotation", name, server, STREAM, start, last[server], args)
        many = {"decoding": int(decodes), "reading": int(reads), "waiting": int(waiting)}
        yield counter("requests", server, start, many)
    for server, end in enumerate(last):
        yield counter("requests", server, end, {"decoding": 0, "reading": 0, "waiting": 0})


def _requests(found: Simulation) -> Iterator[Event]:
    """The waits and activities of each request, on its server."""
    here = np.zeros(len(found.load), dtype=np.int64)
    pooled = isinstance(found, PoolSimulation) and found.prefill
    place = found.places["prefill" if pooled else "replica"] if found.places else here
    phases: list[tuple[str, Array, Array, Array]] = [
        ("waiting", found.arrival_s, found.start_s, place),
        ("prefill", found.start_s, found.first_s, place),
    ]
    if not isinstance(found, PoolSimulation) or not found.prefill:
        phases += [("decode", found.first_s, found.end_s, place)]
    else:
        later = found.places["decode"] + len(found.prefill.replicas)
        begins = found.came_s + found.admission_s
        phases += [
            ("cache on its way", found.first_s, found.came_s, place),
            ("waiting to decode", found.came_s, begins, later),
            ("decode", begins, found.end_s, later),
        ]
    for name, starts, ends, servers in phases:
        until = np.minimum(ends, found.end_s)  # if a request is given up before this time
        rows = zip(starts.tolist(), until.tolist(), servers.tolist(), strict=True)
        for number, (start, end, server) in enumerate(rows):
            if end > start:  # skip spans that are missing or take no time
                event = {"cat": "request", "name": name, "id": number, "pid": server, "tid": STREAM}
                yield {**event, "ph": "b", "ts": round(start * 1e9) / 1000, "args": {"request": number}}
                yield {**event, "ph": "e", "ts": round(end * 1e9) / 1000}
