"""Kernels that read and write rows once: norms, activations, rope, sums, static quantization, copies.

One law estimates all of them from bytes, rows and arithmetic. So a fused kernel that moves fewer bytes in one
launch is never slower than the kernels that it replaces. Many rows move at the bandwidth of memory or L2.
With few rows, multiprocessors are idle: a kernel that gives each row to one multiprocessor takes as long for
one row as for one row per multiprocessor. `stream_call` makes the call of an op.
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
    """`moved`: Bytes that are read and written in `rows` rows.

    - `shared`: Bytes that all rows share, such as weights.
    - `again`: Bytes that are written to the place from which they were read, so the L2 stores them once.
    - `flops`: Vector FLOPs.
    - `turns`: The number of operands that a benchmark uses in rotation. A flush of the L2 has the same effect
      as many operands.
    """

    rows: Number
    moved: Number
    shared: Number = 0
    again: Number = 0
    flops: Number = 0
    turns: Number = 1


@dataclass(frozen=True)
class StreamKernel(Kernel):
    """A kernel that moves rows on a GPU, at the rate of memory or L2, with a time per call and per row."""

    group: ClassVar[str] = "streams"

    bandwidth: float = parameter(0.7, 0.01, 1, "", "share of the memory bandwidth that is reached")
    speedup: float = parameter(1.5, 1, 6, "", "ratio of the rate of data in the L2")
    resident: float = parameter(
        0.4, 0.05, 1.5, "", "share of the L2 that retains operands until the next use"
    )
    row_ns: float = parameter(0.3, 0.001, 30, "ns", "time per row, for any length")
    spread: float = parameter(10, 0.5, 200, "", "multiprocessors that share a row")
    launch_us: float = parameter(3, 0.1, 300, "µs", "time of an empty call")

    def seconds(self, device: Device, shape: StreamShape, xp: Namespace = ARRAYS) -> Number:
        busy = xp.maximum(self.busy(device, shape, xp), shape.rows * self.row_ns * 1e-9)
        return self.launch_us * 1e-6 + busy

    def busy(self, device: Device, shape: StreamShape, xp: Namespace) -> Number:
        """Seconds to move all bytes."""
        held = xp.maximum(shape.turns * shape.moved - shape.again, 1)
        missing = cache_miss_share(held, self.resident * (device.l2_bytes or 0))
        slowness = (missing + (1 - missing) / self.speedup) / (self.bandwidth * device.memory_Bps)
        return slowness * ((shape.moved - shape.shared) * self.idle(device, shape.rows, xp) + shape.shared)

    def idle(self, device: Device, rows: Number, xp: Namespace) -> Number:
        """Ratio of the time of `rows` rows to the time if all multiprocessors were busy."""
        many = device.multiprocessors or device.cores or 1
        return xp.maximum(1, many / self.spread / xp.maximum(rows, 1))


@families("stream")
@dataclass(frozen=True)
class ElementwiseKernel(StreamKernel):
    """An elementwise op or a norm: moves rows and computes."""

    bandwidth: float = parameter(0.8, 0.01, 1, "", "share of the memory bandwidth that is reached")
    launch_us: float = parameter(2, 0.1, 300, "µs", "time of an empty call")
    vector: float = parameter(0.3, 0.01, 3, "", "share of the fp32 peak that arithmetic reaches")

    def busy(self, device: Device, shape: StreamShape, xp: Namespace) -> Number:
        """Seconds to move all bytes, plus arithmetic that traffic does not hide."""
        sums = shape.flops / (self.vector * device.vector_peak("fp32")[0])
        return super().busy(device, shape, xp) + sums * self.idle(device, shape.rows, xp)


FAMILIES = ("stream",)
# Added error of other ops. Most rows of the fit quantize with static scales, with a mean error of 4 to 7% by
# engine (5% on average). Current norms and rope, 113 rows of `llmir validate elementwise_recent.csv`, have
# 14%.
OTHERS = 0.09


def stream_call(row: Row, rows: Number) -> StreamShape:
    """The bytes and FLOPs of an op in `rows` rows. Weights count once."""
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    again = sum((row.reads[operand][1] for operand in row.node.op.aliases.values()), start=0)
    return StreamShape(rows, row.read + row.write, shared, again, row.work.vector, row.turns or 1)


@kernel_call("norm", "elementwise", "moe", "gather")
def stream(row: Row) -> Call:
    """A norm, activation or copy, with the rows of its result."""
    return Call(FAMILIES, stream_call(row, rows_of(row.shape)), kernel_error=OTHERS)


@kernel_call("rope", "rope_append", "norm_rope_append_index")
def rope(row: Row) -> Call:
    """Rotary embedding. All heads of a token are one row."""
    batch, tokens, *_ = row.shape.shape
    return Call(FAMILIES, stream_call(row, batch * tokens), kernel_error=OTHERS)


# FLOPs that take as long as the offset of one element, which PyTorch's `elementwise_kernel` computes for
# tensors that are not plain rows (TensorIterator's OffsetCalculator); `torch.cat` computes two. In a profile
# of eager Qwen1.5 on H100 these kernels take 12 to 15 µs for 9.2 million elements (docs/dev/runs.md).
OFFSET_FLOPS = 24


@kernel_call("scale_by_cosine", "scale_by_sine", "negate_half", "join_half", "concat")
def strided(row: Row) -> Call:
    """Elementwise ops of eager PyTorch on strided tensors. All heads of a token are one row.

    The kernel computes an offset for each element; a copy computes one per tensor.
    """
    batch, tokens, *_ = row.shape.shape
    shape = stream_call(row, batch * tokens)
    offsets = row.shape.elements * (1 + (len(row.operands) > 1))
    return Call(FAMILIES, replace(shape, flops=shape.flops + OFFSET_FLOPS * offsets), kernel_error=OTHERS)


@kernel_call("add")
def add(row: Row) -> Call:
    """A sum. All heads of a token are one row."""
    sizes = row.shape.shape
    rows = sizes[0] * sizes[1] if len(sizes) > 3 else rows_of(row.shape)
    return Call(FAMILIES, stream_call(row, rows), kernel_error=OTHERS)


@kernel_call("row_mean", "compress_rows")
def read_rows(row: Row) -> Call:
    """Ops that reduce rows: the rows of the operand count."""
    return Call(FAMILIES, stream_call(row, rows_of(row.operands[0])), kernel_error=OTHERS)


@kernel_call("append")
def append(row: Row) -> Call:
    """A cache write. Only the new rows count, although the result is the whole cache."""
    return Call(FAMILIES, stream_call(row, rows_of(row.operands[1])), kernel_error=OTHERS)


@kernel_call("linear", block="streams")
def weights_of_streams(row: Row) -> Call:
    """The weights of parallel residual streams: a few numbers per token, computed as fast as the streams are
    read.
    """
    shared = sum((n for role, n in row.reads if role == "weight"), start=0)
    return Call(FAMILIES, StreamShape(rows_of(row.shape), row.read + row.write, shared), kernel_error=OTHERS)
