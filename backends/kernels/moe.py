"""Mixture-of-experts kernels on one rank, and DeepEP's exchange of tokens between ranks.

`MoeKernel`: rows are gathered by expert, multiplied by gate and up, activated, multiplied by down, and summed
by token. A product reads the weights of the touched experts, which dominates for few rows. It multiplies
tiles of rows, with the fastest number of rows per tile; a tile with few rows takes at least the time to load
its columns. The last tile of an expert costs a quarter of a tile on average. Some libraries choose the number
of rows per tile by the rows of all ranks. The shorter of reading and multiplying is not completely hidden.
Between products, rows pass through memory.

`DeepEp`: normal kernels send a token once to each rank, and use a number of multiprocessors that the caller
sets. Low-latency kernels send a token once for each of its experts, and use a number of multiprocessors that
divides the experts evenly (`num_warp_groups` in csrc/kernels/internode_ll.cu). A call takes a start time, the
wait of a row in the pipeline of chunks, and the longer of the times of links and of multiprocessors for all
copies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from llmir.backends.work.rows import ExpertTypes, Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.dtype import DType
from llmir.ir.core.tensor import Tensor
from llmir.ir.ops.moe import GroupedLinear
from llmir.ir.sizes.polynomial import Busiest, Dim, Reached, Size, ceildiv, product

from .base import (
    Call,
    Kernel,
    Shape,
    bits,
    choice,
    families,
    kernel_call,
    multiprocessors,
    overlap_time,
    parameter,
    rows_of,
)
from .collective import CollectiveShape
from .stream import StreamShape

# Experts of a layer

COLUMNS = 128  # columns of a tile in CUTLASS and Triton for wide weights
HEIGHTS = (16, 32, 64, 128)  # rows of a tile: Triton's BLOCK_SIZE_M, at least 16
LAST = 0.25  # cost of the last tile of an expert in tiles: between 0 (full tiles) and 0.5 (random loads)
FP32 = 4  # bytes of the weight of a token for one expert

# Experts of a rank and their width, by device, for which SGLang 0.5.10 ships tuned tiles in 16 bits, in files
# such as E=8,N=3584,device_name=NVIDIA_A100-SXM4-80GB.json under fused_moe_triton/configs. Those for A100 are
# from vLLM's fused_moe/configs. Other devices need no entry, because none of their kernels is `coarse`.
TUNED = {
    "A100-40-SXM": ((8, 1792), (8, 3584), (16, 1344)),
    "A100-80-SXM": (
        *((8, 1792), (8, 2048), (8, 3584), (8, 4096), (8, 7168)),
        *((16, 1344), (16, 1792), (16, 2688), (16, 3584), (16, 7168), (16, 14336)),
        *((64, 640), (64, 1280)),
    ),
    "L40S": ((8, 3584), (128, 928), (128, 1856)),
}


@dataclass(frozen=True)
class GroupedShape(Shape):
    """A grouped product: `rows` rows, each multiplied with the n×k weight of one of `experts` touched
    experts.

    - `away`: Number of rows of experts on other ranks.
    - `top_k`: Rows per token, over all ranks.
    - `held`, `width`: The number of experts of the rank and their intermediate size; 0 if not known.
    - `x_bits`, `w_bits`, `y_bits`: Bits per element of rows, weights and results.
    """

    rows: Number
    experts: Number
    n: Number
    k: Number
    away: Number = 0
    top_k: Number = 1
    held: Number = 0
    width: Number = 0
    x_bits: float = 16
    w_bits: float = 16
    y_bits: float = 16
    dtype: str = "bf16"

    @property
    def moved(self) -> Number:
        """Bytes of rows and results."""
        return self.rows * (self.k * self.x_bits + self.n * self.y_bits) / 8

    @property
    def weights(self) -> Number:
        """Bytes of the touched weights."""
        return self.experts * self.n * self.k * self.w_bits / 8


@dataclass(frozen=True)
class RoutedShape(Shape):
    """`rows` copies of `tokens` tokens with `width` values each; they pass through memory.

    `away` of the rows are of experts on other ranks. `bits` is the number of bits per value.
    """

    tokens: Number
    rows: Number
    width: Number
    away: Number = 0
    bits: float = 16


@families(
    *("moe_fp8", "moe_fp8_block", "moe_nvfp4"),
    *("moe_mxfp4", "moe_mxfp4_weights", "moe_int4_weights"),
)
@dataclass(frozen=True)
class MoeKernel(Kernel):
    """The kernels of the experts of a layer, one per op. `seconds` estimates a grouped product."""

    group: ClassVar[str] = "experts"

    # Autotuning selects a kernel for some shapes that takes up to seven times as long as for similar shapes.
    starts: ClassVar[int] = 3
    prior: ClassVar[float] = 0.05
    loss: ClassVar[str] = "cauchy"

    matrix: float = parameter(0.6, 0.02, 1, "", "share of the matrix peak that products reach")
    fill: float = parameter(100, 1, 3000, "k", "time to start and end a tile, in elements of k")
    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that weights reach")
    exposed: float = parameter(
        0.4, 0.01, 1, "", "share of the shorter of multiplying and reading that is not hidden"
    )
    walk: float = parameter(
        0.3, 0.01, 10, "", "time of a block to read its weights, relative to its fair share"
    )
    between: float = parameter(0.6, 0.02, 1, "", "share of the memory bandwidth for rows between products")
    foreign: float = parameter(
        0.5, 0.001, 1, "", "cost of a row of another rank, relative to a row of this rank"
    )
    strays: float = parameter(0.02, 0.001, 1, "", "share of other ranks' rows that is multiplied")
    launch_us: float = parameter(4, 0.3, 25, "µs", "time of an empty kernel")
    fetch: float = parameter(40, 4, 300, "rows", "rows multiplied while the columns of a tile are loaded")
    alone: float = parameter(
        0.3, 0.01, 3, "", "time of a block to multiply its tile, relative to its fair share"
    )
    counted: float = choice(
        0, (0, 1), "", "share of other ranks' rows that count for the tile height", usual=True
    )

    def seconds(self, device: Device, shape: GroupedShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds of one grouped product."""
        height = self.least(shape, xp)
        rows = xp.maximum(self.tiled(shape, xp), height) * shape.experts + self.strays * shape.away
        wide = xp.ceil(shape.n / COLUMNS) * COLUMNS
        rate = device.matrix_peak(shape.dtype)[0] * self.matrix
        deep = 2 * (shape.k + self.fill)  # FLOPs of an element of the result
        tile = self.alone * height * COLUMNS * deep / (rate / multiprocessors(device))
        multiply = rows * wide * deep / rate + tile
        bandwidth = device.memory_Bps * self.bandwidth
        read = (shape.moved + shape.weights * self.slowness(device, shape, xp)) / bandwidth
        walk = self.walk * shape.k * COLUMNS * shape.w_bits / 8 / (bandwidth / multiprocessors(device))
        busy = xp.maximum(multiply, read) + self.exposed * xp.minimum(multiply, read) + walk
        return busy + self.launch_us * 1e-6

    def tiled(self, shape: GroupedShape, xp: Namespace) -> Number:
        """The number of rows that the tiles of an expert process, including empty rows."""
        each = xp.maximum(shape.rows / shape.experts, 1)
        heights = ((height, overlap_time(xp, height, self.fetch)) for height in HEIGHTS)
        return reduce(xp.minimum, (xp.maximum(each / rows + LAST, 1) * took for rows, took in heights))

    def least(self, shape: GroupedShape, xp: Namespace) -> Number:
        """The time of one tile, expressed as a number of rows. The number of rows per tile follows from the
        rows per expert.
        """
        each = (shape.rows + self.counted * shape.away) / shape.experts
        return overlap_time(xp, xp.minimum(xp.maximum(each, 1), HEIGHTS[-1]), self.fetch)

    def slowness(self, device: Device, shape: GroupedShape, xp: Namespace) -> Number:
        """Ratio of the time to read a weight to the time with the best tiles."""
        return 1

    def narrow(self, device: Device, shape: StreamShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds to quantize rows, before they are sorted or between the products."""
        return self.streamed(device, shape.moved)

    def dispatch(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds to sort rows by expert and copy them."""
        return self.streamed(device, (shape.tokens + self.walked(shape)) * shape.width * shape.bits / 8)

    def activation(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds to compute silu(gate)·up."""
        return self.streamed(device, self.walked(shape) * 3 * shape.width * shape.bits / 8)

    def combine(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds to sum the weighted rows of each token."""
        rows = self.walked(shape)
        moved = (shape.tokens + rows) * shape.width * shape.bits / 8
        return self.streamed(device, moved + rows * FP32)

    def walked(self, shape: RoutedShape) -> Number:
        """Number of rows that take time between the products."""
        return shape.rows + self.foreign * shape.away

    def streamed(self, device: Device, moved: Number) -> Number:
        """Seconds of a kernel that reads and writes `moved` bytes of rows."""
        return self.launch_us * 1e-6 + moved / (device.memory_Bps * self.between)


@families("moe_bf16")
@dataclass(frozen=True)
class Moe16Bit(MoeKernel):
    """Experts in 16 bits, for which Triton has low, deep tiles for few tokens and square, shallow tiles for
    more.

    SGLang's `get_default_config` (fused_moe_triton_config.py) uses tiles of 16×32 results and 64 elements of
    k per step if the tokens of all ranks are at most as many as a rank's experts. For more tokens, it uses
    64×64 and 32, which read weights at two thirds of the bandwidth. SGLang switches at once; in this model,
    the time increases gradually with the tokens. Layers in `TUNED` have tuned tiles, with 64 elements of k
    per step in all cases.
    """

    coarse: float = choice(
        1,
        (1, 1.5),
        "",
        "time to read a weight if tokens outnumber experts, relative to few tokens",
        usual=True,
    )

    def slowness(self, device: Device, shape: GroupedShape, xp: Namespace) -> Number:
        """A factor above 1 if there are more tokens than experts and the layer has no tuned tiles."""
        tokens = (shape.rows + shape.away) / shape.top_k
        slower = xp.minimum(xp.maximum(tokens / shape.experts, 1), self.coarse)
        layers = TUNED.get(device.name, ())
        tuned = reduce(or_, ((shape.held == held) & (shape.width == width) for held, width in layers), False)
        return xp.where(tuned, 1, slower)


SMALL_US = 4.6  # a small kernel in a HIP graph: norms and copies of SGLang on MI300X (AMD-AGI/TraceLens)


@families(
    *("cdna_moe_fp8", "cdna_moe_fp8_block", "cdna_moe_nvfp4"),
    *("cdna_moe_mxfp4", "cdna_moe_mxfp4_weights", "cdna_moe_int4_weights"),
)
@dataclass(frozen=True)
class AiterMoe(MoeKernel):
    """AITER's two kernels for experts, and the kernels that sort and quantize rows before them.

    The first product also applies the activation. The second multiplies rows by their weights and adds them
    (aiter/fused_moe.py, fused_moe_2stages). Rows are read by index, so sorting does not copy rows.
    """

    def dispatch(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """Seconds to sort the indices of rows by expert."""
        return SMALL_US * 1e-6 + self.walked(shape) * FP32 / (device.memory_Bps * self.between)

    def activation(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """0, because the first product includes the activation."""
        return 0 * shape.rows

    def combine(self, device: Device, shape: RoutedShape, xp: Namespace = ARRAYS) -> Number:
        """0, because the second product includes the sum."""
        return 0 * shape.rows

    def streamed(self, device: Device, moved: Number) -> Number:
        """Seconds of a kernel that quantizes rows and moves `moved` bytes."""
        return SMALL_US * 1e-6 + moved / (device.memory_Bps * self.between)


@kernel_call("grouped_linear")
def grouped(row: Row) -> Call | None:
    """A grouped product. Several results of one product count as one wider result."""
    first, *others = row.work.gemms
    x, w = row.operands[:2]
    op = row.node.op
    if not isinstance(op, GroupedLinear):
        return None
    shape = GroupedShape(
        rows=x.shape[0],
        experts=op.touched(x, w),
        n=sum((g.n for g in others), start=first.n),
        k=first.k,
        away=row.experts.away if row.experts else 0,
        top_k=op.top_k,
        held=w.shape[0],
        width=first.n if others else first.k,  # gate and up are one product of two results
        x_bits=bits(x.dtype),
        w_bits=bits(w.dtype),
        y_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    return Call(_families(x.dtype, w.dtype), shape)


@kernel_call("dispatch", "scaled_dispatch")
def dispatch(row: Row) -> Call:
    """Rows gathered by expert."""
    x, rows = row.operands[0], row.shape
    return _part(row, "dispatch", RoutedShape(_tokens(x), rows.shape[0], x.shape[-1], bits=bits(x.dtype)))


@kernel_call("combine", "sum_experts")
def combine(row: Row) -> Call:
    """The weighted sum of the rows of each token."""
    rows, y = row.operands[0], row.shape
    return _part(row, "combine", RoutedShape(_tokens(y), rows.shape[0], y.shape[-1], bits=bits(y.dtype)))


@kernel_call("silu_mul", "clamped_glu", block="routed_experts")
def activation(row: Row) -> Call:
    """The activation between grouped products."""
    rows, width = row.shape.shape
    return _part(row, "activation", RoutedShape(0, rows, width, bits=row.shape.dtype.bits))


@kernel_call("quantize", "silu", "mul", block="routed_experts")
def quantize_rows(row: Row) -> Call:
    """Quantization of expert rows, which is often fused with the previous kernel; an activation may be two
    kernels.
    """
    return _part(row, "narrow", StreamShape(rows_of(row.shape), row.read + row.write))


def _tokens(x: Tensor) -> Size:
    return product(x.shape[:-1])


def _part(row: Row, part: str, shape: RoutedShape | StreamShape) -> Call:
    """A kernel of the layer's family that processes rows before, between or after grouped products."""
    x = row.operands[0].dtype
    layer = row.experts or ExpertTypes(x, x, 0)
    shape = replace(shape, away=layer.away) if isinstance(shape, RoutedShape) else shape
    return Call(_families(layer.rows, layer.weights), shape, part)


def _families(x: DType, weights: DType) -> tuple[str, ...]:
    """Kernel families for the dtypes of rows and weights, the best first."""
    narrow: tuple[str, ...] = ()
    if x.bits == 4:
        narrow = ("moe_nvfp4",)
    elif x.bits == 8:
        blocks = x.block[1] > 0
        narrow = ("moe_fp8_block", "moe_fp8") if blocks else ("moe_fp8", "moe_fp8_block")
        if weights.bits == 4:  # another engine's kernel, not a kernel that reads twice the bytes
            narrow = ("moe_mxfp4",)
    elif weights.bits == 4:
        # The int4 kernels of another engine are more similar than the mxfp4 kernels of the engine.
        narrow = ("moe_int4_weights",) if weights.kind == "int" else ("moe_mxfp4_weights", "moe_int4_weights")
    return (*narrow, "moe_bf16")


# Exchange of tokens by DeepEP


@dataclass(frozen=True)
class DispatchShape(CollectiveShape):
    """An exchange of tokens: a rank receives `copies` copies of `width` bytes and has `tokens` tokens of its
    own.

    The kernels run on `sms` multiprocessors; 0 means the number that divides the `experts` of all ranks
    evenly.
    """

    words = CollectiveShape.words | {"sms"}

    copies: Number = 0
    width: Number = 0
    tokens: Number = 0
    experts: Number = 0
    sms: Number = 0

    def busy(self, device: Device, xp: Namespace) -> Number:
        """Number of multiprocessors in use."""
        rounds = xp.ceil(self.experts / multiprocessors(device))
        return xp.where(self.sms > 0, self.sms, xp.ceil(self.experts / xp.maximum(rounds, 1)))


@families("deepep_dispatch", "deepep_combine", "deepep_ll_dispatch", "deepep_ll_combine")
@dataclass(frozen=True)
class DeepEp(Kernel):
    """One DeepEP call, by all ranks of a node."""

    group: ClassVar[str] = "collectives"
    library: ClassVar[bool] = True

    start_us: float = parameter(20, 1, 200, "µs", "time of an empty call")
    wait_us: float = parameter(0.5, 0.001, 10, "µs", "wait per KB of a row in the pipeline of chunks")
    link: float = parameter(0.6, 0.05, 1, "", "share of the link that copies to other ranks reach")
    each: float = parameter(30, 1, 1000, "GB/s", "copy rate of a multiprocessor")
    copy_us: float = parameter(0.05, 0.0001, 3, "µs", "time of a multiprocessor per copy")
    token_us: float = parameter(0.5, 0.0001, 5, "µs", "time of a multiprocessor per token of the rank")

    def seconds(self, device: Device, shape: DispatchShape, xp: Namespace = ARRAYS) -> Number:
        moved = shape.copies * shape.width
        sent = moved * (shape.ranks - 1) / shape.ranks / (self.link * shape.bandwidth(device))
        copied = moved / (self.each * 1e9) + 1e-6 * (
            self.copy_us * shape.copies + self.token_us * shape.tokens
        )
        start = 1e-6 * (self.start_us + self.wait_us * shape.width / 1000)
        return start + overlap_time(xp, sent, copied / shape.busy(device, xp))


@kernel_call("send_tokens")
def send(row: Row) -> Call | None:
    """Send a token once to each rank."""
    return _call(row, "normal", "deepep_dispatch", row.shape, row.operands)


@kernel_call("send_tokens")
def send_at_low_latency(row: Row) -> Call | None:
    """Send a token once for each expert."""
    return _call(row, "low_latency", "deepep_ll_dispatch", row.shape, row.operands)


@kernel_call("return_tokens")
def give_back(row: Row) -> Call | None:
    """Receive a sum from each rank."""
    return _call(row, "normal", "deepep_combine", row.operands[0], row.operands[:1])


@kernel_call("return_tokens")
def give_back_at_low_latency(row: Row) -> Call | None:
    """Receive a row from each expert."""
    return _call(row, "low_latency", "deepep_ll_combine", row.operands[0], row.operands[:1])


def _call(row: Row, mode: str, family: str, there: Tensor, moved: tuple[Tensor, ...]) -> Call | None:
    """The call of a mode for the tokens in `there`; None if the op uses the other mode."""
    op: Any = row.node.op
    reached = there.shape[0]
    atom = reached.terms[0][0][0] if isinstance(reached, Dim) else None
    if op.mode not in ("", mode) or not isinstance(atom, Reached):
        return None
    of = atom.chosen, atom.tokens, atom.experts, atom.law
    low = mode == "low_latency"
    shape = DispatchShape(
        row.work.payload,
        row.work.ranks,
        adds=False,
        copies=Busiest.of(row.work.ranks, *of) if low else reached,
        width=sum((Tensor((1, 1, *t.shape[2:]), t.dtype).bytes for t in moved), start=0),
        tokens=ceildiv(atom.tokens, row.work.ranks),
        experts=atom.law.places(atom.experts),
        sms=0 if low else op.sms,
    )
    return Call((family, "all_to_all"), shape)
