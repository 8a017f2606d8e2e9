"""How many requests memory holds: of a batch, which else goes in waves, and of a closed loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from llmir.backends.analysis.liveness import memories
from llmir.backends.analysis.workload import Workload
from llmir.dim import Binding
from llmir.errors import InputError


@dataclass(frozen=True, eq=False)
class Loop(Workload):
    """Requests in flight, `generate` tokens old at most; a prompt is read beside the others' caches."""

    def peak_bytes(self, batch: int) -> int:
        """The larger of a step that decodes all and of one that reads a prompt, or the last chunk of it."""
        alone, sequences = self.program.parallelism.dp, batch // self.program.micro_batches
        new = min(self.chunk or self.length, self.length - self.cached)
        reading = Binding(B=alone, T=new, C=self.length - new)
        full, one = (Binding(B=n, T=1, C=self.length + self.generate - 2) for n in (sequences, alone))
        others = [full(m.caches) - one(m.caches) for m in memories(self.program, self.cache_policy)]
        steps = zip(memories(self.program, self.cache_policy), others, strict=True)
        return int(max(max(m.peak(full), m.peak(reading) + more) for m, more in steps))


def in_flight(job: Workload, chunk: int | None) -> tuple[int, int]:
    """How many requests of a closed loop memory holds at once: of all ages, so at their mean length.

    Of the share of it that engines use, and of all of it.
    """
    given = {f.name: getattr(job, f.name) for f in fields(job)}
    return fitting(Loop(**given | {"batch": 1, "generate": job.generate // 2 + 1, "chunk": chunk}), 0)


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
