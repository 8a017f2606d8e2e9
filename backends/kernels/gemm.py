"""Matrix products y[m,n] = x[m,k]·w[k,n] on GPUs, and quantization of x.

A library splits y into tiles and k into pieces, and assigns them to multiprocessors in waves. A
multiprocessor takes the longer of multiplying and of loading rows and columns through the L2, plus a cost for
each step along k. At the same time, the memory delivers the data that are not in the L2. The law uses the
fastest tile and split. As a minimum of times that increase with m, n and k, the result increases with them,
too.

A tile that m does not fill takes the time of its rows, because libraries also have tiles with fewer rows. A
matrix unit takes as long for a single row as for the rows of a whole instruction. Vector units (fp32) compute
single rows and columns, for which cuBLAS has kernels.

AMD CDNA (`CdnaGemm`): Composable Kernel and hipBLASLt have tiles of 16 rows up to 256×256 (listed in aiter's
tuning tables), and copy to the LDS through registers, so that arithmetic and memory overlap less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import ClassVar, NamedTuple

import numpy as np

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.dtype import DType
from llmir.ir.sizes.polynomial import Max

from .base import (
    Call,
    Kernel,
    KernelTransfer,
    Shape,
    bits,
    cache_miss_share,
    families,
    kernel_call,
    multiprocessors,
    overlap_time,
    parameter,
    rows_of,
)
from .stream import StreamKernel, StreamShape

# NVIDIA

# Shorter and longer side of the tiles of cuBLAS and CUTLASS since Ampere, and the numbers of pieces of k.
TILES = ((64, 64), (64, 128), (128, 128), (128, 256))
SPLITS = (1, 2, 3, 4, 6, 8, 12)
K_STEP = 64  # elements of k per step of a tile: CUTLASS's default for 16 bits
# Three constants of llmir, set once with the rows of A100, H100, B200 and L40S, and equal for all devices.
TILE_S = 0.2e-6  # time to fill and drain the pipeline of a tile: one memory latency, a few hundred cycles
STORE = 2.5  # cost of a stored byte of y in loaded bytes: through shared memory, without overlap
POWER_S = 1e-3  # time of a product until the power limit has lowered the clock halfway


@dataclass(frozen=True)
class GemmShape(Shape):
    """`batch` products m×k · k×n, with the bits per element of x, w and y and the dtype of the arithmetic.

    - `turns`: The number of weights that are used in rotation, by the layers of a model or by a benchmark. A
      weight stays in the L2 only if all these weights fit in it.
    - `rest`: The columns of n that do not belong to the widest product, if several products share one x.
    """

    m: Number
    n: Number
    k: Number
    batch: Number = 1
    x_bits: float = 16
    w_bits: float = 16
    y_bits: float = 16
    dtype: str = "bf16"
    turns: Number = np.inf
    rest: Number = 0

    @property
    def bytes(self) -> tuple[Number, Number, Number]:
        """Bytes of x, w and y."""
        x, w, y = (
            size * self.batch * (bits / 8)
            for size, bits in (
                (self.m * self.k, self.x_bits),
                (self.k * self.n, self.w_bits),
                (self.m * self.n, self.y_bits),
            )
        )
        return x, w, y


class GemmTile(NamedTuple):
    """Tiles of one size.

    - `even`, `whole`: Number of waves over the multiprocessors if tiles could be divided, and if they cannot.
    - `step`: Seconds per element of k.
    - `ends`: Seconds before the first and after the last step.
    """

    even: Number
    whole: Number
    step: Number
    ends: Number

    def busy(self, depth: Number) -> Number:
        """Seconds of a tile along `depth` elements of k."""
        return self.step * depth + self.ends


def clock_share(busy: Number, shape: GemmShape) -> Number:
    """How far the clock has fallen to its lowest value, from 0 to 1.

    Several products that run as one count as the widest of them.
    """
    alone = busy * (1 - shape.rest / shape.n)
    return alone / (alone + POWER_S)


@families(
    *("gemm_bf16", "gemm_fp32", "gemm_fp8", "gemm_nvfp4", "gemm_int8"),
    *("gemm_int8_weights", "gemm_int4_weights", "bmm_bf16", "bmm_fp8"),
)
@dataclass(frozen=True)
class GemmKernel(Kernel):
    """A matrix product on a GPU."""

    group: ClassVar[str] = "products"
    prior: ClassVar[float] = 0.03

    rate: float = parameter(
        0.85, 0.3, 1, "", "share of the matrix peak that full tiles reach for a short time"
    )
    sustained: float = parameter(
        0.87, 0.5, 1, "", "share of that rate that the power limit allows for a long time"
    )
    bandwidth: float = parameter(0.8, 0.3, 1, "", "share of the memory bandwidth that is reached")
    feed: float = parameter(
        0.4, 0.02, 3, "B", "bytes that a multiprocessor loads in the time of an fp32 FLOP"
    )
    tail: float = parameter(0.2, 0, 1, "", "share of the empty places of the last wave that is lost")
    resident: float = parameter(
        0.4, 0.05, 1.5, "", "share of the L2 that retains operands until the next use"
    )
    split_us: float = parameter(3, 0.1, 20, "µs", "time to add the pieces if k is split")
    launch_us: float = parameter(2.4, 0.2, 20, "µs", "time of an empty call")
    step_ns: float = parameter(80, 1, 500, "ns", "time added to a tile per 64 elements of k")

    tiles: ClassVar[tuple[tuple[int, int], ...]] = TILES
    splits: ClassVar[tuple[int, ...]] = SPLITS
    tile_s: ClassVar[float] = TILE_S

    @staticmethod
    def beside(xp: Namespace, tiles: Number, memory: Number) -> Number:
        """Seconds of tiles and memory traffic, which overlap."""
        return overlap_time(xp, tiles, memory)

    def seconds(self, device: Device, shape: GemmShape, xp: Namespace = ARRAYS) -> Number:
        busy = self.busy(device, shape, xp)
        slowed = 1 + (1 / self.sustained - 1) * clock_share(busy, shape)
        return busy * slowed + self.launch_us * 1e-6

    def transfer_parameters(self, travel: KernelTransfer) -> dict[str, float]:
        """The parameters on another device.

        A slower matrix unit needs less power, and fewer rows keep it busy.
        """
        values, slower = super().transfer_parameters(travel), travel.slower
        least = TILES[0][0] * slower * values["rate"] / self.rate
        return {**values, "sustained": values["sustained"] / slower, "least": least}

    @classmethod
    def transfer_class(cls) -> type[Kernel]:
        """The kernel class for other devices: the same formula, with additional smaller tiles."""
        return SmallTileGemm

    def busy(self, device: Device, shape: GemmShape, xp: Namespace) -> Number:
        """Seconds from launch to end at a constant clock, with the fastest tile and split."""
        memory = self.memory(device, shape)
        sums = shape.m * shape.n * shape.batch / (device.memory_Bps / 4)  # each piece in fp32
        tiles = [self.tile(device, shape, rows, columns, xp) for rows, columns in self.tiles]
        found = []
        for split in self.splits:
            depth = xp.ceil(shape.k / K_STEP / split) * K_STEP
            fastest = reduce(xp.minimum, (self.waves(tile, split, xp) * tile.busy(depth) for tile in tiles))
            gather = self.split_us * 1e-6 + split * sums if split > 1 else 0
            found.append(self.beside(xp, fastest, memory) + gather)
        return reduce(xp.minimum, found)

    def tile(self, device: Device, shape: GemmShape, rows: int, columns: int, xp: Namespace) -> GemmTile:
        """A tile of `rows` rows and `columns` columns."""
        share = 1 / multiprocessors(device)
        rate = device.matrix_peak(shape.dtype)[0] * share * self.rate
        feed = device.vector_flops["fp32"] * share * self.feed
        high, wide = xp.minimum(rows, shape.m), xp.minimum(columns, shape.n)
        fetch = (high * (shape.x_bits / 8) + wide * (shape.w_bits / 8)) / feed
        store = high * (STORE * wide * shape.y_bits / 8) / feed
        unit = device.matrix_unit(shape.dtype)
        multiplied = self.multiplied(rows, xp) * columns if unit else high * wide
        step = overlap_time(xp, 2 * multiplied / rate, fetch)
        across = xp.ceil(shape.n / columns) * (shape.batch * share)
        return GemmTile(
            even=xp.maximum(shape.m / rows, 1) * across,
            whole=xp.ceil(shape.m / rows) * across,
            step=step + self.step_ns * 1e-9 / K_STEP,
            ends=store + self.tile_s,
        )

    def multiplied(self, rows: int, xp: Namespace) -> Number:
        """The number of rows that the matrix unit computes for a tile of `rows` rows, including empty
        ones.
        """
        return rows

    def waves(self, tile: GemmTile, split: int, xp: Namespace) -> Number:
        """Number of waves of tiles if k is split into `split` pieces."""
        even = tile.even * split
        lost = xp.minimum(xp.ceil(tile.whole * split) - even, 1)
        return xp.maximum(even + self.tail * lost, 1)

    def memory(self, device: Device, shape: GemmShape) -> Number:
        """Seconds of the memory for data that are not in the L2."""
        x, w, y = shape.bytes
        both, kept = x + y, self.resident * (device.l2_bytes or 0)
        moved = w * cache_miss_share(w * shape.turns + both, kept) + both * cache_miss_share(w + both, kept)
        return moved / (device.memory_Bps * self.bandwidth)


@dataclass(frozen=True)
class TransferGemm(GemmKernel):
    """A matrix product on a chip that was not measured: the power limit lowers only the matrix rate.

    Memory-bound products do not become slower, so a higher matrix rate never makes a product slower.
    Compute-bound products take the time that `GemmKernel` estimates.
    """

    def seconds(self, device: Device, shape: GemmShape, xp: Namespace = ARRAYS) -> Number:
        busy = self.busy(device, shape, xp)
        limited = self.limited().busy(device, shape, xp)
        return busy + (limited - busy) * clock_share(busy, shape) + self.launch_us * 1e-6

    def limited(self) -> TransferGemm:
        """The same kernel at the sustained matrix rate."""
        return replace(self, rate=self.rate * self.sustained)


@dataclass(frozen=True)
class SmallTileGemm(TransferGemm):
    """A transferred matrix product with smaller tiles, which help if the matrix unit is slow relative to the
    memory.

    H20 loads a weight in the time in which it multiplies the weight with 37 rows; H100, with 295 rows. On the
    measured device, the smaller tiles change nothing, because there no tile is faster than the lowest tile.
    """

    least: float = parameter(64, 1, 64, "rows", "rows whose time the lowest tile takes")

    tiles: ClassVar[tuple[tuple[int, int], ...]] = ((16, 64), (32, 64), *TILES)

    def multiplied(self, rows: int, xp: Namespace) -> Number:
        """At least `least` rows."""
        return xp.maximum(rows, self.least)

    def limited(self) -> SmallTileGemm:
        """The same kernel at the sustained rate, without a change in the time of the lowest tile."""
        return replace(self, rate=self.rate * self.sustained, least=self.least * self.sustained)


@families("gemm_fp8_block")
@dataclass(frozen=True)
class BlockGemm(GemmKernel):
    """A product with a scale for each 128 elements of k, as in DeepGEMM (csrc/jit_kernels/heuristics).

    Its tiles have as few as 16 columns for narrow products, and k is never split.
    """

    tiles: ClassVar[tuple[tuple[int, int], ...]] = (
        *((64, 16), (64, 32), (64, 64), (64, 128)),
        *((128, 64), (128, 128)),
    )
    splits: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def transfer_class(cls) -> type[Kernel]:
        """This device has the same tiles."""
        return TransferBlockGemm


@dataclass(frozen=True)
class TransferBlockGemm(TransferGemm, BlockGemm):
    """A product with block scales on a chip that was not measured."""


@kernel_call("attention_scores", "attention_mix", "gemm")
def product(row: Row) -> Call:
    """A matrix product. Several products of one x count as one wider product."""
    first, *others = row.work.gemms
    x, w = (t.dtype for t in row.operands[:2])
    columns = sum((g.n for g in others), start=first.n)
    shape = GemmShape(
        m=first.m,
        n=columns,
        k=first.k,
        batch=first.batch,
        x_bits=bits(x),
        w_bits=bits(w),
        y_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
        turns=row.turns or np.inf,
        rest=columns - reduce(Max.of, (g.n for g in others), first.n),
    )
    known = _families(row.work.dtype, w)
    batched = row.kind == "gemm" and first.batch != 1  # one weight per head, as in absorbed MLA
    own = ("bmm_fp8" if known[0].startswith("gemm_fp8") else "bmm_bf16",) if batched else ()
    return Call((*own, *known), shape)


def _families(computes: DType, weights: DType) -> tuple[str, ...]:
    """Kernel families for a dtype of arithmetic and of weights, the best first; the last is that of
    16 bits.
    """
    names: tuple[str, ...] = ()
    if computes.kind == "float" and computes.bits == 8:
        names = ("gemm_fp8_block", "gemm_fp8") if weights.block[0] > 1 else ("gemm_fp8", "gemm_fp8_block")
    elif computes.bits == 4:
        names = ("gemm_nvfp4", "gemm_fp8")
    elif computes.name == "int8":
        names = ("gemm_int8", "gemm_fp8")
    elif weights.bits < 16:
        name = "gemm_int8_weights" if weights.bits == 8 else "gemm_int4_weights"
        names = (name, "gemm_int8_weights")
    elif computes.name == "fp32":
        names = ("gemm_fp32",)
    return (*names, "gemm_bf16")


# AMD CDNA


@families("cdna_gemm_bf16", "cdna_gemm_fp8", "cdna_gemm_fp8_block", "cdna_gemm_nvfp4", "cdna_gemm_int8")
@dataclass(frozen=True)
class CdnaGemm(GemmKernel):
    """A matrix product on a data center GPU of AMD."""

    tiles: ClassVar[tuple[tuple[int, int], ...]] = (
        *((16, 64), (16, 128), (32, 64), (32, 128), (64, 64)),
        *((64, 128), (128, 128), (128, 256), (256, 256)),
    )
    tile_s: ClassVar[float] = 0.5e-6  # set once with the rows of MI300X and MI355X

    @classmethod
    def transfer_class(cls) -> type[Kernel]:
        """This device has the same tiles."""
        return TransferCdnaGemm

    @staticmethod
    def beside(xp: Namespace, tiles: Number, memory: Number) -> Number:
        """Seconds of tiles and memory traffic together; if both take equally long, the sum is 1.4 times as
        long as either.
        """
        return xp.hypot(tiles, memory)


@dataclass(frozen=True)
class TransferCdnaGemm(TransferGemm, CdnaGemm):
    """A matrix product on an AMD chip that was not measured."""


families("quantize_fp8", "quantize_fp8_block", "quantize_nvfp4", "quantize_int8")(StreamKernel)


# Quantization of x


@kernel_call("quantize")
def quantize(row: Row) -> Call:
    """Quantization: bytes that are read and written, and the number of rows with separate scales."""
    known = families_of(row.shape.dtype, static=getattr(row.node.op, "static", False))
    return Call(known, StreamShape(rows_of(row.shape), row.read + row.write))


def families_of(to: DType, *, static: bool = False) -> tuple[str, ...]:
    """Kernel families that quantize to a dtype, the best first. Static scales require another kernel."""
    own: tuple[str, ...] = ()
    if to.bits == 4:
        own = ("quantize_nvfp4", "quantize_fp8_block")
    elif static:
        own = ("stream",)
    elif to.kind == "int":
        own = ("quantize_int8",)
    elif to.block[1]:
        own = ("quantize_fp8_block",)
    return tuple(dict.fromkeys((*own, "quantize_fp8", "quantize_fp8_block", "stream")))
