"""The roofline: no op is faster than its arithmetic at the peak rate, nor than its bytes at full bandwidth.

Launches cost nothing and rates are the datasheet's, so this is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from llmir.dim import Binding, Dim, Number, Size, maximum
from llmir.hw import Device

from .rows import Row

BOUNDS = ("compute", "memory", "network", "launch")


@dataclass(frozen=True)
class Limit:
    """One reason why an op takes time: `amount` of something at `rate` per second.

    `constant` is the device's key for the rate, by which `Device.source` says where it comes from.
    """

    bound: str
    amount: Size
    rate: float
    what: str
    constant: str

    @cached_property
    def seconds(self) -> dict[tuple[object, ...], float]:
        """Seconds for each monomial of the amount."""
        terms = self.amount.terms if isinstance(self.amount, Dim) else (((), self.amount),)
        return {monomial: coefficient / self.rate for monomial, coefficient in terms}

    def below(self, other: Limit) -> bool:
        """Whether `other` takes at least as long at every point."""
        mine, theirs = self.seconds, other.seconds
        return all(theirs.get(m, 0.0) - mine.get(m, 0.0) >= 0 for m in mine.keys() | theirs.keys())


@dataclass(frozen=True, eq=False)
class Ideal:
    """The `ideal` cost model on one device."""

    device: Device

    name = "ideal"

    def limits(self, row: Row) -> tuple[Limit, ...]:
        """What bounds an op: matrix unit, vector unit, memory and network, where it uses them."""
        device, done, name = self.device, row.work, row.work.dtype.name
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
            name, link = device.link(done.ranks)
            amount = done.switched if link.reduces else done.wire
            how = f"bytes over {name}" + (", which adds up" if amount != done.wire else "")
            found.append(Limit("network", amount, link.Bps, how, f"links.{name}"))
        found.append(Limit("memory", row.read + row.write, device.memory_Bps, "bytes", "memory_GBps"))
        return tuple(found)

    def effective(self, row: Row) -> tuple[Limit, ...]:
        """The limits that can decide: those that another one always exceeds are left out."""
        limits = self.limits(row)
        kept: list[Limit] = []
        for limit in limits:
            if not any(limit.below(k) for k in kept):
                kept = [k for k in kept if not k.below(limit)] + [limit]
        return tuple(kept)


def seconds(limits: tuple[Limit, ...], at: Binding) -> Number:
    """The time of one execution: the largest of its limits."""
    time = at(limits[0].amount) / limits[0].rate
    for limit in limits[1:]:
        time = maximum(time, at(limit.amount) / limit.rate)
    return time
