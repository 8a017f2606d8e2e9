"""Links between the devices of a node, and networks between nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from llmir.base.dataclass import dataclass

# The typical largest number of devices per machine: DGX, HGX and OAM boards, and servers of PCIe cards.
BOX = 8


@dataclass(frozen=True)
class Link:
    """A connection from one rank to others: bytes/s that it sends (while it receives as many), and seconds
    per hop.

    `latency_s` is 0 if no latency is published. `ranks` is the largest number of ranks that a bridge or
    switch domain connects. It is None if the platform decides, and 1 for a link to the CPU only. `direct`
    means that a rank reaches all others at once, through switches or over a link to each. `reduces` means
    that the fabric itself adds values. If a rank has a separate link to each of `peers` others, `Bps` is the
    sum of these links. `host_Bps` is the measured rate of copies of pinned host memory.
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
        """The rate, or the typical rate if the rate is a symbol."""
        found: float = getattr(self.Bps, "usual", self.Bps)
        return found

    def among(self, ranks: int) -> Link:
        """This link for a group of ranks. In a mesh, the group uses only the links between its ranks."""
        if self.peers is None or not 1 < ranks <= self.peers:
            return self
        return replace(self, Bps=self.Bps * (ranks - 1) / self.peers, peers=ranks - 1)

    def joins(self, group: Collection[int]) -> bool:
        """Whether the link reaches all ranks of `group`; a bridge connects only neighbors, counted from 0."""
        return self.ranks is None or len({rank // self.ranks for rank in group}) == 1


@dataclass(frozen=True)
class MachineNode:
    """The machine around a device: the number of devices, and the network to other machines.

    It is `assumed` if only a device was named and more ranks are used than a machine has.
    """

    name: str
    devices: int
    network: Link | None = None
    assumed: bool = False
