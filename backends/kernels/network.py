"""What ranks of several nodes send each other: hop after hop, each through a port of its own.

Two protocols, as NCCL has: small payloads go with a flag beside each word (LL), large ones in chunks that are
waited for (Simple). What is not fitted is as in NCCL's src/graph/tuning.cc: 14 µs a hop of Simple, 2.7 of LL,
which is the latency of the network's datasheet, and half of the port's rate for LL.
"""

from __future__ import annotations

from typing import ClassVar

from llmir.backends.work.network import ALGORITHMS, SEND, network_of
from llmir.backends.work.nodes import split
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.sizes.ragged import to_ports

from .base import Kernel, Shape, families, parameter
from .call import Call


@dataclass(frozen=True)
class HopsShape(Shape):
    """A `payload` of which each of a node's `ranks` sends `share` over the network, in so many `hops`."""

    payload: Number
    ranks: Number
    hops: Number
    share: Number


@families("network", "network_send")
@dataclass(frozen=True)
class Network(Kernel):
    """What goes through the port of one rank."""

    group: ClassVar[str] = "collectives"

    separate = True

    small_us: float = parameter(0.1, 0.001, 100, "µs", "a hop, beside the link's latency, of a small payload")
    small: float = parameter(0.5, 0.02, 1, "", "share of the port that a small payload's protocol reaches")
    large_us: float = parameter(11.3, 0.01, 400, "µs", "a hop, beside the link's latency, of a large payload")
    large: float = parameter(1, 0.02, 1, "", "share of the port that a large payload's protocol reaches")
    shared: float = parameter(0.001, 0.0001, 2, "", "power of the ranks of a node by which ports are slower")

    def seconds(self, device: Device, shape: HopsShape, xp: Namespace = ARRAYS) -> Number:
        """Time beside that of what the ranks do in their nodes."""
        link = network_of(device).link
        sent = shape.share * shape.payload / link.Bps * shape.ranks**self.shared
        small = shape.hops * (link.latency_s + self.small_us * 1e-6) + sent / self.small
        large = shape.hops * (link.latency_s + self.large_us * 1e-6) + sent / self.large
        return xp.minimum(small, large)


def across(row: Row, device: Device) -> tuple[Call, ...]:
    """The ways in which nodes can send each other the payload of a collective; none within one node.

    Each rank sends for itself: of an exchange all that is for other nodes, a token that goes to ranks once a
    node; of all else its part of what a ring through all ranks sends where it leaves a node. Sums in one shot
    or two are for the inside of nodes.
    """
    inside, nodes = split(device, row.work.group) if row.work.wire else ((), 1)
    if nodes == 1:
        return ()
    link, pattern = network_of(device).link, row.work.pattern or row.node.op.opcode
    exchanges, ranks = pattern == "all_to_all", len(inside)
    payload = to_ports(row.work.payload, ranks)
    family = ("network_send",) * (pattern == "send") + ("network",)
    found = []
    for a in ALGORITHMS.get(pattern, (SEND,)):
        if a.runs_on(link, nodes) and (exchanges or not a.direct):
            share = a.share(nodes) if exchanges else a.share(ranks * nodes) / ranks
            found.append(Call(family, HopsShape(payload, ranks, a.hops(nodes), float(share))))
    return tuple(found)
