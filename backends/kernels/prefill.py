"""Attention of many new tokens, tile by tile, as FlashAttention does it (arXiv:2307.08691, section 3.3).

A block holds a tile of queries and walks over the keys that the last of them sees, one tile of scores after
another: two products, and the exponentials between them, which overlap. Before and after it fetches its
queries and stores its output, which nothing hides when blocks are short. They are spread over the
multiprocessors; the longest bounds the time from below, and some of it is left over when the rest is done.
Tiles are as high as is fastest, and the last is no higher than its rows: kernels are built in more heights
than are told apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import inf
from typing import ClassVar

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .attention import AttentionShape, seen, shape
from .base import Kernel, choice, families, longer, multiprocessors, parameter
from .call import Call, prices

TILES = (64, 128)  # rows of queries that FlashAttention's and FlashInfer's tiles have
TILE_KEYS = 64  # keys in a tile; kernels take 32 to 128, which moves the padded edge by as little
HEAD_STEP = 32  # heads are padded to multiples of it: FlashAttention is built for 64, 96, 128, 192 and 256
SOFTMAX = 5  # vector FLOPs a pair, as the IR counts them


@families(
    "attention_prefill",
    "attention_encoder",
    "attention_prefill_fp32",
    "attention_prefill_kv8",
    "attention_prefill_fp8",
)
@dataclass(frozen=True)
class Prefill(Kernel):
    """Causal attention of new tokens over themselves and a cache."""

    group: ClassVar[str] = "prefill"

    matrix: float = parameter(
        0.7, 0.01, 2, "", "share of q's matrix peak that a multiprocessor reaches; above 1 if narrowed"
    )
    softmax: float = parameter(0.3, 0.002, 1, "", "share of the fp32 peak that exponentials and sums reach")
    bandwidth: float = parameter(
        0.6, 0.1, 2, "", "share of the memory bandwidth that q, keys, values reach; above 1 from an L2"
    )
    block_us: float = parameter(1.5, 0.02, 20, "µs", "to begin and end a tile of queries")
    alone: float = parameter(1.3, 0.2, 4, "", "time of the longest block, to that of its share of work")
    tail: float = parameter(0.5, 0.01, 3, "", "blocks' worth of time until the last has ended")
    widened: float = parameter(0, 0, 8, "", "16-bit values moved for each of a narrow cache, to widen it")
    launch_us: float = parameter(8, 0.5, 300, "µs", "of an empty call")
    packs: float = choice(
        0, (0, 1), "", "1 if a tile holds the query heads of a group, 0 if one head", usual=True
    )
    masked: float = parameter(
        0, 0, 1, "", "of the keys outside a window, those that are multiplied, and masked"
    )

    def seconds(self, device: Device, shape: AttentionShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call; HardwareError for no number of multiprocessors."""
        widened = 2 * self.widened * (shape.kv_bits < shape.q_bits)
        moved = shape.rows_bytes + shape.kv_elements(xp) * (shape.kv_bits / 8 + widened)
        memory = moved / (device.memory_Bps * self.bandwidth)
        busy = reduce(xp.minimum, (self.busy(device, shape, rows, xp) for rows in TILES))
        return self.launch_us * 1e-6 + busy + memory

    def busy(self, device: Device, shape: AttentionShape, rows: int, xp: Namespace) -> Number:
        """Seconds of all tiles of so many rows, over all multiprocessors."""
        share = 1 / multiprocessors(device)
        together = 1 + self.packs * (shape.group - 1)  # query heads in a tile
        positions = xp.maximum(rows / together, 1)
        fits = xp.maximum(together / rows, 1)  # tiles for one position
        tiles = xp.maximum(shape.new / positions, 1)
        steps = positions / TILE_KEYS * shape.causal
        before, most = shape.cached / TILE_KEYS, (shape.most + positions) / TILE_KEYS
        within, every = (seen(xp, tiles, before, limit, steps) for limit in (most, inf))
        walked = xp.maximum(within + self.masked * (every - within), tiles)
        end = before + tiles * steps
        inner = xp.minimum(end, most)
        longest = xp.maximum(inner + self.masked * (end - inner), 1)

        scores = rows * TILE_KEYS
        head = xp.ceil(shape.head / HEAD_STEP) * HEAD_STEP
        products = 4 * scores * head / (device.matrix_peak(shape.dtype)[0] * share * self.matrix)
        exponentials = SOFTMAX * scores / (device.vector_flops["fp32"] * share * self.softmax)
        tile, block = longer(xp, products, exponentials), self.block_us * 1e-6
        last = block + longest * tile
        heads = shape.batch * shape.kv_heads * (shape.group / together) * fits * share
        return xp.maximum(self.alone * last, heads * (tiles * block + walked * tile) + self.tail * last)


# By bits of q and of the cache, those for other types.
NARROW = {
    (8, 8): ("attention_prefill_fp8", "attention_prefill_kv8"),
    (16, 8): ("attention_prefill_kv8",),
    (32, 32): ("attention_prefill_fp32",),
}


def alone(shape: AttentionShape) -> AttentionShape | None:
    """The new tokens without those that they come after; None where they come after none, or see all."""
    return replace(shape, cached=0) if shape.causal and shape.cached != 0 else None


@prices("flash_attention", "block_sparse_attention")
def prefill(row: Row) -> Call:
    """Of any number of new tokens of each sequence; after others they take no less than as a prompt."""
    q, k, *_ = (t.dtype.bits for t in row.operands)
    given = shape(row)
    own = NARROW.get((q, k), ()) if given.causal else ("attention_encoder",)
    return prompt(given, own)


def prompt(given: AttentionShape, own: tuple[str, ...]) -> Call:
    """Of new tokens of a shape, by kernels of these families first."""
    return Call((*own, "attention_prefill"), given, less=alone(given))
