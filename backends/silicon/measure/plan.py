"""Which sizes to time: those of language models, as far as the machine does them in a blink."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product as each

import numpy as np

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import spelled

from .machine import PEAKS, Point, attention, product, stream

# (n, k) of weights, from a small model's to those of 70B; heads, key/value heads and their size of as many.
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
ROTARY = ((2, 64), (16, 64), (8, 128), (16, 256))  # heads, whose rows are rotated, and their size
# How many sizes are drawn in a hurry: of each dtype of products and attention, of each elementwise op.
SAMPLE = {"gemm": 32, "gemv": 10, "attention_prefill": 20, "attention_decode": 20, "elementwise": 12}
PATIENT = 3  # times as many otherwise
LARGE = 4  # caches that a tensor fills whose copy shows the memory's bandwidth
COLD = 2  # caches that operands used in turn fill


@dataclass(frozen=True)
class Facts:
    """What sizes are chosen by: rough FLOP/s and bytes/s, the bytes of the largest cache and of the memory.

    `dtypes` are those of products and attention, the first of them that of all else. Results are smaller
    than `fresh_bytes`, where a CPU's allocator begins to fetch fresh pages for each.
    """

    dtypes: Sequence[str]
    flops: float
    bandwidth: float
    cache_bytes: int
    memory_bytes: int
    fresh_bytes: float = math.inf

    def seconds(self, point: Point) -> float:
        """About how long it takes."""
        return point.flops / self.flops + point.bytes / self.bandwidth

    def allows(self, point: Point, longest_s: float) -> bool:
        """Whether a call is short enough, its operands fit a 16th of the memory, and its result is reused."""
        fits = point.bytes <= self.memory_bytes / 16 and point.result_bytes < self.fresh_bytes
        return fits and self.seconds(point) <= longest_s


def turns(facts: Facts, held: int, most: int = 2**31) -> int:
    """How many operands of `held` bytes to use in turn, so that each has left the cache meanwhile."""
    return max(2, min(most, -(-COLD * facts.cache_bytes // held)))


def plan(facts: Facts, budget_s: float, *, quick: bool = False, seed: int = 0) -> list[Point]:
    """The points to time in so many seconds: first those that show peaks, then some of each kind at random.

    So stopping early leaves even gaps. A call takes a 1000th of the time at most; `quick` draws a third as
    many.
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


def _products(facts: Facts) -> Iterator[Point]:
    for dtype, (n, k), m in each(facts.dtypes, WEIGHTS, ROWS):
        yield product(dtype, m, n, k, turns(facts, n * k * spelled(dtype).bits // 8))


def _attentions(facts: Facts) -> Iterator[Point]:
    for dtype, heads, batch in each(facts.dtypes, HEADS, BATCHES):
        yield from (attention(dtype, batch, new, new, heads) for new in NEW)
        yield from (attention(dtype, batch, 1, cached, heads) for cached in CACHED)


def _streams(facts: Facts) -> Iterator[Point]:
    dtype = facts.dtypes[0]
    for op, cols, rows in each(OPS, WIDTHS, TOKENS):
        yield stream(op, dtype, rows, cols)
    for (heads, head), tokens in each(ROTARY, TOKENS):
        yield stream("attn_rope", dtype, tokens * heads, head)


def _bandwidth(facts: Facts) -> Iterator[Point]:
    """Copies and sums of what no cache holds."""
    for op, times in each(PEAKS, (LARGE, 2 * LARGE)):
        rows = max(1, times * facts.cache_bytes // (1024 * spelled(facts.dtypes[0]).bits // 8))
        yield stream(op, facts.dtypes[0], rows, 1024)
