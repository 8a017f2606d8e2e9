"""A mixture of experts on one rank, as the sum of what its kernels take.

Rows are gathered by expert, multiplied by gate and up, activated, multiplied by down, and added up by token.
A product reads the weights of the experts that are touched, which for few rows is all that counts, and
multiplies tiles of rows, the last of each expert not full: low tiles where experts have few rows, as engines
choose by the number of tokens, else high ones. A low one takes no less time than its columns need to arrive.
What is shorter of reading and multiplying is not hidden whole, and a block takes its time to walk down k
however few there are. Between the products rows go through memory; where other ranks hold experts, their
rows cost kernels that walk over all rows something as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llmir.dim import Number
from llmir.hw import Device

from .base import Array, Kernel, Shape, choice, families, longer, multiprocessors, parameter

COLUMNS = 128  # of a tile: what CUTLASS and Triton take for wide weights
LOW = 16  # rows of a low tile: the least that Triton's and CUTLASS's matrix instructions take
FP32 = 4  # bytes of a token's weight for one expert


@dataclass(frozen=True)
class GroupedShape(Shape):
    """`rows` rows in all, each times the n×k weight of one of `experts` that are touched.

    `away` rows belong to experts of other ranks. Bits an element of rows, weights and results.
    """

    rows: Number
    experts: Number
    n: Number
    k: Number
    away: Number = 0
    x_bits: float = 16
    w_bits: float = 16
    y_bits: float = 16
    dtype: str = "bf16"

    @property
    def bytes(self) -> Number:
        """Rows, touched weights and results once."""
        rows = self.rows * (self.k * self.x_bits + self.n * self.y_bits)
        return (rows + self.experts * self.n * self.k * self.w_bits) / 8


@dataclass(frozen=True)
class MoeShape(Shape):
    """`tokens` before they are copied `top_k` times; of the copies, `rows` touch `experts` of this rank.

    Experts have `hidden` inputs and `inter` (of this rank) inner values, gated. Bits as of `GroupedShape`.
    """

    tokens: Number
    top_k: Number
    rows: Number
    experts: Number
    hidden: Number
    inter: Number
    x_bits: float = 16
    w_bits: float = 16
    dtype: str = "bf16"

    @property
    def away(self) -> Number:
        """Rows that belong to experts of other ranks."""
        return np.maximum(self.tokens * self.top_k - self.rows, 0)

    @property
    def products(self) -> tuple[GroupedShape, GroupedShape]:
        """Gate and up, and down."""
        up, down = (
            GroupedShape(self.rows, self.experts, n, k, self.away, self.x_bits, self.w_bits, dtype=self.dtype)
            for n, k in ((2 * self.inter, self.hidden), (self.inter * 0 + self.hidden, self.inter))
        )
        return up, down


@families(
    *("moe_bf16", "moe_fp8", "moe_fp8_block", "moe_nvfp4"),
    *("moe_mxfp4", "moe_mxfp4_weights", "moe_int4_weights"),
)
@dataclass(frozen=True)
class Moe(Kernel):
    """The kernels of a layer's experts: each op of a program has its time, and `seconds` is their sum."""

    # Autotuning leaves some shapes with a kernel that takes up to seven times as long as their neighbours'.
    starts: ClassVar[int] = 5
    loss: ClassVar[str] = "cauchy"

    matrix: float = parameter(0.6, 0.02, 1, "", "share of the matrix peak that products reach")
    fill: float = parameter(100, 1, 3000, "k", "elements of k in whose time a tile begins and ends")
    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that weights reach")
    exposed: float = parameter(0.4, 0.01, 1, "", "share of the shorter of multiplying and reading seen")
    walk: float = parameter(0.3, 0.01, 10, "", "time of a block to read its weights, to its fair share")
    between: float = parameter(0.6, 0.02, 1, "", "share of the memory bandwidth for rows between products")
    foreign: float = parameter(0.5, 0.001, 1, "", "cost of a row of another rank, to that of an own row")
    strays: float = parameter(0.02, 0.001, 1, "", "share of them that is even multiplied")
    launch_us: float = parameter(4, 0.3, 25, "µs", "of each kernel")
    fetch: float = parameter(40, 4, 300, "rows", "multiplied while the columns of a tile arrive")
    few: float = choice(16, (16, 8, 64), "rows", "of an expert up to which tiles are low")
    tile_rows: float = choice(128, (128, 64, 256), "", "rows of a high tile")

    def seconds(self, device: Device, shape: MoeShape) -> Number:
        """Time of a layer from gathering to summing, without its router."""
        up, down = shape.products
        return (
            self.dispatch(device, shape)
            + self.product(device, up)
            + self.activation(device, shape)
            + self.product(device, down)
            + self.combine(device, shape)
        )

    def product(self, device: Device, shape: GroupedShape) -> Number:
        """Time of one grouped product."""
        rows = self.padded(shape) + self.strays * shape.away
        wide = np.ceil(shape.n / COLUMNS) * COLUMNS
        rate = device.matrix_peak(shape.dtype)[0] * self.matrix
        multiply = 2 * rows * wide * (shape.k + self.fill) / rate
        bandwidth = device.memory_Bps * self.bandwidth
        read = shape.bytes / bandwidth
        walk = self.walk * shape.k * COLUMNS * shape.w_bits / 8 / (bandwidth / multiprocessors(device))
        busy = np.maximum(multiply, read) + self.exposed * np.minimum(multiply, read) + walk
        return busy + self.launch_us * 1e-6

    def padded(self, shape: GroupedShape) -> Array:
        """Rows in whose time those of a product are multiplied, the empty ones of their tiles included.

        Engines choose tiles by tokens, whose rows they do not count by rank.
        """
        each, seen = (np.maximum(rows / shape.experts, 1) for rows in (shape.rows, shape.rows + shape.away))
        high, low = (np.ceil(each / rows) * longer(rows, self.fetch) for rows in (self.tile_rows, LOW))
        return np.asarray(np.where(seen <= self.few, np.minimum(low, high), high) * shape.experts)

    def dispatch(self, device: Device, shape: MoeShape) -> Number:
        """Time to sort rows by expert and copy them together."""
        moved = (shape.tokens + self.walked(shape)) * shape.hidden * shape.x_bits / 8
        return self.streamed(device, moved)

    def activation(self, device: Device, shape: MoeShape) -> Number:
        """Time of silu(gate)·up."""
        return self.streamed(device, self.walked(shape) * 3 * shape.inter * 2)

    def combine(self, device: Device, shape: MoeShape) -> Number:
        """Time to add up each token's rows, each times its weight."""
        rows = self.walked(shape)
        return self.streamed(device, (shape.tokens + rows) * shape.hidden * 2 + rows * FP32)

    def walked(self, shape: MoeShape) -> Number:
        """Rows that cost something between the products."""
        return shape.rows + self.foreign * shape.away

    def streamed(self, device: Device, moved: Number) -> Number:
        """Time of a kernel that moves so many bytes of rows."""
        return self.launch_us * 1e-6 + moved / (device.memory_Bps * self.between)
