"""Collective kernels: the engine's fastest protocol within a node, and the network between nodes.

Within a node: a protocol takes a latency, part of which grows with the ranks, and then sends at a share of
the link's bandwidth. Small payloads go to all ranks at once with flags beside the data, larger ones in two
shots, the largest through NCCL's ring or through switches that reduce (NVLS). An eager call ends no earlier
than the CPU has issued it.

Between nodes: hop after hop, each rank through its own port, by NCCL's protocols LL (a flag beside each
word) and Simple (chunks). Constants that are not fitted are those of NCCL's src/graph/tuning.cc: 14 µs per
hop of Simple, 2.7 µs of LL (the network latency of the datasheet), and half of the port's rate for LL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from llmir.backends.work.network import ALGORITHMS, SEND, network_of, split_group
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.hw.link import Link
from llmir.ir.sizes.ragged import to_ports

from .base import Call, Kernel, Shape, families, kernel_call, parameter

# Within a node

# How far off a sum that is normed in its kernel may be: no row is of one, so that what it takes beside the
# sum is anything from nothing to a norm's own time. That is 27% of both in the mean of 135 points (Llama-3.1
# and Qwen3 on A100, H100, B200, tp 2 to 8, 1 to 8,192 tokens), and half of it is how far off the lower end
# is.
NORMED = 0.13


@dataclass(frozen=True)
class CollectiveShape(Shape):
    """`payload` bytes as the IR counts them, among `ranks`; `adds` where switches can sum its type.

    `beside` bytes are read and written by the same kernel, which norms the sum.
    """

    words = frozenset({"ranks", "adds"})

    payload: Number
    ranks: Number
    adds: Number = True
    beside: Number = 0

    def of_link(self, device: Device, value: Callable[[Link], Number]) -> Number:
        """What `value` says of the link that joins the ranks; it may be another for more of them."""
        if not np.ndim(self.ranks):
            return value(device.link(int(self.ranks))[1])
        found = {n: value(device.link(int(n))[1]) for n in np.unique(self.ranks)}
        return np.vectorize(found.__getitem__)(self.ranks)

    def bandwidth(self, device: Device) -> Number:
        """Bytes a second that a rank sends."""
        return self.of_link(device, lambda link: link.Bps)

    @property
    def pieces(self) -> Number:
        """(n−1)/n of the payload: what each rank sends to scatter it, or to gather it."""
        return self.payload * (self.ranks - 1) / self.ranks


@families("all_reduce", "all_reduce_eager")
@dataclass(frozen=True)
class AllReduceKernel(Kernel):
    """A sum on all ranks."""

    group: ClassVar[str] = "collectives"

    issue_us: float = parameter(3, 0.1, 100, "µs", "the least time between two calls, by the host")
    small_us: float = parameter(2.5, 0.5, 40, "µs", "of a small payload's protocol")
    rank_us: float = parameter(0.1, 0.001, 4, "µs", "more for each further rank, of either small protocol")
    one_shot: float = parameter(0.4, 0.02, 1, "", "share of the link that one-shot reaches")
    second_us: float = parameter(3, 0.1, 60, "µs", "of the second of two shots")
    two_shot: float = parameter(0.5, 0.02, 1, "", "share of the link that two-shot reaches")
    ring_us: float = parameter(6, 0.5, 80, "µs", "of the ring")
    ring_rank_us: float = parameter(1.3, 0.001, 8, "µs", "more for each further rank of it")
    ring: float = parameter(0.78, 0.05, 1, "", "share of the link that the ring reaches")
    switch_us: float = parameter(15, 1, 80, "µs", "of a sum in the switches")
    switch: float = parameter(0.66, 0.05, 1, "", "share of the link that it reaches")
    shared: float = parameter(
        0.001, 0.0001, 2, "", "power of the ranks, over two, by which the link is slower"
    )

    def seconds(self, device: Device, shape: CollectiveShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call."""
        bandwidth, others = shape.bandwidth(device), shape.ranks - 1
        crowd = (shape.ranks / 2) ** self.shared

        def way(latency_us: Number, sent: Number, share: float) -> Number:
            return latency_us * 1e-6 + sent / (share * bandwidth) * crowd

        small_us = self.small_us + self.rank_us * others
        time = xp.minimum(
            way(small_us, others * shape.payload, self.one_shot),
            way(small_us + self.second_us, 2 * shape.pieces, self.two_shot),
        )
        time = xp.minimum(time, way(self.ring_us + self.ring_rank_us * others, 2 * shape.pieces, self.ring))
        # Switches read each rank's data once and multicast its piece of the sum.
        sums = shape.of_link(device, lambda link: link.reduces) * shape.adds
        sent = shape.payload * (shape.ranks + 1) / shape.ranks
        time = xp.where(sums > 0, xp.minimum(time, way(self.switch_us, sent, self.switch)), time)
        return xp.maximum(time, self.issue_us * 1e-6) + shape.beside / device.memory_Bps


@families("all_gather", "reduce_scatter", "all_to_all", "send")
@dataclass(frozen=True)
class ExchangeKernel(Kernel):
    """A gather, a scatter or an exchange, which all send (n−1)/n of the payload; or a send of half of it."""

    group: ClassVar[str] = "collectives"

    small_us: float = parameter(6, 0.5, 80, "µs", "of a small payload's protocol")
    rank_us: float = parameter(1, 0.001, 8, "µs", "more for each further rank, of either")
    small: float = parameter(0.2, 0.02, 1, "", "share of the link that it reaches")
    large_us: float = parameter(12, 0.5, 160, "µs", "of a large payload's protocol")
    large: float = parameter(0.7, 0.05, 1, "", "share of the link that it reaches")
    shared: float = parameter(
        0.001, 0.0001, 2, "", "power of the ranks, over two, by which the link is slower"
    )

    def seconds(self, device: Device, shape: CollectiveShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call."""
        sent = shape.pieces / shape.bandwidth(device)
        wait_us = self.rank_us * (shape.ranks - 1)
        crowd = (shape.ranks / 2) ** self.shared
        small = (self.small_us + wait_us) * 1e-6 + crowd * sent / self.small
        large = (self.large_us + wait_us) * 1e-6 + crowd * sent / self.large
        return xp.minimum(small, large)


@kernel_call("collective")
def collective(row: Row) -> Call | None:
    """What goes between ranks, by the pattern that it goes in; nothing where nothing does."""
    if not row.work.wire:
        return None
    pattern = row.work.pattern or row.node.op.opcode
    if pattern == "send":
        return Call(("send", "all_to_all"), CollectiveShape(2 * row.work.payload, 2))
    adds = row.shape.dtype.bits >= 16
    return Call((pattern,), CollectiveShape(row.work.payload, row.work.ranks, adds=adds))


def _summed(row: Row, engine: str = "") -> Call:
    """A sum, beside which the residual is read and the norm written, as fast as memory allows."""
    residual, norm = row.reads[1][1], row.writes[1][1]
    shape = CollectiveShape(row.work.payload, row.work.ranks, True, residual + norm)
    return Call(("all_reduce",), shape, doubt=NORMED, engine=engine)


@kernel_call("all_reduce_add_rms_norm", "all_reduce_add_rms_norm_quantize")
def summed_norm(row: Row) -> Call:
    """FlashInfer's (flashinfer/comm/trtllm_ar.py), which vLLM and SGLang call, is TensorRT-LLM's kernel."""
    return _summed(row, "trtllm")


@kernel_call("all_reduce_add_rms_norm", "all_reduce_add_rms_norm_quantize")
def summed_apart(row: Row) -> Call:
    """By the engine's own sum, which is faster where there is much to add."""
    return _summed(row)


# Between nodes


@dataclass(frozen=True)
class HopsShape(Shape):
    """A `payload` of which each of a node's `ranks` sends `share` over the network, in so many `hops`."""

    payload: Number
    ranks: Number
    hops: Number
    share: Number


@families("network", "network_send")
@dataclass(frozen=True)
class NetworkKernel(Kernel):
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


def internode_calls(row: Row, device: Device) -> tuple[Call, ...]:
    """The ways in which nodes can send each other the payload of a collective; none within one node.

    Each rank sends for itself: of an exchange all that is for other nodes, a token that goes to ranks once a
    node; of all else its part of what a ring through all ranks sends where it leaves a node. Sums in one shot
    or two are for the inside of nodes.
    """
    inside, nodes = split_group(device, row.work.group) if row.work.wire else ((), 1)
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
