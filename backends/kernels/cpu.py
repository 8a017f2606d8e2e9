"""CPU kernels: matrix products, attention, and the engine CPU time on a machine without a GPU.

BLAS copies w into panels (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008)
and then multiplies a few rows of x at a time. Copies and products alternate, so their times add up. For one
row, w is streamed without a copy. The first values of each column of w are not prefetched.

PyTorch's attention gives each core a tile of queries of one head, which iterates over tiles of keys. Causal
attention stops at the tile of the last visible key (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
`CpuDeviceEngine` is the engine CPU time if one processor runs both the engine and the kernels.
"""

from __future__ import annotations

from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .attention import SOFTMAX, AttentionShape
from .base import Kernel, choice, families, multiprocessors, parameter
from .engine_cpu import EngineCpu, StepShape
from .gemm import GemmShape

# Queries per tile, from this number of new tokens, and keys per tile, in FlashAttentionKernel.cpp.
QUERIES = ((0, 32), (192, 64), (768, 256))
KEYS = 512


# A CPU uses `cpu_X` instead of family X.
@families("cpu_gemm_bf16", "cpu_gemm_fp32")
@dataclass(frozen=True)
class CpuGemm(Kernel):
    """A matrix product on a CPU.

    The peak and the memory bandwidth in the device file are those of all cores together.
    """

    rate: float = parameter(0.9, 0.05, 1, "", "share of the matrix peak that full tiles reach")
    bandwidth: float = parameter(0.7, 0.05, 1, "", "share of the memory bandwidth that a single row reaches")
    column_ns: float = parameter(50, 1, 500, "ns", "time of a core to start a column of w")
    packing: float = parameter(
        0.5, 0.02, 1, "", "share of the memory bandwidth at which w is packed for several rows"
    )
    results: float = parameter(0.5, 0.02, 1, "", "share of the memory bandwidth that x and y reach")
    tile_rows: float = choice(4, (1, 4, 8, 16), "", "rows of x that are multiplied together")
    launch_us: float = parameter(3, 0.1, 100, "µs", "time of an empty call")

    def seconds(self, device: Device, shape: GemmShape, xp: Namespace = ARRAYS) -> Number:
        x, w, y = (size / device.memory_Bps for size in shape.bytes)
        begin = shape.n * shape.batch * self.column_ns * 1e-9 / multiprocessors(device)
        tiles = xp.ceil(shape.m / self.tile_rows) * self.tile_rows
        flops = 2.0 * tiles * shape.n * shape.k * shape.batch
        many = w / self.packing + flops / (device.matrix_peak(shape.dtype)[0] * self.rate)
        alone = w / self.bandwidth
        busy = begin + xp.where(shape.m > 1, xp.maximum(many, alone), alone) + (x + y) / self.results
        return self.launch_us * 1e-6 + busy


@families(
    *("cpu_attention_prefill", "cpu_attention_prefill_fp32"),
    *("cpu_attention_decode", "cpu_attention_decode_fp32"),
)
@dataclass(frozen=True)
class CpuAttention(Kernel):
    """Attention on a CPU, for prefill and decode. Each query head loads its keys and values separately."""

    matrix: float = parameter(0.8, 0.02, 1, "", "share of the matrix peak that products reach")
    softmax: float = parameter(0.2, 0.005, 1, "", "share of the fp32 peak that exponentials and sums reach")
    fetch_ns: float = parameter(
        0.2, 0.001, 20, "ns", "time of a core to load an element of a key and of a value"
    )
    bandwidth: float = parameter(0.7, 0.05, 1, "", "share of the memory bandwidth that keys and values reach")
    block_us: float = parameter(1, 0.01, 50, "µs", "time to start and end a tile of queries")
    launch_us: float = parameter(8, 0.5, 100, "µs", "time of an empty call")

    def seconds(self, device: Device, shape: AttentionShape, xp: Namespace = ARRAYS) -> Number:
        cores = multiprocessors(device)
        rows: Number = 0
        for least, tile in QUERIES:
            rows = xp.where(shape.new >= least, tile, rows)
        tiles = xp.ceil(shape.new / rows)
        rows = xp.minimum(rows, shape.new)
        together = KEYS / rows  # tiles of queries with the same last tile of keys
        steps = xp.where(
            shape.cached > 0, 0, xp.floor(tiles / together)
        )  # with cached tokens, no tile is skipped
        keys = together * KEYS * steps * (steps + 1) / 2 + (tiles - together * steps) * shape.keys(xp)

        multiply = 4 * shape.head / (device.matrix_peak(shape.dtype)[0] * self.matrix)
        exponentials = SOFTMAX / (device.vector_flops["fp32"] * self.softmax)
        pair, key = (multiply + exponentials) * cores, self.fetch_ns * 1e-9 * shape.head
        head = tiles * self.block_us * 1e-6 + keys * (rows * pair + key)  # the rate of one core
        heads = shape.batch * shape.kv_heads * shape.group
        waves = xp.ceil(heads * tiles / cores) / tiles
        moved = shape.rows_bytes + shape.kv_elements(xp) * shape.kv_bits / 8
        memory = moved / (device.memory_Bps * self.bandwidth)
        return self.launch_us * 1e-6 + waves * head + memory


@families("cpu_host")
@dataclass(frozen=True)
class CpuDeviceEngine(EngineCpu):
    """The engine CPU time if the CPU also runs the kernels: its work is added to their time."""

    def kernel_time(self, busy: Number, kernels: Number, xp: Namespace, steps: Number = 1.0) -> Number:
        return busy + kernels * self.kernel_us * 1e-6

    def step(self, shape: StepShape, xp: Namespace) -> Number:
        busy = self.kernel_time(shape.busy, shape.kernels, xp)
        return busy + self.skew_time(shape.late) + self.cpu_time(shape.sequences, shape.steps)
