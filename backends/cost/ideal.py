"""The roofline: no op is faster than its arithmetic at the peak rate, nor than its bytes at full bandwidth.

Launches cost nothing, rates are the datasheet's and collectives take the fastest way: a lower bound.
What crosses nodes takes no less than what as many ranks of one node send.
"""

from __future__ import annotations

from dataclasses import replace

from llmir.backends.work.limit import Limit
from llmir.backends.work.network import exchange
from llmir.backends.work.nodes import boxed, split
from llmir.backends.work.rows import Row
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.sizes.ragged import to_ports

from .op_time import Model, Roofline
from .registry import cost_model


@cost_model("ideal")
@dataclass(frozen=True, eq=False)
class Ideal(Model):
    """The `ideal` cost model on one device."""

    device: Device

    name = "ideal"

    def price(self, row: Row) -> Roofline:
        """The limits that can decide: those that another one always exceeds are left out."""
        kept: list[Limit] = []
        for limit in limits(self.device, row):
            if not any(limit.below(k) for k in kept):
                kept = [k for k in kept if not k.below(limit)] + [limit]
        return Roofline(tuple(kept))


def limits(device: Device, row: Row) -> tuple[Limit, ...]:
    """What bounds an op: matrix unit, vector unit, memory and network, where it uses them."""
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
        inside, nodes = split(device, done.group)
        ports = to_ports(done.payload, len(inside)) if nodes > 1 else done.payload
        if ports == done.payload:
            found.append(exchange(device, done.pattern, done.payload, done.group))
        else:  # each rank to those of other nodes in its place, which hand on what goes to several
            found.append(exchange(device, done.pattern, ports, done.group[:: len(inside)]))
        if nodes > 1:
            one, ranks = boxed(device, done.ranks)
            near = exchange(one, done.pattern, done.payload, tuple(range(ranks)))
            found.append(replace(near, what=f"{near.what}, as in one node"))
    found.append(Limit("memory", row.read + row.write, device.memory_Bps, "bytes", "memory_GBps"))
    return tuple(found)
