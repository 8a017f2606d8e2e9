"""A simulation as a timeline for Perfetto: a process a server, with its steps, counters and requests.

Requests are nestable asynchronous events ("Trace Event Format", Google 2016), as many may run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmir.backends.simulate.load import Array
from llmir.backends.simulate.result import Simulation
from llmir.backends.simulate.simulated_pools import SimulatedPools
from llmir.backends.step.timeline import STREAM

from . import wording
from .timeline import Event, complete, counter, meta


def served(found: Simulation) -> dict[str, Any]:
    """The document: what served what, and the events."""
    job = found.job
    names = _names(found)
    return {
        "schemaVersion": 1,
        "predicted": f"by llmir, {wording.cost_model(job.prefill)}; nothing of this was recorded",
        "model": job.program.name,
        "displayTimeUnit": "ms",
        "traceEvents": [
            *(event for number, name in enumerate(names) for event in _server(number, name, job.device.name)),
            *_steps(found, len(names)),
            *_requests(found),
        ],
    }


def _names(found: Simulation) -> list[str]:
    if isinstance(found, SimulatedPools) and found.prefill and found.decode:
        pools = (("prefill", found.prefill), ("decode", found.decode))
        return [f"{name} server {number}" for name, fleet in pools for number in range(len(fleet.replicas))]
    return [f"server {number}" for number in range(len(getattr(found, "replicas", ())) or 1)]


def _server(number: int, name: str, device: str) -> Iterator[Event]:
    for key, text in (("name", name), ("labels", device)):
        yield meta(number, STREAM, f"process_{key}", {key: text})
    yield meta(number, STREAM, "process_sort_index", {"sort_index": number})
    yield meta(number, STREAM, "thread_name", {"name": "steps"})


def _steps(found: Simulation, servers: int) -> Iterator[Event]:
    """A slice for each run of equal steps, and counters of requests that decode, are read or wait."""
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
        yield complete("user_annotation", name, server, STREAM, start, last[server], args)
        many = {"decoding": int(decodes), "reading": int(reads), "waiting": int(waiting)}
        yield counter("requests", server, start, many)
    for server, end in enumerate(last):
        yield counter("requests", server, end, {"decoding": 0, "reading": 0, "waiting": 0})


def _requests(found: Simulation) -> Iterator[Event]:
    """Of each request what it waits for, and what is done, at the server where it is."""
    here = np.zeros(len(found.load), dtype=np.int64)
    pooled = isinstance(found, SimulatedPools) and found.prefill
    place = found.places["prefill" if pooled else "replica"] if found.places else here
    phases: list[tuple[str, Array, Array, Array]] = [
        ("waiting", found.arrival_s, found.start_s, place),
        ("prefill", found.start_s, found.first_s, place),
    ]
    if not isinstance(found, SimulatedPools) or not found.prefill:
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
        until = np.minimum(ends, found.end_s)  # where a request is given up before
        rows = zip(starts.tolist(), until.tolist(), servers.tolist(), strict=True)
        for number, (start, end, server) in enumerate(rows):
            if end > start:  # not of what is not there, or takes no time
                event = {"cat": "request", "name": name, "id": number, "pid": server, "tid": STREAM}
                yield {**event, "ph": "b", "ts": round(start * 1e9) / 1000, "args": {"request": number}}
                yield {**event, "ph": "e", "ts": round(end * 1e9) / 1000}
