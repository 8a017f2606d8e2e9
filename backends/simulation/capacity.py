"""What an engine takes in a step, and on which rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Capacity(NamedTuple):
    """What an engine takes: blocks of so many tokens and sequences at once, of all data-parallel ranks.

    `tokens` are those that each of the `ranks` runs in a step, or in each of the `micro_batches` that are in
    flight in a pipeline. Each that decodes takes `rows` of them: one, or one and its drafts. States of each
    sequence that runs take so many blocks (`state`), however long it is.
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
        """What sequences that decode are spread over evenly."""
        return self.ranks * self.micro_batches


def placed(
    chunks: Mapping[int, tuple[int, int]], running: Mapping[int, int], ranks: int
) -> list[list[tuple[int, int]]]:
    """What each rank reads, of chunks by request, each of which runs on a rank."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for request, chunk in chunks.items():
        found[running[request]].append(chunk)
    return found
