"""Validation of memory over a request: measured memory by kind, next to its prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmir.backends.memory.liveness import stage_memories
from llmir.backends.request.workload import Workload
from llmir.backends.silicon.rows import Array, Table
from llmir.base.errors import InputError
from llmir.ir.sizes.binding import Binding

from .chat import ChatSetup
from .estimates import CostModelChoice
from .memory import TERMS, MemoryAmount

MIB = 2**20
MOST = 1_000_000  # output tokens of a series


def series(file: str, t: Table, on: ChatSetup, pricing: CostModelChoice) -> list[MemoryAmount]:
    """The memory of each row, in total and by kind, and the prediction for its number of output tokens."""
    found: list[MemoryAmount] = []
    at = on.device.name, on.engine, on.program.name
    for prompt, rows in t.alike("input_tokens").items():
        part = t.take(rows)
        predicted = kinds(on, pricing, int(prompt[0]), tokens_out(file, part, on, pricing, int(prompt[0])))
        for metric, bytes in predicted.items():
            measured = part["memory_MiB" if metric == "memory" else f"{metric}_MiB"] * MIB
            for i in np.flatnonzero(~np.isnan(measured)):
                found.append(
                    MemoryAmount(file, int(part["line"][i]), metric, *at, float(measured[i]), float(bytes[i]))
                )
    return sorted(found, key=lambda amount: amount.row)


def tokens_out(file: str, t: Table, on: ChatSetup, pricing: CostModelChoice, prompt: int) -> Array:
    """The number of output tokens of each row: as stated, or derived from the seconds."""
    if not np.isnan(t["token"]).any():
        return t["token"]
    if np.isnan(t["time_s"]).any():
        raise InputError(f"{file}: each row needs token or time_s; use the same column in all rows")
    last = float(t["time_s"].max())

    def step(new: Any, context: Any) -> Any:
        return pricing.step(on.program, on.device, on.engine, on.batch, new, context)

    first = float(step(prompt, 0).time_s)
    per = float(step(1, prompt).period_s)
    most = min(int(max(0.0, last - first) / per) + 2, MOST)
    ends = first + np.concatenate([[0.0], np.cumsum(step(1, np.arange(prompt, prompt + most)).period_s)])
    return np.searchsorted(ends, t["time_s"], side="right").astype(float)


def kinds(on: ChatSetup, pricing: CostModelChoice, prompt: int, out: Array) -> dict[str, Array]:
    """Predicted bytes of a rank by kind and in total after `out` output tokens, on the fullest stage.

    Before the first output token, the prompt is in prefill; token i attends to i − 1 tokens after the prompt.
    A named engine allocates its pool of caches when it starts, if it has one.
    """
    job = Workload(on.program, on.device, on.batch, prompt, 2, model=pricing.model(on.device, on.engine))
    if on.engine and job.pool:
        room = job.pool.rooms()[job.pool.tightest]
        rooms = room.weights, room.activations, room.overhead, max(0.0, room.caches)
        return _each(*(np.full(len(out), float(value)) for value in rooms))
    sequences = on.batch // on.program.micro_batches
    reading = Binding(B=sequences, T=prompt, C=0)
    decoding = Binding(B=sequences, T=1, C=prompt + np.maximum(out, 2) - 2)
    prefill, decode = (stage_memories(on.program.phase(phase)) for phase in ("prefill", "decode"))
    stages = []
    for one, other in zip(prefill, decode, strict=True):
        weights: Array = np.full(len(out), float(Binding()(one.weights)))
        kv = reading(one.caches), decoding(other.caches)
        activations = one.transient(reading), other.transient(decoding)
        parts = [np.where(out < 2, *map(np.asarray, pair)) for pair in (activations, kv)]
        stages.append(_each(weights, parts[0], np.zeros(len(out)), parts[1]))
    return max(stages, key=lambda terms: float(terms["memory"].max()))


def _each(*terms: Array) -> dict[str, Array]:
    """The terms by name, with their sum."""
    return dict(zip((*TERMS, "memory"), (*terms, np.sum(terms, axis=0)), strict=True))
