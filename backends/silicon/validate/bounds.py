"""The lower bound of a measured call, and the rules that explain why a measurement can be faster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llmir.backends.cost.roofline import limits
from llmir.backends.silicon.rows import Array
from llmir.backends.silicon.tables.table import TablePoints
from llmir.backends.work.rows import rows
from llmir.hw.device import Device

RESIDENT = "operands fit in L2"
PARTLY = "an L2's worth of the operands was not read from memory"
MEMORY = "beats the memory bandwidth, or reads less than is counted"
COMPUTE = "beats the peak rate"
NETWORK = "beats the link"
MODEL = "faster than the roofline of what the table says ran"
# Rows under these rules are no evidence against `ideal`: the call did less than the table states, or found
# data in a cache.
EXCLUDED = (RESIDENT, PARTLY, MEMORY)


class LowerBound(NamedTuple):
    """A lower bound in seconds, with the limits that determine it and the bytes that must move."""

    seconds: Array
    memory: Array
    compute: Array
    network: Array
    moved: Array


def lower_bound(points: TablePoints, device: Device) -> LowerBound:
    """The roofline of all timed ops together, as if they were one kernel.

    Intermediate results cause no memory traffic: the kernel reads its inputs and weights and writes its
    outputs. The units of the device, such as matrix and vector units, work at the same time.
    """
    at, graph = points.at, points.program.graphs["main"]
    timed = [row for row in rows(points.program) if row.name not in points.untimed]
    inside = {row.name for row in timed}
    used = {v.node for n in graph.nodes if n.name in inside for v in n.operands}
    zero = np.zeros(len(points.rows))
    moved, units = zero, {"compute": {"": zero}, "network": {"": zero}}
    for row in timed:
        outside = (v.node not in inside for v in row.node.operands)
        read = sum(at(n) for (_, n), far in zip(row.reads, outside, strict=True) if far)
        moved = moved + read + (at(row.write) if row.name not in used else 0)
        for limit in limits(device, row):
            if of := units.get(limit.bound):
                of[limit.constant] = of.get(limit.constant, zero) + limit.time(at)
    compute, network = (np.max(list(of.values()), axis=0) for of in units.values())
    memory = moved / device.memory_Bps
    return LowerBound(np.max([memory, compute, network], axis=0), memory, compute, network, moved)


def bound_rules(device: Device, measured: Array, least: LowerBound) -> list[str]:
    """The rule that explains each row below a limit; empty if the measurement is above all limits.

    A benchmark that repeats one call finds its operands in the L2 cache if they fit. If operands are larger,
    a part as large as the L2 cache may remain from the previous call. Rows that are even faster exceed the
    bandwidth in the datasheet.
    """
    l2 = device.l2_bytes or 0
    found = np.full(len(measured), "", dtype=object)
    over = least.memory > measured
    found[over] = MEMORY
    found[over & ((least.moved - l2) / device.memory_Bps <= measured)] = PARTLY
    found[over & (least.moved <= l2)] = RESIDENT
    found[least.compute > measured] = COMPUTE
    found[least.network > measured] = NETWORK
    return list(found)
