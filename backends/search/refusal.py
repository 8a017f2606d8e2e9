"""Why a split cannot be, and how far it is from one that can."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from llmir.backends.analysis.workload import Workload

GB = 1e9


class Refusal(NamedTuple):
    """In words; what it needs over what there is, of devices or of memory; and whether it `fits` there."""

    why: str
    times: float = inf
    fits: bool = False

    @property
    def far(self) -> tuple[bool, float]:
        """How far it is from what can be: too few devices are closer than too little memory."""
        return not self.fits, self.times


def all_of(count: int, why: object) -> str:
    """What is said where nothing is left of so many rows, by the reason of the first."""
    return f"the one step is refused: {why}" if count == 1 else f"all {count:,} steps are refused: {why}"


def too_many(devices: int, most: int, times: float) -> Refusal:
    """More devices than there may be, as their rate is so many `times` below what comes."""
    return Refusal(f"needs {devices:,} GPUs, {most:,} allowed", times, fits=True)


def too_large(job: Workload, why: str) -> Refusal:
    """Too little memory for one request on each rank and micro-batch, on the stage that lacks most.

    As it was said where there is enough for that.
    """
    assert job.pool is not None
    pool, lanes = job.pool, job.program.parallelism.dp * job.program.micro_batches
    held = pool.held(lanes // job.program.micro_batches, job.length + job.generate)
    rooms = pool.rooms(max(1, lanes // job.program.parallelism.dp))
    short, room, cache = max(
        (room.held + cache - room.usable, room, cache) for room, cache in zip(rooms, held, strict=True)
    )
    if short <= 0 or room.usable <= 0:
        return Refusal(why)
    parts = {"weights": room.weights, "activations": room.activations, "a request": cache}
    most = max(parts, key=lambda name: parts[name])
    needed = short + room.usable
    what = f"{needed / GB:.3g} of {room.usable / GB:.3g} GB a GPU, {parts[most] / GB:.3g} of them {most}"
    return Refusal(f"does not fit: needs {what}", needed / room.usable)
