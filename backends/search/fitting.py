"""Which structures have room for some traffic, and their plans by closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llmir.base.errors import LlmirError
from llmir.base.gc_pause import uncollected

from .refusal import Refusal, crowded, too_long, unfit
from .structure import Structure, room
from .structures import BATCHES, Points, Times, joined, points, times
from .traffic import Traffic

CHUNKS = (2048,)  # tokens of a step that are tried beside the engine's own

Sizes = dict[int, tuple[int, ...]]  # batches that have room, by the tokens of a step


class Fitting(NamedTuple):
    """Structures with room and the times of their steps, their plans, and why others are refused, by name."""

    structures: tuple[Structure, ...]
    times: list[Times]
    points: Points | None
    refused: dict[str, Refusal]


@uncollected()
def fitting(
    structures: Sequence[Structure],
    traffic: Traffic,
    chunks: Sequence[int] | None,
    batches: Sequence[int] | None,
) -> Fitting:
    """The structures with room for the traffic; chunks and batches are the usual ones, unless stated."""
    refused: dict[str, Refusal] = {}
    kept: list[tuple[Structure, Sizes]] = []
    for structure in structures:
        sizes = _sizes(structure, traffic, chunks, batches)
        if isinstance(sizes, Refusal):
            refused[structure.name] = sizes
        else:
            kept.append((structure, sizes))
    parts: list[Points] = []
    priced: list[Structure] = []
    known: list[Times] = []
    for model in dict.fromkeys(id(structure.model) for structure, _ in kept):
        own = [each for each in kept if id(each[0].model) == model]
        found = times(
            [structure for structure, _ in own],
            traffic.read,
            traffic.answer,
            [tuple(sizes) for _, sizes in own],
            [sorted({n for each in sizes.values() for n in each}) for _, sizes in own],
            traffic.cached,
        )
        for (structure, sizes), each in zip(own, found, strict=True):
            if isinstance(each, str):
                refused[structure.name] = Refusal(each)
                continue
            parts.append(points(len(priced), structure, each, traffic.answer, sizes))
            priced.append(structure)
            known.append(each)
    return Fitting(tuple(priced), known, joined(parts) if parts else None, refused)


def _sizes(
    structure: Structure, traffic: Traffic, chunks: Sequence[int] | None, batches: Sequence[int] | None
) -> Sizes | Refusal:
    """The batches that have room, by chunk; where there are none, the refusal that is closest to room."""
    sizes: Sizes = {}
    refusals: list[Refusal] = []
    for chunk in dict.fromkeys(chunks or (None, *CHUNKS)):
        try:
            found = room(structure.job(*traffic.tokens, chunk, None), structure.drafts)
        except LlmirError as error:
            refusals.append(unfit(structure, traffic, str(error)))
            continue
        if longer := too_long(structure, traffic, found):
            refusals.append(longer)
            continue
        dp = structure.split.dp
        asked = batches or sorted({*BATCHES, found.requests // dp * dp})
        sizes[found.tokens] = tuple(n for n in asked if 0 < n <= found.requests and n % dp == 0)
    if sizes := {chunk: some for chunk, some in sizes.items() if some}:
        return sizes
    return min(refusals or [crowded(structure, traffic, batches)], key=lambda each: each.far)
