"""Collective kernels: the engine's fastest protocol inside a node, and the network between nodes.

Inside a node, a protocol has a latency, part of which grows with the number of ranks; it then sends at a
share of the link's bandwidth. Small payloads are sent to all ranks at once with flags in the data, larger
payloads in two shots. The largest payloads use NCCL's ring, or switches that add up values (NVLS). An eager
call takes at least the time that the CPU needs to issue it.

Between nodes, data moves hop by hop. Each rank uses its own port with one of NCCL's protocols: LL (a flag
with each word) or Simple (chunks). Constants without a fit are those of NCCL's src/graph/tuning.cc: 14 µs per
hop of Simple, 2.7 µs of LL (the network latency of the datasheet), and half of the port's rate for LL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import ClassVar

import numpy as np

from llmir.backends.work.network import ALGORITHMS, SEND, network_of, split_group
from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.hw.link import Link
from llmir.ir.sizes.polynomial import maximum, minimum
from llmir.ir.sizes.ragged import to_ports

from .base import Call, Kernel, KernelTransfer, Shape, choice, families, kernel_call, parameter

# Within a node

MOST_RANKS = 8  # largest number of ranks in the measured rows of a node; sharing is not extrapolated beyond
# Error of an all-reduce that includes the norm. No measured row has one, so the added time is between nothing
# and the time of a separate norm. That range is 27% of both times on average over 135 points (Llama-3.1 and
# Qwen3 on A100, H100 and B200, tp 2 to 8, 1 to 8,192 tokens). The estimate is the lower end, so its mean
# error is half of the range.
NORMED = 0.13


@dataclass(frozen=True)
class CollectiveShape(Shape):
    """A collective of `payload` bytes, as the IR counts them, among `ranks` ranks.

    `adds` is true if switches can sum the dtype. The kernel also reads and writes `beside` bytes, for the
    norm of the sum.
    """

    words = frozenset({"ranks", "adds"})

    payload: Number
    ranks: Number
    adds: Number = True
    beside: Number = 0

    def of_link(self, device: Device, value: Callable[[Link], Number]) -> Number:
        """A property of the link that joins the ranks. The link depends on the number of ranks."""
        if not np.ndim(self.ranks):
            return value(device.link(int(self.ranks))[1])
        found = {n: value(device.link(int(n))[1]) for n in np.unique(self.ranks)}
        return np.vectorize(found.__getitem__)(self.ranks)

    def bandwidth(self, device: Device) -> Number:
        """Bandwidth of one rank in bytes per second, in each direction."""
        return self.of_link(device, lambda link: link.Bps)

    @property
    def pieces(self) -> Number:
        """Bytes that each rank sends to scatter or gather the payload: (n − 1)/n of it."""
        return self.payload * (self.ranks - 1) / self.ranks


@families("all_reduce", "all_reduce_eager")
@dataclass(frozen=True)
class AllReduceKernel(Kernel):
    """All-reduce within a node."""

    group: ClassVar[str] = "collectives"

    issue_us: float = parameter(3, 0.1, 100, "µs", "shortest time between two calls, by the CPU")
    small_us: float = parameter(2.5, 0.5, 40, "µs", "time of the protocol for small payloads")
    rank_us: float = parameter(
        0.1, 0.001, 4, "µs", "time added per additional rank, in both protocols for small payloads"
    )
    one_shot: float = parameter(0.4, 0.02, 1, "", "share of the link that one-shot reaches")
    second_us: float = parameter(3, 0.1, 60, "µs", "time of the second of two shots")
    two_shot: float = parameter(0.5, 0.02, 1, "", "share of the link that two-shot reaches")
    ring_us: float = parameter(6, 0.5, 80, "µs", "time of the ring")
    ring_rank_us: float = parameter(1.3, 0.001, 8, "µs", "time of the ring added per additional rank")
    ring: float = parameter(0.78, 0.05, 1, "", "share of the link that the ring reaches")
    switch_us: float = parameter(15, 1, 80, "µs", "time of a sum in the switches")
    switch: float = parameter(0.66, 0.05, 1, "", "share of the link that this protocol reaches")
    shared: float = parameter(0, 0, 2, "", "the link is slower by ranks/2 (at most 4) to this power")

    def seconds(self, device: Device, shape: CollectiveShape, xp: Namespace = ARRAYS) -> Number:
        bandwidth, others = shape.bandwidth(device), shape.ranks - 1
        crowd = (xp.minimum(shape.ranks, MOST_RANKS) / 2) ** self.shared

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
    """All-gather, reduce-scatter and all-to-all send (n − 1)/n of the payload; a send counts as half.

    A rank sends all pieces but its own. The rates are those with two ranks, which send half of the payload.
    With more ranks, the time rises with the larger pieces, less the share `own` that does not depend on them.
    """

    group: ClassVar[str] = "collectives"

    small_us: float = parameter(6, 0.5, 80, "µs", "time of the protocol for small payloads")
    rank_us: float = parameter(1, 0.001, 8, "µs", "time added per additional rank")
    small: float = parameter(0.2, 0.02, 1, "", "share of the link that this protocol reaches")
    large_us: float = parameter(12, 0.5, 160, "µs", "time of the protocol for large payloads")
    large: float = parameter(0.7, 0.05, 1, "", "share of the link that this protocol reaches")
    own: float = parameter(
        0, 0, 1, "", "share of the time that depends on the whole payload, not on the pieces of the others"
    )
    shared: float = parameter(0, 0, 2, "", "the link is slower by ranks/2 (at most 4) to this power")

    def seconds(self, device: Device, shape: CollectiveShape, xp: Namespace = ARRAYS) -> Number:
        moved = shape.pieces + self.own * (shape.payload / 2 - shape.pieces)
        sent = moved / shape.bandwidth(device)
        wait_us = self.rank_us * (shape.ranks - 1)
        crowd = (xp.minimum(shape.ranks, MOST_RANKS) / 2) ** self.shared
        small = (self.small_us + wait_us) * 1e-6 + crowd * sent / self.small
        large = (self.large_us + wait_us) * 1e-6 + crowd * sent / self.large
        return xp.minimum(small, large)

    def transfer_parameters(self, travel: KernelTransfer) -> dict[str, float]:
        """The parameters on another device. A copy matters less if its links are slower than its memory."""
        here, there = (
            reduce(maximum, (link.Bps for link in d.links.values()), 0.0) / d.memory_Bps
            for d in (travel.device, travel.home)
        )
        return super().transfer_parameters(travel) | {"own": self.own * minimum(1.0, here / there)}


@kernel_call("collective")
def collective(row: Row) -> Call | None:
    """The collective of a row by its pattern; None if the row sends nothing."""
    if not row.work.wire:
        return None
    pattern = row.work.pattern or row.node.op.opcode
    if pattern == "send":
        return Call(("send", "all_to_all"), CollectiveShape(2 * row.work.payload, 2))
    adds = row.shape.dtype.bits >= 16
    return Call((pattern,), CollectiveShape(row.work.payload, row.work.ranks, adds=adds))


def _summed(row: Row, engine: str = "") -> Call:
    """An all-reduce that also reads the residual and writes the norm, at the memory bandwidth."""
    residual, norm = row.reads[1][1], row.writes[1][1]
    shape = CollectiveShape(row.work.payload, row.work.ranks, True, residual + norm)
    return Call(("all_reduce",), shape, kernel_error=NORMED, engine=engine)


@kernel_call("all_reduce_add_rms_norm", "all_reduce_add_rms_norm_quantize")
def summed_norm(row: Row) -> Call:
    """TensorRT-LLM's fused kernel, also of vLLM and SGLang by FlashInfer (flashinfer/comm/trtllm_ar.py)."""
    return _summed(row, "trtllm")


@kernel_call("all_reduce_add_rms_norm", "all_reduce_add_rms_norm_quantize")
def summed_apart(row: Row) -> Call:
    """The engine's own all-reduce with a norm, which is faster for large payloads."""
    return _summed(row)


# Between nodes


@dataclass(frozen=True)
class HopsShape(Shape):
    """A collective of `payload` bytes between nodes, in `hops` hops.

    Each of a node's `ranks` sends `share` of the payload over the network.
    """

    payload: Number
    ranks: Number
    hops: Number
    share: Number


@families("network", "network_send")
@dataclass(frozen=True)
class NetworkKernel(Kernel):
    """Traffic through the network port of one rank."""

    group: ClassVar[str] = "collectives"

    separate = True

    small_us: float = parameter(
        0.1, 0.001, 100, "µs", "time per hop of a small payload, in addition to the latency"
    )
    small: float = parameter(0.5, 0.02, 1, "", "share of the port that small payloads reach")
    large_us: float = parameter(
        11.3, 0.01, 400, "µs", "time per hop of a large payload, in addition to the latency"
    )
    large: float = parameter(1, 0.02, 1, "", "share of the port that large payloads reach")
    shared: float = parameter(
        0, 0, 2, "", "ports carry small payloads slower by the ranks of a node to this power"
    )
    ports: float = choice(
        1024, (1, 2, 4, 8, 1024), "", "ports of a node that carry large payloads at once", usual=True
    )

    def seconds(self, device: Device, shape: HopsShape, xp: Namespace = ARRAYS) -> Number:
        """Time in seconds, in addition to the time of the ranks within their nodes."""
        link = network_of(device).link
        sent = shape.share * shape.payload / link.Bps
        small_s, large_s = self.small_us * 1e-6, self.large_us * 1e-6
        small = shape.hops * (link.latency_s + small_s) + sent * shape.ranks**self.shared / self.small
        busy = xp.maximum(1.0, shape.ranks / self.ports)
        return xp.minimum(small, shape.hops * (link.latency_s + large_s) + sent * busy / self.large)


def internode_calls(row: Row, device: Device) -> tuple[Call, ...]:
    """The algorithms by which nodes can run a collective; empty within one node.

    Each rank sends separately, through its own port. In an exchange, it sends all data for other nodes, and a
    token once per node. In other collectives, it sends its part of the data that a ring sends across the
    border of a node. One-shot and two-shot algorithms are only possible inside a node.
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
