"""Which ranks share a node: device 0 is the first of the first node, and stages follow one another."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from llmir.base.errors import HardwareError
from llmir.hw import library
from llmir.hw.device import Device
from llmir.hw.link import BOX, Link, Node
from llmir.ir.core.mesh import Mesh
from llmir.ir.core.program import Program

from .rows import needs


def nodes(program: Program, device: Device) -> int | None:
    """How many nodes those are; None where the device is in none."""
    return -(-program.devices // device.node.devices) if device.node else None


def split(device: Device, group: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The ranks of a group in its first node, and how many nodes it meets; one node for a device alone.

    HardwareError unless it meets each of them equally often.
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
def boxed(device: Device, ranks: int) -> tuple[Device, int]:
    """The device as if all ranks were in one box, and as many of them as one holds."""
    most = max(device.node.devices, BOX) if device.node else ranks
    return replace(device, node=None), min(ranks, most)


class Ranks(NamedTuple):
    """All that nodes are asked of a program: its mesh, a copy for each stage, and who meets whom.

    `joins` are mesh axes whose ranks run ops together, `groups` the ranks that send each other something.
    """

    mesh: Mesh
    stages: int
    joins: frozenset[frozenset[str]]
    groups: frozenset[tuple[int, ...]]

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.mesh.devices * self.stages

    def staged(self, stages: int) -> Ranks:
        """Those of so many stages in place of one."""
        size = self.mesh.devices
        sends = {((to - 1) * size, to * size) for to in range(1, stages)}
        return self._replace(stages=stages, groups=self.groups | sends)


@lru_cache(maxsize=1024)
def ranks(program: Program) -> Ranks:
    """Those of a program."""
    graphs = {graph: None for entry in program.entries for graph in program.runs(program[entry])}
    joins = frozenset(frozenset(n.op.joins) for graph in graphs for n in graph.nodes) - {frozenset()}
    each = (row.work for graph in graphs for row in needs(graph, program.mesh).values())
    groups = frozenset(done.group for done in each if done.wire)
    return Ranks(program.mesh, len(program.entries), joins, groups)


def housed(program: Program, device: Device) -> Device:
    """The device in the nodes that it usually has, where groups of ranks are larger than one box.

    As many of each node are taken as all groups take evenly. HardwareError where nothing joins boxes of it.
    """
    return house(ranks(program), device)


@lru_cache(maxsize=256)
def house(of: Ranks, device: Device) -> Device:
    """The same for ranks."""
    ranks = of.devices
    domain = any((link.ranks or 0) >= ranks for link in device.links.values())
    if device.node or ranks <= BOX or domain:
        return device
    usual = library.usual(device)
    network = usual.network or Link(device.memory_Bps)  # any, to see which groups reach over one
    boxes = (replace(usual, devices=count, network=network) for count in range(usual.devices, 0, -1))
    inside = next(box for node in boxes if _even(of, box := replace(device, node=node)))
    if all(split(inside, group)[1] == 1 for group in of.groups):
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


def _even(of: Ranks, device: Device) -> bool:
    """Whether all groups of ranks take the nodes evenly, and alike."""
    try:
        check(of, device)
    except HardwareError:
        return False
    return True


def check(of: Ranks, device: Device) -> None:
    """HardwareError unless all groups of ranks take the nodes evenly, and alike."""
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
        if len({(len(inside), met) for inside, met in (split(device, ring) for ring in rings)}) > 1:
            raise HardwareError(
                f"{_holds(node)}: groups of {len(group)} ranks of {mesh} do not all lie alike over them"
            )


def _holds(node: Node) -> str:
    return f"{node.name} has {node.devices} devices a node"
