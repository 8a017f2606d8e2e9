"""How engines run many requests: in waves where memory holds fewer, and the steady step of a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llmir.backends.report import Report
from llmir.backends.workload import Workload
from llmir.errors import InputError


class Seconds(NamedTuple):
    """A figure, and what it cannot be below."""

    expected: float
    bound: float


def fitting(job: Callable[[int], Workload], batch: int) -> int:
    """How many of `batch` requests (0: of any number) memory holds at once; InputError if not even one."""
    one = job(1)
    if not one.max_batch:
        raise InputError(f"does not fit: not even one sequence on {one.program.devices} × {one.device.name}")
    return min(batch, one.max_batch) if batch else one.max_batch


def waves(job: Callable[[int], Workload], batch: int) -> float:
    """Seconds until a static batch is done: as many as fit at once, one wave after another, then the rest."""
    most = fitting(job, batch)
    whole, rest = divmod(batch, most)
    return whole * job(most).e2e_s + (job(rest).e2e_s if rest else 0.0)


def steady_step(step: Callable[[int, int, int], Report], batch: int, prompt: int, generate: int) -> Seconds:
    """One step of a closed loop of `batch` requests, which decodes all and reads `batch`/`generate` prompts.

    `step` takes sequences, new tokens of each, and cached ones. Prompts are taken to be read apart from the
    decodes, one at a time; the bound is the longer of the two, since in a mixed step one can hide behind the
    other. The context is that of the middle of a request.
    """
    decode = float(step(batch, 1, prompt + generate // 2).period_s)
    prefill = batch / generate * float(step(1, prompt, 0).interval_s)
    return Seconds(decode + prefill, max(decode, prefill))
