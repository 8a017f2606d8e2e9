"""What reads and writes rows once: norms, activations, rope, sums, narrowing, copies.

Many rows move at the bandwidth of memory or L2. Few rows leave multiprocessors idle: where a kernel gives
each row to one of them, one row takes as long as a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmir.dim import Number
from llmir.hw import Device

from .base import Kernel, Shape, missed, parameter


@dataclass(frozen=True)
class StreamShape(Shape):
    """`moved` bytes read and written in all, in so many `rows`; `shared` of them by all rows alike."""

    rows: Number
    moved: Number
    shared: Number = 0

    def roofline(self, device: Device) -> Number:
        """All bytes once through the memory."""
        return self.moved / device.memory_Bps


@dataclass(frozen=True)
class Stream(Kernel):
    """An elementwise op or a norm on a GPU: as fast as memory or L2 allow, and some time a call and a row."""

    bandwidth: float = parameter(0.7, 0.01, 1, "", "share of the memory bandwidth that is reached")
    speedup: float = parameter(1.5, 1, 6, "", "how much faster what stays in the L2 is")
    resident: float = parameter(0.4, 0.05, 1.5, "", "share of the L2 that keeps operands until the next use")
    row_ns: float = parameter(0.3, 0.001, 30, "ns", "a row, however short")
    spread: float = parameter(10, 0.5, 200, "", "multiprocessors that share a row")
    launch_us: float = parameter(3, 0.1, 100, "µs", "of a call that has nothing to do")

    def seconds(self, device: Device, shape: StreamShape) -> Number:
        """Time of one call, as the roofline at least."""
        missing = missed(np.maximum(shape.moved, 1), self.resident * (device.l2_bytes or 0))
        slowness = (missing + (1 - missing) / self.speedup) / (self.bandwidth * device.memory_Bps)
        many = device.multiprocessors or device.cores or 1
        fewest = many / self.spread  # rows that keep all of them busy
        own = (shape.moved - shape.shared) * np.maximum(1, fewest / shape.rows)
        memory = slowness * (own + shape.shared)
        time = self.launch_us * 1e-6 + np.maximum(memory, shape.rows * self.row_ns * 1e-9)
        return np.maximum(time, shape.roofline(device))
