"""The roofline, with datasheet rates (`ideal`) or with shares of them (`efficiency`).

`IdealModel`: no op is faster than its arithmetic at the peak rate or its bytes at full bandwidth. Launches
cost nothing and collectives take the fastest route, so the time is a lower bound. A collective across nodes
takes at least as long as a collective of equally many ranks in one node. `limits(row)` lists the bounds of an
op.

`EfficiencyModel` scales the rates of compute, memory and links and adds seconds per launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from llmir.backends.work.network import network_limit, one_node, split_group
from llmir.backends.work.rows import BOUNDS, EFFICIENCY, Basis, Limit, Row
from llmir.base.arguments import number
from llmir.base.array_namespace import Number
from llmir.base.dataclass import dataclass
from llmir.base.errors import InputError
from llmir.base.names import suggest
from llmir.base.values import Figures
from llmir.hw.device import Device
from llmir.hw.link import Link
from llmir.ir.sizes.binding import Binding
from llmir.ir.sizes.ragged import to_ports

from .op_time import DeviceCostModel, Roofline
from .registry import cost_model

# Datasheet rates


@cost_model("ideal")
@dataclass(frozen=True, eq=False)
class IdealModel(DeviceCostModel):
    """The `ideal` cost model on one device."""

    device: Device

    name = "ideal"

    def price(self, row: Row) -> Roofline:
        """The limits that may decide; limits that are always below another one are omitted."""
        kept: list[Limit] = []
        for limit in limits(self.device, row):
            if not any(limit.below(k) for k in kept):
                kept = [k for k in kept if not k.below(limit)] + [limit]
        return Roofline(tuple(kept))


def limits(device: Device, row: Row) -> tuple[Limit, ...]:
    """The limits of an op: matrix unit, vector unit, memory and network, if it uses them."""
    done, name = row.work, row.work.dtype.name
    found = []
    if done.matrix:
        rate, unit = device.matrix_peak(name)
        group = "matrix_tflops" if unit in device.matrix_flops else "vector_tflops"
        found.append(Limit("compute", done.matrix, rate, f"{unit} matrix FLOPs", f"{group}.{unit}"))
    if done.vector:
        rate, unit = device.vector_peak(name)
        constant = f"vector_tflops.{unit}"
        found.append(Limit("compute", done.vector, rate, f"{unit} vector FLOPs", constant))
    if done.wire:
        inside, nodes = split_group(device, done.group)
        ports = to_ports(done.payload, len(inside)) if nodes > 1 else done.payload
        if ports == done.payload:
            found.append(network_limit(device, done.pattern, done.payload, done.group))
        else:  # each rank sends to the ranks with its index on other nodes; they forward shared data
            found.append(network_limit(device, done.pattern, ports, done.group[:: len(inside)]))
        if nodes > 1:
            one, ranks = one_node(device, done.ranks)
            near = network_limit(one, done.pattern, done.payload, tuple(range(ranks)))
            found.append(replace(near, what=f"{near.what}, as in one node"))
    found.append(Limit("memory", row.read + row.write, device.memory_Bps, "bytes", "memory_GBps"))
    return tuple(found)


# Rates that the user states

UNITS = ("compute", "memory")
LARGEST_LAUNCH = 1.0  # a launch above this number of seconds is taken as a mistake


@dataclass(frozen=True)
class DeratedRoofline(Roofline):
    """The largest of the limits, each at the share of its rate that is `reached`, plus `launch_s` per op."""

    basis: Basis = EFFICIENCY
    reached: tuple[Limit, ...] = ()
    launch_s: float = 0.0

    def times(self, at: Binding) -> list[Number]:
        """Seconds that each limit gives at its share."""
        return [limit.time(at) for limit in self.reached]

    def time(self, at: Binding) -> Number:
        """The largest of the limits, plus the launch."""
        return super().time(at) + self.launch_s

    def due(self, at: Binding, hidden: Number = 0.0) -> tuple[Number, Number]:
        """Seconds and their bound; the bound is overhead if the launch takes at least half of them."""
        busy, bound = super().due(at)
        time = busy + self.launch_s
        return time, at.xp.where(2 * self.launch_s >= time, BOUNDS.index("overhead"), bound)


@dataclass(frozen=True, eq=False)
class EfficiencyModel(Figures, DeviceCostModel):
    """The `efficiency` cost model: shares of the rates of compute, memory and links, and seconds a launch.

    Links have the device's names for them, and `network` is between nodes.
    """

    device: Device
    shares: Mapping[str, float]

    name = "efficiency"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = (*UNITS, *self.device.links, "network")
        for key, value in self.shares.items():
            if key not in (*known, "launch"):
                near = suggest(key, (*known, "launch"))
                near = near or f"; expected {', '.join(known)}, or launch in seconds"
                raise InputError(f"efficiency: there is no {key!r}{near}")
            most = LARGEST_LAUNCH if key == "launch" else 1
            number(f"efficiency: {key}", value, 0, most, above=key != "launch")

    @property
    def of_links(self) -> tuple[str, ...]:
        """The links of the device for which a share is given."""
        return tuple(name for name in self.shares if name not in (*UNITS, "launch"))

    def price(self, row: Row) -> DeratedRoofline:
        """The limits with the shares that their rates reach."""
        bounds = limits(self.device, row)
        reached = (
            replace(x, rate=x.rate * self.shares.get(x.bound, 1)) if x.bound in UNITS else x
            for x in limits(derate(self.device, self.shares), row)
        )
        return DeratedRoofline(bounds, EFFICIENCY, tuple(reached), float(self.shares.get("launch", 0)))


@lru_cache(maxsize=256)
def derate(device: Device, shares: Mapping[str, float]) -> Device:
    """The device with links at these shares of their rates."""

    def reached(name: str, link: Link) -> Link:
        return replace(link, Bps=link.Bps * shares.get(name, 1))

    links = {name: reached(name, link) for name, link in device.links.items()}
    node = device.node
    if node and node.network:
        node = replace(node, network=reached("network", node.network))
    return replace(device, links=links, node=node)
