"""Scans of linear attention and state-space layers, and the short convolutions before them.

A prompt is processed in chunks. Inside a chunk, matrix products process all tokens at once; from chunk to
chunk, the state carries the result. The block of a state processes its chunks in sequence, even if
multiprocessors are idle (`ChunkScan`). A decode step reads each state and writes it back, which is a stream
(`ScanStep`, `RecurrentUpdate`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.polynomial import ceildiv, product

from .base import (
    DRAFTS,
    Call,
    Kernel,
    Shape,
    cache_miss_share,
    families,
    kernel_call,
    multiprocessors,
    overlap_time,
    parameter,
)
from .stream import StreamKernel, StreamShape

CONVS = ("causal_conv", "causal_conv_silu")
KINDS = ("gated_delta", "kda", "ssd_scan", "lightning_attention", "selective_scan")
PART = (
    0.2  # time of a chunk with one token, relative to a full chunk: 0.1 to 0.3 for delta nets on H100, B200
)
STATE_FLOPS = 7  # vector FLOPs per state element and token, as in the IR for delta rules
TAIL = 0.5  # share of the empty places of the last wave that is lost


@dataclass(frozen=True)
class ScanShape(Shape):
    """A scan of `new` tokens through each of `states`, `chunk` tokens at a time, with `flops` matrix FLOPs.

    `moved` is the number of bytes that are read and written. If the scan consists of several kernels, up to
    `between` more bytes are read and written between them.
    """

    states: Number
    new: Number
    chunk: Number
    flops: Number
    moved: Number
    between: Number
    dtype: str = "bf16"


@families(*(f"{kind}_chunks" for kind in KINDS))
@dataclass(frozen=True)
class ChunkScan(Kernel):
    """A scan in chunks: one kernel, or one for the states and others for the products inside chunks."""

    group: ClassVar[str] = "scans"

    matrix: float = parameter(0.2, 0.005, 1, "", "share of the matrix peak that products within chunks reach")
    bandwidth: float = parameter(0.7, 0.05, 1, "", "share of the memory bandwidth that is reached")
    speedup: float = parameter(3, 1, 6, "", "ratio of the rate of data in the L2")
    resident: float = parameter(0.6, 0.05, 4, "", "share of the L2 that retains operands until the next use")
    scratch: float = parameter(
        1, 0.001, 4, "", "share of the rows and states between kernels that is written to memory"
    )
    block_us: float = parameter(5, 0.1, 40, "µs", "time to start and end the chunks of a state")
    step_us: float = parameter(2, 0.1, 20, "µs", "time per full chunk of a state")
    abreast: float = parameter(1, 0.1, 16, "", "states that a multiprocessor processes at once")
    exposed: float = parameter(
        0.3, 0.001, 1, "", "share of the shorter of chunk steps and other work that is not hidden"
    )
    launch_us: float = parameter(15, 1, 60, "µs", "time of an empty call, with all its kernels")

    def seconds(self, device: Device, shape: ScanShape, xp: Namespace = ARRAYS) -> Number:
        full = shape.new / shape.chunk
        steps = xp.ceil(full) * (PART + (1 - PART) * xp.minimum(full, 1))
        waves = shape.states / (self.abreast * multiprocessors(device))
        waves = xp.maximum(1, (1 - TAIL) * waves + TAIL * xp.ceil(waves))
        walk = waves * (self.block_us + self.step_us * steps) * 1e-6
        moved = shape.moved + self.scratch * shape.between
        missing = cache_miss_share(moved, self.resident * (device.l2_bytes or 0))
        slowness = (missing + (1 - missing) / self.speedup) / (self.bandwidth * device.memory_Bps)
        products = shape.flops / (self.matrix * device.matrix_peak(shape.dtype)[0])
        rest = overlap_time(xp, moved * slowness, products)
        hidden = (1 - self.exposed) * xp.minimum(walk, rest)
        return self.launch_us * 1e-6 + walk + rest - hidden


@dataclass(frozen=True)
class UpdateShape(StreamShape):
    """A decode step of `new` tokens per sequence: its traffic and its vector FLOPs."""

    new: Number = 1
    flops: Number = 0


@families("conv_update")
@dataclass(frozen=True)
class ScanStep(StreamKernel):
    """A decode step: states are read once and written back."""

    group: ClassVar[str] = "scans"

    @staticmethod
    def supports(shape: UpdateShape) -> Any:
        """One or a few new tokens per sequence."""
        return shape.new <= DRAFTS


@families(*(f"{kind}_update" for kind in KINDS))
@dataclass(frozen=True)
class RecurrentUpdate(ScanStep):
    """A recurrence token by token. In prefill, the states of Mamba stay on the chip."""

    vector: float = parameter(0.3, 0.05, 1, "", "share of the fp32 peak that decays and sums reach")

    def seconds(self, device: Device, shape: Any, xp: Namespace = ARRAYS) -> Number:
        sums = shape.flops / (self.vector * device.vector_flops["fp32"])
        return xp.maximum(super().seconds(device, shape, xp), self.launch_us * 1e-6 + sums)


@families("conv")
@dataclass(frozen=True)
class Convolution(StreamKernel):
    """The short convolution of a prompt, which is a stream."""

    group: ClassVar[str] = "scans"


def _families(row: Row, how: str) -> tuple[str, ...]:
    """The op's own kernel families come first, and then similar ones. KDA is a delta rule with one decay per
    key.
    """
    op: Any = row.node.op
    each = "decay" in op.takes and len(row.operands[op.takes.index("decay")].shape) > 4
    own = "kda" if each else op.opcode
    return tuple(dict.fromkeys(f"{kind}_{how}" for kind in (own, "gated_delta", "kda")))


def _parts(row: Row) -> tuple[int, Any, Tensor]:
    """The chunk size (0 without chunks), the number of new tokens, and the state."""
    op = row.node.op
    return vars(op).get("chunk", 0), row.operands[0].shape[1], row.operands[op.aliases.get(1, -1)]


@kernel_call("scan")
def update(row: Row) -> Call:
    """A decode step, or all tokens one after another if the op has no chunks.

    A step that verifies drafts, in chunks of one token, stores a state for each token.
    """
    chunk, new, state = _parts(row)
    left = (new - 1) * state.bytes if chunk == 1 else 0
    moved, one = row.read + row.write + left, new if chunk > 1 else 1
    flops = STATE_FLOPS * new * state.elements if chunk > 1 else row.work.vector
    shape = UpdateShape(product(state.shape[:-2]), moved, new=one, flops=flops)
    return Call((*_families(row, "update"), "stream"), shape)


@kernel_call("scan")
def chunks(row: Row) -> Call | None:
    """A scan in chunks. Between kernels, prepared rows and states are written and read in 16 bits."""
    chunk, new, state = _parts(row)
    if chunk < 2:
        return None
    between = 8 * row.shape.elements + 4 * ceildiv(new, chunk) * state.elements
    matrix, moved = row.work.matrix, row.read + row.write
    shape = ScanShape(product(state.shape[:-2]), new, chunk, matrix, moved, between, row.work.dtype.name)
    return Call(_families(row, "chunks"), shape)


def _channels(row: Row) -> tuple[Any, Any]:
    """Rows of a convolution, one per channel and sequence, and its bytes."""
    batch, _, *channels = row.shape.shape
    return batch * product(channels), row.read + row.write


@kernel_call(*CONVS)
def conv_update(row: Row) -> Call:
    """The convolution of one new token."""
    return Call(("conv_update", "conv", "stream"), UpdateShape(*_channels(row), new=row.shape.shape[1]))


@kernel_call(*CONVS)
def conv(row: Row) -> Call:
    """The convolution of any number of tokens."""
    return Call(("conv", "stream"), StreamShape(*_channels(row)))
