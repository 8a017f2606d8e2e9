"""The sizes to time on this machine, and the CSV files that result.

Order of the file: `MeasurePoint`, one call to time, and the interface `Machine`. `measurement_plan` selects
sizes of language models for a time budget. `record` and `write` time the points until the budget ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np

from llmir.backends.export.files import write as write_file
from llmir.backends.export.json import to_csv
from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import parse_dtype

# Points

# The part of `framework` before the dash is the name of the engine.
FRAMEWORK = "eager"
# Number of tensors that elementwise ops read and write. rope does not count its table, which all heads share.
STREAMED = {"add": 3, "mlp_act": 3, "rms_norm": 2, "softmax": 2, "attn_rope": 2, "copy": 2, "read": 1}


@dataclass(frozen=True)
class MeasurePoint:
    """One call to time: the CSV file that its row belongs to, and the cells of the row."""

    file: str
    cells: Mapping[str, str | int]

    @property
    def size(self) -> int:
        """Bytes per element."""
        return parse_dtype(str(self.cells["dtype"])).bits // 8

    def __getitem__(self, name: str) -> int:
        return int(self.cells[name])

    @property
    def flops(self) -> float:
        """FLOPs of its matrix products; attention counts as if it had no causal mask."""
        if self.file == "gemm":
            return 2.0 * self["m"] * self["n"] * self["k"]
        if self.file == "elementwise":
            return 0.0
        return 4.0 * self["batch"] * self["num_heads"] * self["head_dim"] * self["q_len"] * self["context"]

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        if self.file == "gemm":
            return self.size * self["m"] * self["n"]
        if self.file == "elementwise":
            return self.size * self["rows"] * self["cols"]
        return self.size * self["batch"] * self["q_len"] * self["num_heads"] * self["head_dim"]

    @property
    def bytes(self) -> int:
        """Bytes of the operands."""
        if self.file == "gemm":
            m, n, k = self["m"], self["n"], self["k"]
            return self.size * (m * k + k * n + m * n)
        if self.file == "elementwise":
            return self["bytes_moved_ideal"]
        cache = self["context"] * self["num_kv_heads"]
        return 2 * self.size * self["batch"] * self["head_dim"] * (self["q_len"] * self["num_heads"] + cache)


def matmul_point(dtype: str, m: int, n: int, k: int, turns: int) -> MeasurePoint:
    """A product y[m,n] = x[m,k]·w[k,n] with `turns` weights in rotation."""
    return MeasurePoint("gemm", {"dtype": dtype, "m": m, "n": n, "k": k, "turns": turns})


def attention(dtype: str, batch: int, new: int, context: int, heads: tuple[int, int, int]) -> MeasurePoint:
    """Causal attention. `heads` are query heads, key/value heads and head size."""
    sizes = dict(zip(("num_heads", "num_kv_heads", "head_dim"), heads, strict=True))
    step = {"batch": batch, "q_len": new, "context": context}
    file = "attention_decode" if new == 1 else "attention_prefill"
    return MeasurePoint(file, {"dtype": dtype, "kv_dtype": dtype, **step, **sizes, "window": 0})


def stream(op: str, dtype: str, rows: int, cols: int) -> MeasurePoint:
    """An elementwise op or a norm."""
    moved = STREAMED[op] * rows * cols * parse_dtype(dtype).bits // 8
    sizes = {"rows": rows, "cols": cols, "bytes_moved_ideal": moved}
    return MeasurePoint("elementwise", {"dtype": dtype, "op": op, **sizes})


# Elementwise ops that measure the memory bandwidth and are not used in fits.
PEAKS = ("copy", "read")


class Machine(Protocol):
    """An interface that times points."""

    def seconds(self, point: MeasurePoint) -> float | None:
        """Median seconds of several calls after warm-up; None if the machine does not support the point."""


# Plan of sizes

# (n, k) of weights of models up to 70B; query heads, key/value heads and head size of several models.
WEIGHTS = (
    *((512, 512), (1024, 1024), (2816, 1024), (512, 2048), (1024, 2816), (2048, 2048), (256, 1024)),
    *((2816, 512), (32000, 512), (32000, 1024)),
    *((4096, 1024), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (8192, 8192), (8192, 28672)),
)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
HEADS = ((8, 8, 64), (16, 4, 64), (8, 2, 128), (14, 2, 64), (32, 8, 128), (32, 32, 128), (64, 8, 128))
NEW = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHED = (64, 256, 1024, 2048, 4096, 16384)
BATCHES = (1, 4, 16, 64)
WIDTHS = (512, 1024, 2816, 4096, 8192, 14336)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
OPS = ("add", "rms_norm", "softmax", "mlp_act")
ROTARY = ((2, 64), (16, 64), (8, 128), (16, 256))  # heads and head size of rope
# Number of sizes in a quick measurement: per dtype of products and attention, and per elementwise op.
SAMPLE = {"gemm": 32, "gemv": 10, "attention_prefill": 20, "attention_decode": 20, "elementwise": 12}
PATIENT = 3  # factor for other measurements
LARGE = 4  # size of a tensor in caches, to measure the memory bandwidth by a copy
COLD = 2  # size in caches of all operands that are used in turn


@dataclass(frozen=True)
class MachineFacts:
    """Rough rates of a machine, by which sizes are chosen.

    - FLOP/s and bytes/s, and the sizes of the largest cache and of the memory in bytes.
    - `dtypes`: Dtypes of products and attention; the first is also that of other ops.
    - `fresh_bytes`: Results are smaller than this size, because the allocator of a CPU maps new pages for
      larger ones.
    """

    dtypes: Sequence[str]
    flops: float
    bandwidth: float
    cache_bytes: int
    memory_bytes: int
    fresh_bytes: float = math.inf

    def seconds(self, point: MeasurePoint) -> float:
        """Approximate seconds of a point."""
        return point.flops / self.flops + point.bytes / self.bandwidth

    def allows(self, point: MeasurePoint, longest_s: float) -> bool:
        """Whether a call is short enough, its operands take at most a 16th of the memory, and the memory of
        its result is reused.
        """
        fits = point.bytes <= self.memory_bytes / 16 and point.result_bytes < self.fresh_bytes
        return fits and self.seconds(point) <= longest_s


def operand_count(facts: MachineFacts, held: int, most: int = 2**31) -> int:
    """Number of operands of `held` bytes to use in rotation, so that each has left the cache before its next
    use.
    """
    return max(2, min(most, -(-COLD * facts.cache_bytes // held)))


def measurement_plan(
    facts: MachineFacts, budget_s: float, *, quick: bool = False, seed: int = 0
) -> list[MeasurePoint]:
    """The points to time in `budget_s` seconds: first the points that measure peaks, and then random points
    of each kind.

    Because the order is random, the points that are measured are evenly spread even if time runs out. A call
    takes at most a 1000th of the time. `quick` selects a third of the points.
    """
    points = [*_products(facts), *_attentions(facts), *_streams(facts)]
    random, drawn = np.random.default_rng(seed), dict[tuple[str, str | int], int]()
    kept = []
    for point in (points[i] for i in random.permutation(len(points))):
        file = "gemv" if point.cells.get("m") == 1 else point.file
        kind = file, point.cells.get("op", point.cells["dtype"])
        most = SAMPLE[kind[0]] * (1 if quick else PATIENT)
        if drawn.get(kind, 0) < most and facts.allows(point, budget_s / 1000):
            drawn[kind] = drawn.get(kind, 0) + 1
            kept.append(point)
    products = ([p for p in kept if (p.file, p.cells["dtype"]) == ("gemm", dtype)] for dtype in facts.dtypes)
    largest = [max(those, key=lambda p: p.flops) for those in products if those]
    return [*_bandwidth(facts), *largest, *(p for p in kept if p not in largest)]


def _products(facts: MachineFacts) -> Iterator[MeasurePoint]:
    for dtype, (n, k), m in product(facts.dtypes, WEIGHTS, ROWS):
        yield matmul_point(dtype, m, n, k, operand_count(facts, n * k * parse_dtype(dtype).bits // 8))


def _attentions(facts: MachineFacts) -> Iterator[MeasurePoint]:
    for dtype, heads, batch in product(facts.dtypes, HEADS, BATCHES):
        yield from (attention(dtype, batch, new, new, heads) for new in NEW)
        yield from (attention(dtype, batch, 1, cached, heads) for cached in CACHED)


def _streams(facts: MachineFacts) -> Iterator[MeasurePoint]:
    dtype = facts.dtypes[0]
    for op, cols, rows in product(OPS, WIDTHS, TOKENS):
        yield stream(op, dtype, rows, cols)
    for (heads, head), tokens in product(ROTARY, TOKENS):
        yield stream("attn_rope", dtype, tokens * heads, head)


def _bandwidth(facts: MachineFacts) -> Iterator[MeasurePoint]:
    """Copies and sums of tensors that do not fit in a cache."""
    for op, times in product(PEAKS, (LARGE, 2 * LARGE)):
        rows = max(1, times * facts.cache_bytes // (1024 * parse_dtype(facts.dtypes[0]).bits // 8))
        yield stream(op, facts.dtypes[0], rows, 1024)


# Timing and files

SOURCE = "llmir calibrate --run"


def record(
    points: Sequence[MeasurePoint],
    machine: Machine,
    budget_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[int, MeasurePoint], None] = lambda *_: None,
) -> list[tuple[MeasurePoint, float]]:
    """Time the points within `budget_s` seconds; unsupported points are omitted."""
    end, found = clock() + budget_s, []
    for n, point in enumerate(points):
        if clock() >= end:
            break
        tell(n, point)
        if (seconds := machine.seconds(point)) is not None:
            found.append((point, seconds))
    return found


def write(
    folder: Path, timed: Sequence[tuple[MeasurePoint, float]], gpu: str, framework: str, kernel: str = "torch"
) -> list[Path]:
    """Write a CSV file for each kind of point, rows in order of size; return the paths."""
    paths = []
    for file in dict.fromkeys(point.file for point, _ in timed):
        rows: list[dict[str, object]] = []
        for point, seconds in timed:
            if point.file == file:
                by = {"framework": framework, "kernel": kernel, "source": SOURCE}
                rows.append({"gpu": gpu, **point.cells, "latency_us": f"{seconds * 1e6:.4g}", **by})
        rows.sort(key=lambda row: [(str(v), 0) if isinstance(v, str) else ("", v) for v in row.values()])
        paths.append(folder / f"{file}.csv")
        write_file(paths[-1], to_csv(rows))
    return paths
