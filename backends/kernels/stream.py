"""Kernels that read and write rows once: norms, activations, rope, sums, static quantization, copies.

One law for all, by bytes, rows and arithmetic: a fused kernel that moves fewer bytes in one launch is never
slower than the kernels that it replaces. Many rows move at the bandwidth of memory or L2. Few rows leave
multiprocessors idle: a kernel that gives each row to one multiprocessor takes the same time for one row as
for one row per multiprocessor. `stream_call` makes the call of an op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .base import Call, Kernel, Shape, cache_miss_share, families, kernel_call, parameter, rows_of


@dataclass(frozen=True)
class StreamShape(Shape):
    """`moved` bytes read and written in all, in so many `rows`; `shared` of them by all rows alike.

    `again` of them are written where they were read, so that the L2 holds them once; `flops` are of vectors.
    A benchmark may use so many operands in `turns`, or flush the L2, which is as if they were many.
    """

    rows: Number
    moved: Number
    shared: Number = 0
    again: Number = 0
    flops: Number = 0
    turns: Number = 1


@dataclass(frozen=True)
class StreamKernel(Kernel):
    """What moves rows on a GPU: as fast as memory or L2 allow, and some time a call and a row."""

    group: ClassVar[str] = "streams"

    bandwidth: float = parameter(0.7, 0.01, 1, "", "share of the memory bandwidth that is reached")
    speedup: float = parameter(1.5, 1, 6, "", "how much faster what stays in the L2 is")
    resident: float = parameter(0.4, 0.05, 1.5, "", "share of the L2 that keeps operands until the next use")
    row_ns: float = parameter(0.3, 0.001, 30, "ns", "a row, however short")
    spread: float = parameter(10, 0.5, 200, "", "multiprocessors that share a row")
    launch_us: float = parameter(3, 0.1, 300, "µs", "of an empty call")

    def seconds(self, device: Device, shape: StreamShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call."""
        busy = xp.maximum(self.busy(device, shape, xp), shape.rows * self.row_ns * 1e-9)
        return self.launch_us * 1e-6 + busy

    def busy(self, device: Device, shape: StreamShape, xp: Namespace) -> Number:
        """Seconds in which all bytes move, however many rows there are."""
        held = xp.maximum(shape.turns * shape.moved - shape.again, 1)
        missing = cache_miss_share(held, self.resident * (device.l2_bytes or 0))
        slowness = (missing + (1 - missing) / self.speedup) / (self.bandwidth * device.memory_Bps)
        return slowness * ((shape.moved - shape.shared) * self.idle(device, shape.rows, xp) + shape.shared)

    def idle(self, device: Device, rows: Number, xp: Namespace) -> Number:
        """How much longer the rows take than if they kept all multiprocessors busy."""
        many = device.multiprocessors or device.cores or 1
        return xp.maximum(1, many / self.spread / xp.maximum(rows, 1))


@families("stream")
@dataclass(frozen=True)
class ElementwiseKernel(StreamKernel):
    """An elementwise op or a norm: what moves rows, and computes on the way."""

    bandwidth: float = parameter(0.8, 0.01, 1, "", "share of the memory bandwidth that is reached")
    launch_us: float = parameter(2, 0.1, 300, "µs", "of an empty call")
    vector: float = parameter(
        0.3, 0.01, 3, "", "share of the fp32 peak that arithmetic reaches, by its count"
    )

    def busy(self, device: Device, shape: StreamShape, xp: Namespace) -> Number:
        """Seconds in which bytes move, and of arithmetic that no traffic hides."""
        sums = shape.flops / (self.vector * device.vector_peak("fp32")[0])
        return super().busy(device, shape, xp) + sums * self.idle(device, shape.rows, xp)


FAMILIES = ("stream",)
# Most rows that it is fitted to narrow by a known scale: engines' fits are 4 to 7% off those, 5 in the mean.
# Norms and rope of today, 113 rows of `llmir validate elementwise_recent.csv`, are 14% off: by the difference
# more.
OTHERS = 0.09


def stream_call(row: Row, rows: Number) -> StreamShape:
    """All that an op moves and computes, in so many rows; of weights once for all of them."""
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    again = sum((row.reads[operand][1] for operand in row.node.op.aliases.values()), start=0)
    return StreamShape(rows, row.read + row.write, shared, again, row.work.vector, row.turns or 1)


@kernel_call("norm", "elementwise", "moe", "gather")
def stream(row: Row) -> Call:
    """Rows as the result has them."""
    return Call(FAMILIES, stream_call(row, rows_of(row.shape)), doubt=OTHERS)


@kernel_call("rope", "rope_append", "norm_rope_append_index")
def rope(row: Row) -> Call:
    """All heads of a token are a row."""
    batch, tokens, *_ = row.shape.shape
    return Call(FAMILIES, stream_call(row, batch * tokens), doubt=OTHERS)


# FLOPs that take as long as the offset of an element does, which PyTorch's `elementwise_kernel` computes
# for tensors that are no plain rows (TensorIterator's OffsetCalculator); `torch.cat` computes two. In a
# profile of eager Qwen1.5 on H100 they take 12 to 15 µs for 9.2 million elements (docs/dev/runs.md).
OFFSET_FLOPS = 24


@kernel_call("scale_by_cosine", "scale_by_sine", "negate_half", "join_half", "concat")
def strided(row: Row) -> Call:
    """All heads of a token are a row; each element has an offset, of a copy one in each tensor."""
    batch, tokens, *_ = row.shape.shape
    shape = stream_call(row, batch * tokens)
    offsets = row.shape.elements * (1 + (len(row.operands) > 1))
    return Call(FAMILIES, replace(shape, flops=shape.flops + OFFSET_FLOPS * offsets), doubt=OTHERS)


@kernel_call("add")
def add(row: Row) -> Call:
    """All heads of a token are a row."""
    sizes = row.shape.shape
    rows = sizes[0] * sizes[1] if len(sizes) > 3 else rows_of(row.shape)
    return Call(FAMILIES, stream_call(row, rows), doubt=OTHERS)


@kernel_call("row_mean", "compress_rows")
def read_rows(row: Row) -> Call:
    """All rows that it reads: it writes one number of each, or one row of several."""
    return Call(FAMILIES, stream_call(row, rows_of(row.operands[0])), doubt=OTHERS)


@kernel_call("append")
def append(row: Row) -> Call:
    """Of the new rows alone; the result is the whole cache."""
    return Call(FAMILIES, stream_call(row, rows_of(row.operands[1])), doubt=OTHERS)


@kernel_call("linear", block="streams")
def weights_of_streams(row: Row) -> Call:
    """A few numbers of a token: engines have kernels of their own, as fast as they read its streams."""
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    return Call(FAMILIES, StreamShape(rows_of(row.shape), row.read + row.write, shared), doubt=OTHERS)
