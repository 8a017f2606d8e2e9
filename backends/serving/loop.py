"""How engines run many requests: in waves where memory holds fewer, and the steady step of a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from llmir.backends.analysis.liveness import memories
from llmir.backends.analysis.report import Report
from llmir.backends.analysis.workload import Workload
from llmir.dim import Binding
from llmir.errors import InputError
from llmir.graph import Program
from llmir.hw import Device


@dataclass(frozen=True, eq=False)
class Loop(Workload):
    """Requests in flight, `generate` tokens old at most; a prompt is read beside the others' caches."""

    pool = None  # what memory holds of requests of all ages, no engine's rule says

    def peak_bytes(self, batch: int) -> int:
        """The larger of a step that decodes all and of one that reads a prompt."""
        alone, sequences = replicas(self.program), batch // self.program.micro_batches
        reading = Binding(B=alone, T=self.prompt, C=0)
        full, one = (Binding(B=n, T=1, C=self.prompt + self.generate - 2) for n in (sequences, alone))
        others = [full(m.caches) - one(m.caches) for m in memories(self.program, self.cache_policy)]
        steps = zip(memories(self.program, self.cache_policy), others, strict=True)
        return int(max(max(m.peak(full), m.peak(reading) + more) for m, more in steps))


class Seconds(NamedTuple):
    """A figure, and what it cannot be below."""

    expected: float
    bound: float


def in_flight(program: Program, device: Device, batch: int, prompt: int, generate: int) -> tuple[int, int]:
    """How many of a closed loop's requests memory holds at once: of all ages, so at their mean length."""
    return fitting(Loop(program, device, 1, prompt, generate // 2 + 1), batch)


def fitting(one: Workload, batch: int) -> tuple[int, int]:
    """How many of `batch` requests (0: of any number) like `one` memory holds at once.

    Of the share of it that engines use by default, and of all of it; InputError if not even one fits.
    """
    whole = replace(one, memory_utilization=1.0, reserve_bytes=0)
    if not one.max_batch:
        raise InputError(f"does not fit: not even one sequence on {one.program.devices} × {one.device.name}")
    held = one.max_batch, whole.max_batch
    return (min(batch, held[0]), min(batch, held[1])) if batch else held


def waves(job: Callable[[int], Workload], batch: int, within: int) -> float:
    """Seconds until a static batch is done: `within` at once, one wave after another, then the rest."""
    whole, rest = divmod(batch, within)
    return whole * (job(within).e2e_s if whole else 0.0) + (job(rest).e2e_s if rest else 0.0)


def replicas(program: Program) -> int:
    """How many prompts are read at once, each alone on its data-parallel ranks."""
    return program.parallelism.dp


def steady_step(step: Callable[[int, int, int], Report], batch: int, prompt: int, generate: int) -> Seconds:
    """One step of a closed loop of `batch` requests, which decodes all and reads `batch`/`generate` prompts.

    `step` takes sequences, new tokens of each, and cached ones. Prompts are taken to be read apart from the
    decodes, one at a time by each data-parallel rank, and a token to wait for the share of them that the
    engine is known for. The bound is the longest of what they are apart, since in a mixed step one can hide
    behind the other, and of a token's way through the pipeline, whose stages may work on other batches
    meanwhile. The context is that of the middle of a request.
    """
    middle = prompt + generate // 2
    decoding = step(batch, 1, middle)
    ranks = replicas(decoding.program)
    reading, alone = step(ranks, prompt, 0), step(ranks, 1, middle)
    decode, prefill, prompts = float(decoding.period_s), float(reading.interval_s), batch / generate / ranks
    host = decoding.plan.host
    expected = host.served(decode, prefill, prompts) if host else decode + prompts * prefill
    least = max(float(decoding.interval_s), float(alone.period_s), prompts * prefill)
    return Seconds(float(expected), least)
