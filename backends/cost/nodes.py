"""Which ranks share a node: device 0 is the first of the first node, and stages follow one another."""

from __future__ import annotations

from typing import Any

from llmir.errors import HardwareError
from llmir.graph import Program
from llmir.hw import Device


def devices(program: Program) -> int:
    """How many devices the program runs on: the mesh, once for each stage."""
    return program.mesh.devices * len(program.entries)


def nodes(program: Program, device: Device) -> int | None:
    """How many nodes those are; None where the device is in none."""
    return -(-devices(program) // device.node.devices) if device.node else None


def hardware(program: Program, device: Device) -> dict[str, Any]:
    """What a JSON report says of the devices."""
    node = device.node
    return {
        "name": device.name,
        "devices": devices(program),
        "cluster": node.name if node else None,
        "nodes": nodes(program, device),
    }


def split(device: Device, group: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The ranks of a group in its first node, and how many nodes it meets; one node for a device alone."""
    if device.node is None:
        return group, 1
    met: dict[int, list[int]] = {}
    for rank in sorted(group):
        met.setdefault(rank // device.node.devices, []).append(rank)
    first, *others = met.values()
    if any(len(ranks) != len(first) for ranks in others):
        counts = ", ".join(str(len(ranks)) for ranks in met.values())
        where = f"{device.node.name} has {device.node.devices} devices a node"
        raise HardwareError(f"{where}: a group of {len(group)} ranks lies over them unevenly, as {counts}")
    return tuple(first), len(met)


def check(program: Program, device: Device) -> None:
    """HardwareError unless each group of ranks meets each of its nodes equally often."""
    node, mesh, total = device.node, program.mesh, devices(program)
    if node is None or total <= node.devices:
        return
    where, size = f"{node.name} has {node.devices} devices a node", node.devices
    if node.network is None:
        raise HardwareError(f"{where} and no network between nodes; {total} do not fit")
    ranks = mesh.devices
    if size % ranks == 0:
        return
    if ranks % size:
        fit = ", ".join(str(n) for n in range(1, size) if size % n == 0)
        raise HardwareError(f"{where}, which {ranks} ranks do not fill; {fit} and multiples of {size} do")
    # Ranks that share a node must be those of the innermost axes, or else some rings would cross it.
    inner, sizes = 1, [n for _, n in mesh.axes]
    while inner < size:
        inner *= sizes.pop()
    if inner != size:
        raise HardwareError(f"{where}, of which {mesh} takes {inner} innermost; {size} must be a product of them")
