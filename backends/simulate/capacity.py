"""What an engine takes in a step, and on which rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Capacity(NamedTuple):
    """The limits of an engine.

    `blocks` of the KV cache, of `block` tokens each, and `sequences` at once are of all data-parallel `ranks`
    together. `tokens` are the budget of each rank in a step, or in each of the `micro_batches` that are in a
    pipeline at once. A sequence that decodes takes `rows` tokens of the budget: one, and one for each draft.
    The states of a running sequence take `state` blocks, however long it is.
    """

    blocks: int
    block: int
    tokens: int
    sequences: int
    ranks: int = 1
    micro_batches: int = 1
    rows: int = 1
    state: int = 0

    @property
    def lanes(self) -> int:
        """Ranks times micro-batches, over which sequences that decode are spread evenly."""
        return self.ranks * self.micro_batches


def by_rank(
    chunks: Mapping[int, tuple[int, int]], running: Mapping[int, int], ranks: int
) -> list[list[tuple[int, int]]]:
    """The chunks that each rank reads, of chunks by request; `running` has the rank of each request."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for request, chunk in chunks.items():
        found[running[request]].append(chunk)
    return found
