"""Validation of memory: the terms in logs of engines, and peaks of runs, compared with predictions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from llmir.backends.cost.models import model
from llmir.backends.memory.kv_capacity import KvBudget, KvPool
from llmir.backends.request.workload import Workload
from llmir.backends.silicon.rows import Table, error_statistics
from llmir.backends.silicon.tables.engine_memory import EngineStartTable, MemoryTable, PeakMemoryTable
from llmir.base.errors import InputError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.engine_sections import CudaGraphs, EngineMemory
from llmir.ir.core.program import Program

from .requests import ModelSetup, plain_model, row_types

GIB = 2**30
LENGTH = 2048  # tokens of a request if the result does not depend on it
# Names of quantizations in the table: weights and activations.
QUANT = {"": ("", ""), "fp8dyn": ("fp8", "fp8"), "w8a8": ("int8", "int8"), "w4a16": ("int4", "")}
WIDE = {"bf16": "", "fp16": "", "fp32": "fp32"}
TERMS = ("weights", "activations", "overhead", "kv")  # bytes of a rank


Compare = Callable[[Table, int, Device, Callable[[ModelSetup], Program]], dict[str, tuple[float, float]]]


class MemoryAmount(NamedTuple):
    """A measured amount of memory in bytes or tokens, and its prediction."""

    file: str
    row: int
    metric: str
    device: str
    engine: str
    model: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1


class EngineStart(NamedTuple):
    """The start of an engine: its pool, and the amounts in its log in bytes per rank and in tokens; NaN for
    missing amounts.
    """

    engine: str
    pool: KvPool
    said: dict[str, float]

    @property
    def room(self) -> KvBudget:
        """The memory for KV caches of the logged stage, the first one with about as many bytes of weights."""
        rooms, weights = self.pool.rooms(), self.said["weights"]
        if math.isnan(weights):
            return rooms[0]
        return min(rooms, key=lambda room: round(abs(room.weights / weights - 1), 1))

    def predicted(self) -> dict[str, float]:
        """The predicted amounts, by the rule of the engine."""
        room = self.room
        tokens = self.pool.kv_tokens
        terms = room.weights, room.activations, room.overhead, room.caches
        whole = math.nan if tokens is None else float(tokens)
        return dict(zip((*TERMS, "tokens"), (*terms, whole), strict=True))


def start(t: Table, i: int, device: Device, build: Callable[[ModelSetup], Program]) -> EngineStart:
    """Row `i` of a table of starts; InputError if it cannot be compared with a prediction."""
    quant, dtype, kv = (str(t[c][i]).strip() for c in ("quant", "dtype", "kv"))
    for column, said, known in (("quant", quant, QUANT), ("dtype", dtype, WIDE)):
        if said not in known:
            raise InputError(f"{column} {said!r}; known are {', '.join(k for k in known if k)}")
    weights, activations = QUANT[quant] if quant else (WIDE[dtype],) * 2
    cache = WIDE[dtype] if kv in ("", "auto") else kv
    name = str(t["engine"][i]).strip()
    name = f"vllm@{name}" if re.match(r"\d", name) else name
    runs = library.engine(name)
    rule = runs.section(EngineMemory)
    if rule is None:
        raise InputError(f"the memory rule of engine {runs.name} is not known")
    tp, pp = (int(t[c][i]) for c in ("tp", "pp"))
    layout = ModelSetup(plain_model(str(t["model"][i])), tp, pp, 1, 1, weights, activations, cache)
    limits = ("max_model_len", "max_num_seqs", "max_batched_tokens")
    longest, sequences, tokens = (None if math.isnan(t[c][i]) else int(t[c][i]) for c in limits)
    physical = replace(device, physical_bytes=round(t["gpu_total_gib"][i] * GIB))
    of = LENGTH, float(t["util"][i]), 0
    held = KvPool(build(layout), physical, rule, *of, longest, sequences, tokens)
    pool = replace(held, graphs=runs.section(CudaGraphs))
    columns = ("weights_gib", "act_gib", "nontorch_gib", "kv_gib")
    terms = {term: float(t[c][i]) * GIB for term, c in zip(TERMS, columns, strict=True)}
    return EngineStart(name, pool, terms | {"tokens": float(t["tokens"][i])})


def peak(
    t: Table, i: int, device: Device, build: Callable[[ModelSetup], Program]
) -> dict[str, tuple[float, float]]:
    """The measured and predicted peak memory of row `i` of a table of runs."""
    gib, gb = t["value_gib"][i] * GIB, t["value_gb"][i] * 1e9
    if math.isnan(gib) and math.isnan(gb):
        raise InputError("the row states no amount of memory")
    weights, activations, kv = row_types(t, i)
    layout = ModelSetup(plain_model(str(t["model"][i])), int(t["tp"][i]), 1, 1, 1, weights, activations, kv)
    batch, prompt, generate = (int(t[c][i]) for c in ("batch", "tokens_in", "tokens_out"))
    job = Workload(build(layout), device, batch, prompt, generate, model=model(device, "ideal"))
    return {str(t["metric"][i]): (float(gb if math.isnan(gib) else gib), float(job.peak_bytes(batch)))}


def terms(
    t: Table, i: int, device: Device, build: Callable[[ModelSetup], Program]
) -> dict[str, tuple[float, float]]:
    """The measured and predicted amounts of the log in row `i`."""
    found = start(t, i, device, build)
    predicted = found.predicted()
    return {term: (was, predicted[term]) for term, was in found.said.items() if not math.isnan(was)}


# Functions that return measured and predicted amounts of a row, by table format.
COMPARED: dict[type[MemoryTable], Compare] = {EngineStartTable: terms, PeakMemoryTable: peak}


class MemoryTotal(NamedTuple):
    """Errors of the amounts of one metric and engine: mean and largest."""

    metric: str
    engine: str
    n: int
    mape: float
    bias: float
    worst: float


def memory_totals(amounts: Sequence[MemoryAmount]) -> list[MemoryTotal]:
    """Errors by metric and engine, in order of first occurrence."""
    groups: dict[tuple[str, str], list[MemoryAmount]] = {}
    for amount in amounts:
        groups.setdefault((amount.metric, amount.engine), []).append(amount)
    found = []
    for (metric, engine), some in groups.items():
        off = error_statistics(*np.array([(a.predicted, a.measured) for a in some]).T)
        worst = max((a.error for a in some), key=abs)
        found.append(MemoryTotal(metric, engine, off.n, off.mape, off.bias, worst))
    return found
