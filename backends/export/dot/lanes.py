"""Wires of a column of tiles: straight to the next tile, else along lanes beside the column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from llmir.base.dataclass import dataclass

from .canvas import Area, Point

PITCH, MARGIN = 8.0, 7.0  # between lanes; between the column and the first of them
_PORT = 9.0  # how far from a tile's edge wires enter and leave it


@dataclass(frozen=True)
class Wire:
    """From one tile to another; `dashed` for what jumps over others to be added unchanged."""

    tail: str
    head: str
    tip: str = ""
    words: str = ""
    dashed: bool = False
    strong: bool = False

    @property
    def right(self) -> bool:
        """Whether it runs on the right, if it does not run straight."""
        return self.dashed or self.strong


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lane of each bundle, by its tail and side: wires of one tile on one side share a lane."""

    rank: Mapping[str, int]
    bundles: Mapping[tuple[str, bool], int]
    doors: Mapping[Wire, int] = field(default_factory=dict)

    @classmethod
    def of(cls, order: Sequence[str], wires: Iterable[Wire]) -> Lanes:
        """Lanes for tiles in that order, downwards; short ways lie within long ones."""
        rank = {name: i for i, name in enumerate(order)}
        ways: dict[tuple[str, bool], tuple[int, int]] = {}
        doors: dict[Wire, int] = {}
        taken: dict[tuple[str, bool], int] = {}
        for wire in wires:
            if rank[wire.head] - rank[wire.tail] == 1:
                continue
            key = wire.tail, wire.right
            at = rank[wire.tail], rank[wire.head]
            first, last = ways.get(key, at)
            ways[key] = min(first, *at), max(last, *at)
            doors[wire] = taken.get((wire.head, wire.right), 0)
            taken[wire.head, wire.right] = doors[wire] + 1
        found: dict[tuple[str, bool], int] = {}
        taken_ranks: dict[bool, list[int]] = {False: [], True: []}  # of each lane, one bit a rank
        for key, (first, last) in sorted(ways.items(), key=lambda w: (w[1][1] - w[1][0], w[1])):
            lanes, bits = taken_ranks[key[1]], ((1 << (last - first + 1)) - 1) << first
            lane = next((i for i, mask in enumerate(lanes) if not mask & bits), len(lanes))
            lanes[lane:] = [(lanes[lane] if lane < len(lanes) else 0) | bits, *lanes[lane + 1 :]]
            found[key] = lane
        return cls(rank, found, doors)

    def wide(self, right: bool) -> float:
        """Points that the lanes of a side take."""
        lanes = [lane for (_, side), lane in self.bundles.items() if side == right]
        return MARGIN + PITCH * (max(lanes) + 1) if lanes else 0.0

    def corners(self, wire: Wire, spots: Mapping[str, Area], edges: tuple[float, float]) -> list[Point]:
        """The way of a wire; `edges` are the left and right side of the column."""
        tail, head = spots[wire.tail], spots[wire.head]
        if wire not in self.doors:
            return [(tail.middle, tail.bottom), (head.middle, head.top)]
        lane = MARGIN + PITCH * self.bundles[wire.tail, wire.right]
        up = self.rank[wire.head] < self.rank[wire.tail]
        door = min(_PORT + 6 * self.doors[wire], max(_PORT, head.top - head.bottom - _PORT))
        start, end = tail.bottom + _PORT, head.top - door
        if up:
            start, end = tail.top - _PORT, head.bottom + door
        if wire.right:
            x, out, into = edges[1] + lane, tail.right, head.right
        else:
            x, out, into = edges[0] - lane, tail.left, head.left
        return [(out, start), (x, start), (x, end), (into, end)]
