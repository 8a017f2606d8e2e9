"""Why a split cannot be, and how far it is from one that can."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from llmir.backends.request.workload import Workload
from llmir.base.errors import LlmirError
from llmir.base.values import Array

from .structure import Room, Structure
from .traffic import Traffic

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


def unfit(structure: Structure, traffic: Traffic, why: str) -> Refusal:
    """Why the engine takes no request there."""
    try:
        return too_large(structure.job(*traffic.tokens, None, None), why)
    except LlmirError:
        return Refusal(why)


def crowded(structure: Structure, traffic: Traffic, batches: Sequence[int] | None) -> Refusal:
    """Why none of the batches is taken."""
    why = "not one request fits beside the weights"
    return Refusal("no such batch fits") if batches else unfit(structure, traffic, why)


def too_long(structure: Structure, traffic: Traffic, room: Room) -> Refusal | None:
    """That some requests could never run there; how far it is, is the memory that the longest needs.

    None where each has room.
    """
    if not (why := _longer(traffic, room)):
        return None
    answer, longest = traffic.answer, traffic.longest
    try:
        job = structure.job(max(1, longest - answer), answer, longest, room.tokens, None)
        return Refusal(why, too_large(job, why).times)
    except LlmirError:
        return Refusal(why)


def _longer(traffic: Traffic, room: Room) -> str:
    """That requests have more tokens than caches hold, or than a step reads; nothing where none has."""
    every, fills = traffic.every, room.policy
    found = [("the cache holds", every.reserved + room.rows - 1, room.holds)]
    if not fills.chunked:
        found.append(("a step reads", fills.longest(every.prompt - every.cached, every.written), room.tokens))
    return next((_more(*each) for each in found if each[1].max() > each[2]), "")


def _more(what: str, tokens: Array, most: int) -> str:
    more = f"{100 * float((tokens > most).mean()):.2g}% of requests have more, up to {int(tokens.max()):,}"
    return f"does not fit: {what} {most:,} tokens at most, {more}"
