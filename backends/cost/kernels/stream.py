"""What reads and writes rows once: norms, activations, rope, sums, narrowing, copies.

Many rows move at the bandwidth of memory or L2. Few rows leave multiprocessors idle: where a kernel gives
each row to one of them, one row takes as long as a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llmir.backends.cost.rows import Row
from llmir.dim import Number
from llmir.hw import Device

from .base import Kernel, Shape, families, missed, parameter
from .call import Call, prices, rows_of


@dataclass(frozen=True)
class StreamShape(Shape):
    """`moved` bytes read and written in all, in so many `rows`; `shared` of them by all rows alike."""

    rows: Number
    moved: Number
    shared: Number = 0


@families("rms_norm", "layer_norm", "softmax", "add", "activation", "rope")
@dataclass(frozen=True)
class Stream(Kernel):
    """An elementwise op or a norm on a GPU: as fast as memory or L2 allow, and some time a call and a row."""

    group: ClassVar[str] = "streams"

    bandwidth: float = parameter(0.7, 0.01, 1, "", "share of the memory bandwidth that is reached")
    speedup: float = parameter(1.5, 1, 6, "", "how much faster what stays in the L2 is")
    resident: float = parameter(0.4, 0.05, 1.5, "", "share of the L2 that keeps operands until the next use")
    row_ns: float = parameter(0.3, 0.001, 30, "ns", "a row, however short")
    spread: float = parameter(10, 0.5, 200, "", "multiprocessors that share a row")
    launch_us: float = parameter(3, 0.1, 300, "µs", "of an empty call")

    def seconds(self, device: Device, shape: StreamShape) -> Number:
        """Time of one call."""
        missing = missed(np.maximum(shape.moved, 1), self.resident * (device.l2_bytes or 0))
        slowness = (missing + (1 - missing) / self.speedup) / (self.bandwidth * device.memory_Bps)
        many = device.multiprocessors or device.cores or 1
        fewest = many / self.spread  # rows that keep all of them busy
        own = (shape.moved - shape.shared) * np.maximum(1, fewest / np.maximum(shape.rows, 1))
        memory = slowness * (own + shape.shared)
        return self.launch_us * 1e-6 + np.maximum(memory, shape.rows * self.row_ns * 1e-9)


# The family of an op; of others, by kind, that of the nearest.
FAMILIES = {
    "softmax": "softmax",
    "dequantize": "quantize_static",
    "layer_norm": "layer_norm",
}
BY_KIND = {"norm": "rms_norm", "elementwise": "add", "moe": "add", "gather": "add"}


@prices(*FAMILIES, *BY_KIND)
def stream(row: Row) -> Call:
    """All bytes that the op moves, of weights once for all rows."""
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    shape = StreamShape(rows_of(row.shape), row.read + row.write, shared)
    op = row.node.op
    family = FAMILIES.get(op.opcode) or ("activation" if op.activates else BY_KIND[row.kind])
    return Call(tuple(dict.fromkeys((family, "add", "rms_norm"))), shape)


@prices("rope", "rope_append")
def rope(row: Row) -> Call:
    """All heads of a token are a row."""
    batch, tokens, *_ = row.shape.shape
    return Call(("rope", "add", "rms_norm"), StreamShape(batch * tokens, row.read + row.write))


@prices("append")
def append(row: Row) -> Call:
    """Of the new rows alone; the result is the whole cache."""
    return Call(("add", "rms_norm"), StreamShape(rows_of(row.operands[1]), row.read + row.write))


@prices("linear", block="streams")
def weights_of_streams(row: Row) -> Call:
    """A few numbers of a token: engines have kernels of their own, as fast as they read its streams."""
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    return Call(("rms_norm", "add"), StreamShape(rows_of(row.shape), row.read + row.write, shared))
