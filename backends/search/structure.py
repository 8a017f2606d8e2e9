"""A model as it is split and quantized on a device, and how many requests the engine takes there at once."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmir.backends.cost.op_time import Model
from llmir.backends.request.workload import Workload
from llmir.backends.simulate.drafts import Drafts
from llmir.backends.simulate.engine import capacity, holds, policy
from llmir.backends.simulate.policy import Policy
from llmir.hw.device import Device
from llmir.ir.core.program import Program

from .splits import Split


def name(device: Device, weights: str, split: Split) -> str:
    """`H100-SXM fp8 tp 2`: of a structure, whether it can be or not."""
    return " ".join((device.name, *([weights] if weights else []), str(split)))


class Structure(NamedTuple):
    """One replica of a program; `weights` is what they were quantized to, "" as the checkpoint has them.

    A step of what decodes verifies `drafts`, if there are any.
    """

    program: Program
    model: Model
    weights: str
    split: Split
    drafts: Drafts | None = None

    @property
    def device(self) -> Device:
        """What it runs on."""
        return self.model.device

    @property
    def name(self) -> str:
        """What tells it from others of the same model."""
        return name(self.device, self.weights, self.split)

    def job(
        self, prompt: int, generate: int, longest: int | None, chunk: int | None, batch: int | None
    ) -> Workload:
        """A workload of one request, with limits of a step in tokens and sequences; None for the engine's."""
        each = batch and -(-batch // self.split.dp)  # of a data-parallel rank, as engines take it
        step: Any = {"max_num_seqs": each, "max_batched_tokens": chunk, "max_model_len": longest}
        job = Workload(self.program, self.device, 1, prompt, generate, model=self.model, **step)
        return self.drafts.beside(job) if self.drafts else job


class Room(NamedTuple):
    """What an engine has room for: `tokens` of a step on each data-parallel rank, and `requests` at once.

    Its caches hold so many tokens of one request (`holds`), and of each `rows` of a step.
    """

    tokens: int
    requests: int
    holds: int
    rows: int
    policy: Policy


def room(job: Workload, drafts: Drafts | None = None) -> Room:
    """Of the engine that a workload is priced for, for requests like its own; InputError without caches.

    `requests` is the smaller of how many its caches hold and how many it lets run.
    """
    found = capacity(job, drafts)
    assert job.pool is not None, "it has a capacity"
    each = -(-(job.prompt + job.generate + found.rows - 2) // found.block) + found.state
    fills = policy(job)
    requests = min(found.blocks // each, found.sequences)
    return Room(job.pool.tokens, requests, holds(found, fills), found.rows, fills)
