"""Links between the devices of a node, and networks between nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from llmir.base.dataclass import dataclass

# The most devices that one box usually holds: DGX, HGX and OAM boards, and servers of PCIe cards.
BOX = 8


@dataclass(frozen=True)
class Link:
    """A way from one rank to others: bytes/s that the rank can send (and, at once, receive), seconds a hop.

    `latency_s` is 0 where nothing is published; `ranks` is the most ranks that a bridge or a domain of
    switches joins, None where the platform decides; 1 of a link to the host alone. `direct` says that a
    rank reaches all others at once, through switches or over a link to each, and `reduces` that the fabric
    itself adds up what ranks send. Where a rank has a link of its own to each of so many `peers`, `Bps` is
    the sum of these links. `host_Bps` is what copies of the host's pinned memory reach, as measured.
    """

    Bps: float
    latency_s: float = 0.0
    ranks: int | None = None
    direct: bool = False
    reduces: bool = False
    host_Bps: float | None = None  # noqa: N815 (B is bytes)
    peers: int | None = None

    @property
    def usual_Bps(self) -> float:  # noqa: N802 (B is bytes)
        """The same of a link whose rate is told later: what it usually is."""
        found: float = getattr(self.Bps, "usual", self.Bps)
        return found

    def among(self, ranks: int) -> Link:
        """The same for so many ranks, which use the links to each other alone."""
        if self.peers is None or not 1 < ranks <= self.peers:
            return self
        return replace(self, Bps=self.Bps * (ranks - 1) / self.peers, peers=ranks - 1)

    def joins(self, group: Collection[int]) -> bool:
        """Whether all ranks of `group` are at it: a bridge is between neighbours, counted from 0."""
        return self.ranks is None or len({rank // self.ranks for rank in group}) == 1


@dataclass(frozen=True)
class MachineNode:
    """The box that a device is in with others: how many there are, and what joins each to other boxes.

    It is `assumed` where a device alone was named, and more of them than a box holds.
    """

    name: str
    devices: int
    network: Link | None = None
    assumed: bool = False
