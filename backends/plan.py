"""A program on a device, ready to be priced at any point: rows with their limits, and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from llmir.backends.cost import Ideal, Row, rows
from llmir.backends.cost.ideal import Limit, seconds
from llmir.backends.liveness import Memory, memories
from llmir.backends.timing import Timing
from llmir.dim import Binding, Number, maximum
from llmir.graph import Program
from llmir.hw import Device
from llmir.hw.dtypes import unit_of

# Arrays are evaluated in pieces of about this many elements, so that they stay in a core's cache.
BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class Plan:
    """What is computed once for a program on a device; every figure is then a function of a binding."""

    program: Program
    model: Ideal

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The ops."""
        return rows(self.program)

    @cached_property
    def memories(self) -> tuple[Memory, ...]:
        """What each stage must hold."""
        return memories(self.program)

    @cached_property
    def limits(self) -> tuple[tuple[Limit, ...], ...]:
        """What can bound each row."""
        return tuple(self.model.effective(row) for row in self.rows)

    @cached_property
    def _timed(self) -> dict[tuple[Limit, ...], tuple[int, ...]]:
        # Equal limits are evaluated once: layers of other stages, or unrolled, cost no more than one.
        merged: dict[tuple[Limit, ...], list[int]] = {}
        for row, limits in zip(self.rows, self.limits, strict=True):
            merged.setdefault(limits, [0] * len(self.program.entries))[row.stage] += row.repeat
        return {limits: tuple(repeats) for limits, repeats in merged.items()}

    def timing(self, at: Binding) -> Timing:
        """What each stage takes for a micro-batch."""
        stages: list[Number] = [0.0] * len(self.program.entries)
        for limits, repeats in self._timed.items():
            time = seconds(limits, at)
            for stage, repeat in enumerate(repeats):
                if repeat:
                    stages[stage] = stages[stage] + repeat * time
        return Timing(tuple(stages), self.program.micro_batches)

    def fullest(self, figure: Callable[[Memory], Number], at: Binding) -> Number:
        """`figure` of the stage whose memory is fullest; at each point of a grid it may be another."""
        first, *others = self.memories
        found = figure(first)
        most = first.peak(at) if others else 0
        for memory in others:
            peak, other = memory.peak(at), figure(memory)
            more = peak > most
            found = np.where(more, other, found) if np.ndim(more) else other if more else found
            most = maximum(most, peak)
        return found

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Where the device computes in another type than the program says."""
        device = self.model.device
        found: dict[str, None] = {}
        for row in self.rows:
            if not row.work.matrix:
                continue
            name = unit_of(row.work.dtype.name)
            unit = device.matrix_peak(name)[1]
            if unit != name:
                found[f"{device.name} has no {name} matrix unit; {name} runs at its {unit} rate"] = None
        ranks = max((row.work.ranks for row in self.rows), default=1)
        if ranks > 1:
            name, link = device.link(ranks)
            speed = f"{link.Bps / 1e9:g} GB/s each way for each"
            found[
                f"{ranks} ranks are taken to be joined by {name}, {speed}; no network between nodes yet"
            ] = None
        return tuple(found)


@lru_cache(maxsize=256)
def plan(program: Program, device: Device) -> Plan:
    """The plan of `program` on `device`."""
    return Plan(program, Ideal(device))


def sweep(figure: Callable[[Binding], Number], at: Binding) -> Number:
    """`figure(at)`, evaluated block by block when `at` holds large arrays."""
    shape = at.shape
    if not shape:
        return figure(at)
    size = int(np.prod(shape))
    if size <= 2 * BLOCK:
        return np.broadcast_to(figure(at), shape).astype(np.float64)
    step = max(1, BLOCK * shape[0] // size)
    result = np.empty(shape)
    for start in range(0, shape[0], step):
        rows = slice(start, start + step)
        result[rows] = figure(at.block(rows))
    return result
