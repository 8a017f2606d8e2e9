"""Network time of collectives: nodes, algorithms, and the fastest route for each payload.

Nodes: device 0 is the first device of the first node, and pipeline stages follow one after another
(`RankTopology`, `check_nodes`).

Algorithms: a rank that sends s bytes over h hops takes h · latency + s / bandwidth (Thakur, Rabenseifner and
Gropp 2005, section 3). All links of a rank are busy at the same time, because chunks are pipelined; the
slowest link decides. The time is a lower bound; an unpublished latency counts as 0. `network_limit` is the
entry point; `collective_routes` lists the routes that are fastest for some payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import NamedTuple

from llmir.backends.tape.outline import is_external, typical_value
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.link import BOX, Link, MachineNode
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.polynomial import Size, ceildiv, maximum, minimum

from .rows import Limit, op_rows

# Nodes


def node_count(program: Program, device: Device) -> int | None:
    """The number of nodes; None for a device without nodes."""
    return -(-program.devices // device.node.devices) if device.node else None


def split_group(device: Device, group: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The number of ranks of a group in its first node, and the number of its nodes; a single device counts
    as one node.

    HardwareError unless each node has the same number of ranks of the group.
    """
    if device.node is None:
        return group, 1
    met: dict[int, list[int]] = {}
    for rank in sorted(group):
        met.setdefault(rank // device.node.devices, []).append(rank)
    first, *others = met.values()
    if any(len(ranks) != len(first) for ranks in others):
        counts = " + ".join(str(len(ranks)) for ranks in met.values())
        raise HardwareError(
            f"{_holds(device.node)}: a group of {len(group)} ranks lies unevenly over them, {counts}; "
            "it must fit in one or take as many of each"
        )
    return tuple(first), len(met)


@lru_cache(maxsize=256)
def one_node(device: Device, ranks: int) -> tuple[Device, int]:
    """The device as if all ranks were in one node, and the number of ranks of one node."""
    most = max(device.node.devices, BOX) if device.node else ranks
    return replace(device, node=None), min(ranks, most)


class RankTopology(NamedTuple):
    """The facts of a program on which its placement on nodes depends: its mesh, its stages, and its
    communication.

    `joins` contains the sets of mesh axes whose ranks run ops together, and `groups` the sets of ranks that
    communicate.
    """

    mesh: Mesh
    stages: int
    joins: frozenset[frozenset[str]]
    groups: frozenset[tuple[int, ...]]

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.mesh.devices * self.stages

    def staged(self, stages: int) -> RankTopology:
        """The topology with several stages instead of one."""
        size = self.mesh.devices
        sends = {((to - 1) * size, to * size) for to in range(1, stages)}
        return self._replace(stages=stages, groups=self.groups | sends)


@lru_cache(maxsize=1024)
def rank_topology(program: Program) -> RankTopology:
    """The topology of a program."""
    graphs = {graph: None for entry in program.entries for graph in program.runs(program[entry])}
    joins = frozenset(frozenset(n.op.joins) for graph in graphs for n in graph.nodes) - {frozenset()}
    each = (row.work for graph in graphs for row in op_rows(graph, program.mesh).values())
    groups = frozenset(done.group for done in each if done.wire)
    return RankTopology(program.mesh, len(program.entries), joins, groups)


def in_default_nodes(program: Program, device: Device) -> Device:
    """The device in its default nodes, if groups of ranks are larger than one machine.

    Each node contributes as many devices as all groups can use evenly. HardwareError without a network.
    """
    return default_nodes(rank_topology(program), device)


@lru_cache(maxsize=256)
def default_nodes(of: RankTopology, device: Device) -> Device:
    """The ranks that the same rule gives."""
    ranks = of.devices
    domain = any((link.ranks or 0) >= ranks for link in device.links.values())
    if device.node or ranks <= BOX or domain:
        return device
    usual = library.default_node(device)
    network = usual.network or Link(device.memory_Bps)  # any, to see which groups reach over one
    boxes = (replace(usual, devices=count, network=network) for count in range(usual.devices, 0, -1))
    inside = next(box for node in boxes if _even(of, box := replace(device, node=node)))
    if all(split_group(inside, group)[1] == 1 for group in of.groups):
        return device
    if usual.network is None:
        raise HardwareError(
            f"{ranks} × {device.name}: nothing says what joins more than {BOX}; name a cluster, or a network "
            "such as 25GBps,5us"
        )
    said = {
        key: source for key, source in library.load(usual.name).sources.items() if key.startswith("node.")
    }
    return replace(inside, sources={**device.sources, **said})


def _even(of: RankTopology, device: Device) -> bool:
    """Whether all groups of ranks are distributed over nodes evenly and in the same way."""
    try:
        check_nodes(of, device)
    except HardwareError:
        return False
    return True


def check_nodes(of: RankTopology, device: Device) -> None:
    """Raise HardwareError unless all groups of ranks are distributed over nodes evenly and in the same
    way.
    """
    node, mesh, total = device.node, of.mesh, of.devices
    if node is None or total <= node.devices:
        return
    if node.network is None:
        raise HardwareError(f"{_holds(node)} and no network between nodes; {total} do not fit")
    size, ranks = node.devices, mesh.devices
    if size % ranks and ranks % size:
        fit = ", ".join(str(n) for n in range(1, size) if size % n == 0)
        raise HardwareError(
            f"{_holds(node)}, which {ranks} ranks do not fill; {fit} and multiples of {size} do"
        )
    axes = {name for name, _ in mesh.axes}
    for over in of.joins:
        group = mesh.group(over)
        rings = (tuple(first + rank for rank in group) for first in mesh.group(axes - over))
        if len({(len(inside), met) for inside, met in (split_group(device, ring) for ring in rings)}) > 1:
            raise HardwareError(
                f"{_holds(node)}: groups of {len(group)} ranks of {mesh} are not distributed over "
                "nodes in the same way"
            )


def _holds(node: MachineNode) -> str:
    return f"{node.name} has {node.devices} devices a node"


# Collectives


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """An algorithm of a collective among n ranks: its hops, one after another, and the bytes that a rank
    sends in each.

    `direct` algorithms send to all others at once; `reduces` algorithms require a fabric that adds up values.
    If, after half of the algorithm, each rank has a separate piece (`pieces`), the pieces can be sent to
    other nodes.
    """

    name: str
    hops: Callable[[int], int]
    share: Callable[[int], Fraction]
    direct: bool = False
    reduces: bool = False
    pieces: bool = True

    def runs_on(self, link: Link, ranks: int) -> bool:
        """Whether the algorithm is possible over this link; two ranks always reach each other."""
        return (link.direct or ranks == 2 or not self.direct) and (link.reduces or not self.reduces)


def _others(n: int) -> Fraction:
    return Fraction(n - 1, n)


# A ring passes pieces from rank to rank: n−1 times to add them, and n−1 times to gather the sums (Thakur et
# al. 2005, sections 4.1 and 4.3; Patarasuk & Yuan 2009).
RING = CollectiveAlgorithm("ring", lambda n: n - 1, _others)
RING_SUM = CollectiveAlgorithm("ring", lambda n: 2 * (n - 1), lambda n: 2 * _others(n))
# Half of the payload goes up and down each of two binary trees. A rank is a leaf of one tree and an inner
# node of the other. It sends half of the payload to two parents and to two children (Sanders, Speck & Träff
# 2009; NCCL since 2.4).
TREE = CollectiveAlgorithm("tree", lambda n: 2 * (n - 1).bit_length(), lambda n: Fraction(2), pieces=False)
# Pieces are sent directly to the ranks that need them: step by step (Thakur et al. 2005, "pairwise
# exchange"), or at once.
PAIRWISE = CollectiveAlgorithm("pairwise", lambda n: n - 1, _others)
DIRECT = CollectiveAlgorithm("direct", lambda n: 1, _others, direct=True)
# All data to all ranks, or a piece to each and the sums back, as in the kernels of serving engines (1stage
# and 2stage in vLLM's custom_all_reduce.cuh, ONESHOT and TWOSHOT in TensorRT-LLM).
ONE_SHOT = CollectiveAlgorithm("one-shot", lambda n: 1, lambda n: Fraction(n - 1), direct=True, pieces=False)
TWO_SHOT = CollectiveAlgorithm("two-shot", lambda n: 2, lambda n: 2 * _others(n), direct=True)
# Switches add up their inputs and send the sum to all ranks: each rank sends its payload once (SHARP, Graham
# et al. 2016; NVLS in NCCL since 2.17). One hop to send the data to the sums, and one hop back.
IN_NETWORK = CollectiveAlgorithm("in-network", lambda n: 2, lambda n: Fraction(1), reduces=True)
# One rank sends to another.
SEND = CollectiveAlgorithm("send", lambda n: 1, lambda n: Fraction(1))

ALGORITHMS = {
    "all_reduce": (RING_SUM, TREE, ONE_SHOT, TWO_SHOT, IN_NETWORK),
    "reduce_scatter": (RING, DIRECT),
    "all_gather": (RING, DIRECT),
    "all_to_all": (PAIRWISE, DIRECT),
}


class LinkOption(NamedTuple):
    """An available link: its name, the device's key for it, and its properties."""

    name: str
    constant: str
    link: Link


class LinkShare(NamedTuple):
    """The traffic of a rank over one link: `share` of the payload."""

    span: LinkOption
    share: Fraction

    @property
    def pace(self) -> float:
        """Seconds for each byte of payload."""
        return float(self.share) / self.span.link.Bps

    def bytes(self, payload: Size) -> Size:
        """The bytes themselves, rounded up."""
        return ceildiv(self.share.numerator * payload, self.share.denominator)


@dataclass(frozen=True)
class CollectiveRoute:
    """An algorithm over the available links: its latency in seconds, and its traffic."""

    name: str
    latency_s: float
    legs: tuple[LinkShare, ...]

    @cached_property
    def pace(self) -> float:
        """Seconds for each byte of payload, over the slowest link."""
        return reduce(maximum, (leg.pace for leg in self.legs))

    @property
    def slowest(self) -> LinkShare:
        """The slower one of the two links."""
        return max(self.legs, key=lambda leg: float(typical_value(leg.pace)))

    def time(self, payload: Number) -> Number:
        """Seconds."""
        return self.latency_s + payload * self.pace


@dataclass(frozen=True)
class NetworkLimit(Limit):
    """The time of a payload between ranks on the route that is fastest at its size.

    `amount` is the payload, and `rate` the asymptotic rate for large payloads.
    """

    ways: tuple[CollectiveRoute, ...]

    def fastest(self, at: Binding) -> CollectiveRoute:
        """The fastest route at one point."""
        payload = at(self.amount)
        return min(self.ways, key=lambda way: float(way.time(payload)))

    def time(self, at: Binding) -> Number:
        """Seconds of the fastest route at each point."""
        payload = at(self.amount)
        best = self.ways[0].time(payload)
        for way in self.ways[1:]:
            best = minimum(best, way.time(payload))
        return best

    def below(self, other: Limit) -> bool:
        """False: no other limit is certain to be at least as long, because even an empty payload takes a
        hop.
        """
        return False


def network_limit(device: Device, opcode: str, payload: Size, group: tuple[int, ...]) -> NetworkLimit:
    """The limit of an op by its network traffic; HardwareError if no link connects the group."""
    found = collective_routes(device, opcode, group)
    large = found[-1]
    over = " and ".join(leg.span.name for leg in large.legs)
    constant = large.slowest.span.constant
    return NetworkLimit("network", payload, 1 / large.pace, f"bytes over {over}", constant, found)


@lru_cache(maxsize=1 << 12)
def collective_routes(device: Device, opcode: str, group: tuple[int, ...]) -> tuple[CollectiveRoute, ...]:
    """The routes that are fastest for some payload, from small to large payloads; HardwareError if no link
    connects the group.
    """
    algorithms = ALGORITHMS.get(opcode, (SEND,))
    inside, nodes = split_group(device, group)
    ranks = len(inside)
    if nodes == 1:
        return fastest(_alone(algorithms, _link(device, inside), ranks))
    if ranks == 1:
        return fastest(_alone(algorithms, network_of(device), nodes))
    near, far = _link(device, inside), network_of(device)
    # In an exchange, each piece has only one receiver; otherwise, a rank takes one of the pieces of its node.
    piece = Fraction(1) if opcode == "all_to_all" else Fraction(1, ranks)
    at_once = _to_all(algorithms, near, ranks, far, nodes)
    return fastest([*at_once, *_in_steps(algorithms, near, ranks, far, nodes, piece)])


def fastest(found: Iterable[CollectiveRoute]) -> tuple[CollectiveRoute, ...]:
    """The lowest of the lines latency + pace · payload at each payload, ordered by the payload from which
    each is lowest.

    All lines if paces are symbolic.
    """
    kept: list[CollectiveRoute] = []
    lines = sorted(found, key=lambda w: (w.latency_s, typical_value(w.pace)))
    if any(is_external(way.pace) for way in lines):
        return tuple(sorted(lines, key=lambda w: -typical_value(w.pace)))
    for way in lines:
        if kept and way.pace >= kept[-1].pace:
            continue
        while len(kept) > 1 and crossing(kept[-2], way) <= crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(way)
    return tuple(kept)


def crossing(small: CollectiveRoute, large: CollectiveRoute) -> float:
    """The payload from which `large` is faster."""
    return (large.latency_s - small.latency_s) / (small.pace - large.pace)


def _link(device: Device, ranks: tuple[int, ...]) -> LinkOption:
    name, link = device.link_of(ranks)
    return LinkOption(name, f"links.{name}", link)


def network_of(device: Device) -> LinkOption:
    """The network of its node; HardwareError if there is none."""
    network = device.node.network if device.node else None
    if network is None:
        raise HardwareError(
            f"{device.name} has no network that joins several nodes; a cluster as hw has, such as dgx-h100"
        )
    return LinkOption("network", "node.network", network)


def _alone(algorithms: Iterable[CollectiveAlgorithm], over: LinkOption, n: int) -> Iterator[CollectiveRoute]:
    """Each algorithm that is possible over one link."""
    for a in algorithms:
        if a.runs_on(over.link, n):
            yield CollectiveRoute(a.name, a.hops(n) * over.link.latency_s, (LinkShare(over, a.share(n)),))


def _in_steps(
    algorithms: Iterable[CollectiveAlgorithm],
    near: LinkOption,
    ranks: int,
    far: LinkOption,
    nodes: int,
    piece: Fraction,
) -> Iterator[CollectiveRoute]:
    """First inside each node, and then among the ranks of all nodes that have the same piece."""
    across = list(_alone(algorithms, far, nodes))
    for inner in _alone([a for a in algorithms if a.pieces], near, ranks):
        for outer in across:
            legs = (*inner.legs, *(leg._replace(share=leg.share * piece) for leg in outer.legs))
            name = f"{inner.name} inside, {outer.name} across"
            yield CollectiveRoute(name, inner.latency_s + outer.latency_s, legs)


def _to_all(
    algorithms: Iterable[CollectiveAlgorithm], near: LinkOption, ranks: int, far: LinkOption, nodes: int
) -> Iterator[CollectiveRoute]:
    """Every rank sends to all others at once, wherever they are."""
    n = ranks * nodes
    latency_s = max(near.link.latency_s, far.link.latency_s)
    for a in algorithms:
        if a.direct and a.runs_on(near.link, ranks) and a.runs_on(far.link, n):
            each = a.share(n) / (n - 1)
            legs = (LinkShare(near, each * (ranks - 1)), LinkShare(far, each * (n - ranks)))
            yield CollectiveRoute(f"{a.name} to all", a.hops(n) * latency_s, legs)
