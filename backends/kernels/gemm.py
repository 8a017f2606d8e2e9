"""Matrix products y[m,n] = x[m,k]·w[k,n] on GPUs, and quantization of x.

A library cuts y into tiles and k into pieces, and assigns them to multiprocessors in waves. A
multiprocessor takes the longer of multiplying and of fetching rows and columns through the L2, plus a cost
for each step along k; meanwhile the memory delivers what the L2 does not hold. The fastest tile and split
is taken, and as a minimum of times that rise with m, n and k the result rises with them too.

Tiles that m does not fill count by their rows beyond the first, since libraries have lower tiles; a matrix
unit multiplies its first row whole. Vector units (fp32) take single rows and columns: cuBLAS has such
kernels.

AMD CDNA (`CdnaGemm`): Composable Kernel and hipBLASLt have tiles of 16 rows up to 256×256 (aiter's tuning
tables name them), and copy to the LDS through registers, so that arithmetic and memory overlap less.
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

# Shorter and longer side of the tiles that cuBLAS and CUTLASS are built with since Ampere, and in how many
# pieces they cut k.
TILES = ((64, 64), (64, 128), (128, 128), (128, 256))
SPLITS = (1, 2, 3, 4, 6, 8, 12)
K_STEP = 64  # elements of k in one step of a tile: CUTLASS's default tiles for 16 bits
# Three of our own, set once with the rows of A100, H100, B200 and L40S in view, and the same for all.
TILE_S = 0.2e-6  # to fill and drain a tile's pipeline: one trip to memory, some hundred cycles
STORE = 2.5  # a byte of y costs as much as so many fetched: by way of shared memory, and not overlapped
POWER_S = 1e-3  # how long a product has run when the power limit has lowered the clock halfway


@dataclass(frozen=True)
class GemmShape(Shape):
    """`batch` products m×k · k×n; bits an element of x, w and y; the dtype that computes.

    `turns` is how many weights are used in turn, by a model's layers or by a benchmark: between two uses of
    one, all of them must fit in the L2 for it to stay there. `rest` are the columns of n that are
    not the widest product's, where it is several of the same x.
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
        """Of x, w and y."""
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
    """Tiles of one size: in waves over the multiprocessors `even` as if they could be cut and `whole` as not.

    A tile takes `step` seconds for each element of k, and `ends` seconds before and after them.
    """

    even: Number
    whole: Number
    step: Number
    ends: Number

    def busy(self, depth: Number) -> Number:
        """Seconds of a tile along so much of k."""
        return self.step * depth + self.ends


def clock_share(busy: Number, shape: GemmShape) -> Number:
    """Share of the way to the lowest clock: several products as one heat no more than the widest alone."""
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

    rate: float = parameter(0.85, 0.3, 1, "", "share of the matrix peak that full tiles reach for a while")
    sustained: float = parameter(0.87, 0.5, 1, "", "share of that rate which the power limit allows for long")
    bandwidth: float = parameter(0.8, 0.3, 1, "", "share of the memory bandwidth that is reached")
    feed: float = parameter(0.4, 0.02, 3, "B", "that a multiprocessor fetches while it could do an fp32 FLOP")
    tail: float = parameter(0.2, 0, 1, "", "share of the last wave's empty places that is lost")
    resident: float = parameter(0.4, 0.05, 1.5, "", "share of the L2 that keeps operands until the next use")
    split_us: float = parameter(3, 0.1, 20, "µs", "to gather the pieces where k is cut")
    launch_us: float = parameter(2.4, 0.2, 20, "µs", "of an empty call")
    step_ns: float = parameter(80, 1, 500, "ns", "more of a tile for each 64 elements of k")

    tiles: ClassVar[tuple[tuple[int, int], ...]] = TILES
    splits: ClassVar[tuple[int, ...]] = SPLITS
    tile_s: ClassVar[float] = TILE_S

    @staticmethod
    def beside(xp: Namespace, tiles: Number, memory: Number) -> Number:
        """Seconds of both, which overlap."""
        return overlap_time(xp, tiles, memory)

    def seconds(self, device: Device, shape: GemmShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call; HardwareError for no number of multiprocessors."""
        busy = self.busy(device, shape, xp)
        slowed = 1 + (1 / self.sustained - 1) * clock_share(busy, shape)
        return busy * slowed + self.launch_us * 1e-6

    def moved(self, travel: KernelTransfer) -> dict[str, float]:
        """A slower unit needs less power, and fewer rows to be busy."""
        values, slower = super().moved(travel), travel.slower
        least = TILES[0][0] * slower * values["rate"] / self.rate
        return {**values, "sustained": values["sustained"] / slower, "least": least}

    @classmethod
    def elsewhere(cls) -> type[Kernel]:
        """Tiles of fewer rows too."""
        return SmallTileGemm

    def busy(self, device: Device, shape: GemmShape, xp: Namespace) -> Number:
        """Seconds between launch and end at a clock that holds, by the fastest choice of tile and split."""
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
        """Tiles of so many rows and columns."""
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
        """Rows in whose time a matrix unit multiplies a tile of so many."""
        return rows

    def waves(self, tile: GemmTile, split: int, xp: Namespace) -> Number:
        """Waves of tiles where k is cut into so many pieces."""
        even = tile.even * split
        lost = xp.minimum(xp.ceil(tile.whole * split) - even, 1)
        return xp.maximum(even + self.tail * lost, 1)

    def memory(self, device: Device, shape: GemmShape) -> Number:
        """Seconds that the memory takes for what is not in the L2."""
        x, w, y = shape.bytes
        both, kept = x + y, self.resident * (device.l2_bytes or 0)
        moved = w * cache_miss_share(w * shape.turns + both, kept) + both * cache_miss_share(w + both, kept)
        return moved / (device.memory_Bps * self.bandwidth)


@dataclass(frozen=True)
class TransferGemm(GemmKernel):
    """On another chip than was measured: the power limit lowers the matrix rate there, and nothing else.

    Memory-bound products lose nothing to it, so that a higher matrix rate never makes a product slower.
    Compute-bound ones take as long as by `Gemm`.
    """

    def seconds(self, device: Device, shape: GemmShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call; HardwareError for no number of multiprocessors."""
        busy = self.busy(device, shape, xp)
        limited = self.limited().busy(device, shape, xp)
        return busy + (limited - busy) * clock_share(busy, shape) + self.launch_us * 1e-6

    def limited(self) -> TransferGemm:
        """At the rate that is allowed for long."""
        return replace(self, rate=self.rate * self.sustained)


@dataclass(frozen=True)
class SmallTileGemm(TransferGemm):
    """The same with tiles of fewer rows, which pay where the matrix unit is slow beside the memory.

    H20 reads a weight in the time that it multiplies it with 37 rows, H100 with 295. Where the kernel was
    fitted they gain nothing: none takes less than the lowest does there.
    """

    least: float = parameter(64, 1, 64, "rows", "in whose time the lowest tile is multiplied")

    tiles: ClassVar[tuple[tuple[int, int], ...]] = ((16, 64), (32, 64), *TILES)

    def multiplied(self, rows: int, xp: Namespace) -> Number:
        """Rows in whose time a matrix unit multiplies a tile of so many, the least at least."""
        return xp.maximum(rows, self.least)

    def limited(self) -> SmallTileGemm:
        """At the rate that is allowed for long, at which the lowest tile takes no longer."""
        return replace(self, rate=self.rate * self.sustained, least=self.least * self.sustained)


@families("gemm_fp8_block")
@dataclass(frozen=True)
class BlockGemm(GemmKernel):
    """A product with a scale for each 128 elements of k, as DeepGEMM does it (csrc/jit_kernels/heuristics).

    Its tiles get as narrow as 16 columns where there are few, and k is never cut.
    """

    tiles: ClassVar[tuple[tuple[int, int], ...]] = (
        *((64, 16), (64, 32), (64, 64), (64, 128)),
        *((128, 64), (128, 128)),
    )
    splits: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def elsewhere(cls) -> type[Kernel]:
        """Its own tiles."""
        return TransferBlockGemm


@dataclass(frozen=True)
class TransferBlockGemm(TransferGemm, BlockGemm):
    """The same on another chip."""


@kernel_call("attention_scores", "attention_mix", "gemm")
def product(row: Row) -> Call:
    """A product, or several of the same x as one wider one."""
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
    batched = row.kind == "gemm" and first.batch != 1  # by a weight for each head, as absorption is
    own = ("bmm_fp8" if known[0].startswith("gemm_fp8") else "bmm_bf16",) if batched else ()
    return Call((*own, *known), shape)


def _families(computes: DType, weights: DType) -> tuple[str, ...]:
    """Kernels for this type of arithmetic and of weights; others for 16 bits are the nearest of all else."""
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
    """A matrix product on a GPU of AMD's for data centres."""

    tiles: ClassVar[tuple[tuple[int, int], ...]] = (
        *((16, 64), (16, 128), (32, 64), (32, 128), (64, 64)),
        *((64, 128), (128, 128), (128, 256), (256, 256)),
    )
    tile_s: ClassVar[float] = 0.5e-6  # set once with the rows of MI300X and MI355X in view

    @classmethod
    def elsewhere(cls) -> type[Kernel]:
        """Its own tiles."""
        return TransferCdnaGemm

    @staticmethod
    def beside(xp: Namespace, tiles: Number, memory: Number) -> Number:
        """Seconds of both: two equal ones take 1.4 times as long as either."""
        return xp.hypot(tiles, memory)


@dataclass(frozen=True)
class TransferCdnaGemm(TransferGemm, CdnaGemm):
    """The same on another chip."""


families("quantize_fp8", "quantize_fp8_block", "quantize_nvfp4", "quantize_int8")(StreamKernel)


# Quantization of x


@kernel_call("quantize")
def quantize(row: Row) -> Call:
    """All that is read and written, in rows that have a scale or more each."""
    known = families_of(row.shape.dtype, static=getattr(row.node.op, "static", False))
    return Call(known, StreamShape(rows_of(row.shape), row.read + row.write))


def families_of(to: DType, *, static: bool = False) -> tuple[str, ...]:
    """Kernels that narrow to this type, the nearest first; to 8 bits by known scales is another one."""
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
