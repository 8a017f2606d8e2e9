"""Attention kernels: their shape, prefill (many new tokens) and decode (few new tokens and a cache).

Prefill follows FlashAttention (arXiv:2307.08691, section 3.3). A block contains a tile of queries and
iterates over the visible keys, one tile of scores at a time. The two products and the exponentials overlap.
Loading queries and storing the output do not overlap with them. Blocks are distributed over the
multiprocessors, and the time is at least that of the longest block. The fastest tile height is used, and the
last tile has no more rows than remain.

Decode follows Flash-Decoding. A block computes the queries of one head group over a piece of the keys. If
there are fewer sequences and heads than multiprocessors, keys are split into pieces that a second kernel
combines. One block reaches a limited bandwidth; all blocks together reach a share of the peak. TensorRT-LLM's
XQA supports at most 32 query heads per block; a second kernel on the vector units handles single heads and
larger groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import inf
from typing import Any, ClassVar

import numpy as np

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.core.tensor import Tensor
from llmir.ir.sizes.binding import Binding, UnevenBinding

from .base import (
    DRAFTS,
    Call,
    Kernel,
    KernelTransfer,
    Shape,
    bits,
    choice,
    families,
    kernel_call,
    multiprocessors,
    overlap_time,
    parameter,
)

# Shape


@dataclass(frozen=True)
class AttentionShape(Shape):
    """Attention of `new` tokens of each of `batch` sequences with `cached` tokens, on one rank.

    - `kv_heads`, `group`, `head`: Heads of keys and values, query heads for each of them, and the head size.
    - `window`: The largest number of keys that a query attends to, including its own.
    - `causal`: 1 if a query attends to the cache and to new tokens up to itself. 0 if it attends to all keys,
      which then count as `cached`.
    - `q_bits`, `kv_bits`, `out_bits`: Bits per element of q, of keys and values, and of the output.
    """

    batch: Number
    new: Number
    cached: Number
    kv_heads: Number
    group: Number
    head: Number
    window: Number = np.inf
    q_bits: float = 16
    kv_bits: float = 16
    out_bits: float = 16
    dtype: str = "bf16"
    causal: Number = 1

    @property
    def most(self) -> Number:
        """The largest number of keys that a query attends to."""
        return self.window

    def keys(self, xp: Namespace) -> Number:
        """Keys of one sequence to which at least one query attends."""
        return xp.minimum(self.cached + self.new * self.causal, self.window + self.new - 1)

    def uneven(self, at: UnevenBinding) -> dict[str, Number]:
        """The window, replaced by the mean number of keys that are visible to the sequences."""
        return {"window": at.capped(self.cached, self.window - 1) + 1} if self.window < np.inf else {}

    @property
    def rows_bytes(self) -> Number:
        """Bytes of q and of the output."""
        values = self.batch * self.new * self.kv_heads * self.group * self.head
        return values * (self.q_bits + self.out_bits) / 8

    def kv_elements(self, xp: Namespace) -> Number:
        """Elements of keys and values to which at least one query attends."""
        return 2 * self.batch * self.kv_heads * self.keys(xp) * self.head


TINY, MANY = 1e-300, 1e15  # replace a step of 0 (all rows see equally many keys) and an infinite window


def visible_keys(xp: Namespace, rows: Number, before: Number, most: Number, step: Number) -> Number:
    """Sum of min(before + i·step, most) over i = 1 … rows: the keys of all rows, if each row attends to
    `step` more keys than the one before.

    >>> from llmir.base.array_namespace import SCALARS as xp
    >>> visible_keys(xp, 4, 0, np.inf, 1), visible_keys(xp, 4, 10, np.inf, 1), visible_keys(xp, 4, 0, 2, 1)
    (10.0, 50.0, 7.0)
    """
    until = xp.maximum((most - before) / xp.maximum(step, TINY), 0)
    growing = xp.minimum(xp.floor(xp.minimum(until, MANY)), rows)
    capped = (rows - growing) * xp.minimum(most, MANY)
    return growing * before + step * growing * (growing + 1) / 2 + capped


def has_cache(q: Tensor, k: Tensor) -> bool:
    """Whether keys may include cached tokens, in addition to the new ones."""
    return bool(k.shape[1] != q.shape[1])


def attention_shape(row: Row) -> AttentionShape:
    """The shape of a fused attention op.

    If keys and values have different head sizes, the shape has their mean.
    """
    q, k, v, *_ = row.operands
    batch, new, groups, group, head = q.shape
    mean = head if v.shape[-1] == head else Binding()(head + v.shape[-1]) / 2
    op: Any = row.node.op
    by = op.pattern
    return AttentionShape(
        batch=batch,
        new=new,
        cached=k.shape[1] - new * by.step,
        kv_heads=groups,
        group=group,
        head=mean,
        q_bits=q.dtype.bits,
        kv_bits=bits(k.dtype),
        out_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
        window=by.most,
        causal=by.step,
    )


# Prefill

TILES = (64, 128)  # queries per tile in FlashAttention and FlashInfer
TILE_KEYS = 64  # keys per tile; kernels use 32 to 128, which changes the padding little
HEAD_STEP = 32  # head sizes are padded to multiples: FlashAttention supports 64, 96, 128, 192 and 256
SOFTMAX = 5  # vector FLOPs per pair of query and key, as in the IR


@families(
    "attention_prefill",
    "attention_encoder",
    "attention_prefill_fp32",
    "attention_prefill_kv8",
    "attention_prefill_fp8",
)
@dataclass(frozen=True)
class PrefillAttention(Kernel):
    """Causal attention of new tokens, with or without a cache."""

    group: ClassVar[str] = "prefill"

    matrix: float = parameter(
        0.7, 0.01, 2, "", "share of the matrix peak for the dtype of q; above 1 if q is quantized"
    )
    softmax: float = parameter(0.3, 0.002, 1, "", "share of the fp32 peak that exponentials and sums reach")
    bandwidth: float = parameter(
        0.6, 0.1, 2, "", "share of the memory bandwidth for q, keys, values; above 1 with an L2"
    )
    block_us: float = parameter(1.5, 0.02, 20, "µs", "time to start and end a tile of queries")
    alone: float = parameter(1.3, 0.2, 4, "", "time of the longest block, relative to its share of the work")
    tail: float = parameter(0.5, 0.01, 3, "", "time until the last block ends, in blocks")
    widened: float = parameter(
        0, 0, 8, "", "16-bit values moved per value of an 8-bit cache, to dequantize it"
    )
    launch_us: float = parameter(8, 0.5, 300, "µs", "time of an empty call")
    packs: float = choice(
        0, (0, 1), "", "1 if a tile contains the query heads of a group, 0 if one head", usual=True
    )
    masked: float = parameter(
        0, 0, 1, "", "share of the keys outside a window that are multiplied and masked"
    )

    def seconds(self, device: Device, shape: AttentionShape, xp: Namespace = ARRAYS) -> Number:
        widened = 2 * self.widened * (shape.kv_bits < shape.q_bits)
        moved = shape.rows_bytes + shape.kv_elements(xp) * (shape.kv_bits / 8 + widened)
        memory = moved / (device.memory_Bps * self.bandwidth)
        busy = reduce(xp.minimum, (self.busy(device, shape, rows, xp) for rows in TILES))
        return self.launch_us * 1e-6 + busy + memory

    def busy(self, device: Device, shape: AttentionShape, rows: int, xp: Namespace) -> Number:
        """Seconds of all tiles with `rows` queries, over all multiprocessors."""
        share = 1 / multiprocessors(device)
        together = 1 + self.packs * (shape.group - 1)  # query heads per tile
        positions = xp.maximum(rows / together, 1)
        fits = xp.maximum(together / rows, 1)  # tiles per position
        tiles = xp.maximum(shape.new / positions, 1)
        steps = positions / TILE_KEYS * shape.causal
        before, most = shape.cached / TILE_KEYS, (shape.most + positions) / TILE_KEYS
        within, every = (visible_keys(xp, tiles, before, limit, steps) for limit in (most, inf))
        walked = xp.maximum(within + self.masked * (every - within), tiles)
        end = before + tiles * steps
        inner = xp.minimum(end, most)
        longest = xp.maximum(inner + self.masked * (end - inner), 1)

        scores = rows * TILE_KEYS
        head = xp.ceil(shape.head / HEAD_STEP) * HEAD_STEP
        products = 4 * scores * head / (device.matrix_peak(shape.dtype)[0] * share * self.matrix)
        exponentials = SOFTMAX * scores / (device.vector_flops["fp32"] * share * self.softmax)
        tile, block = overlap_time(xp, products, exponentials), self.block_us * 1e-6
        last = block + longest * tile
        heads = shape.batch * shape.kv_heads * (shape.group / together) * fits * share
        return xp.maximum(self.alone * last, heads * (tiles * block + walked * tile) + self.tail * last)


# Kernel families by bits of q and of the cache.
LOW_PRECISION_PREFILL = {
    (8, 8): ("attention_prefill_fp8", "attention_prefill_kv8"),
    (16, 8): ("attention_prefill_kv8",),
    (32, 32): ("attention_prefill_fp32",),
}


def without_context(shape: AttentionShape) -> AttentionShape | None:
    """The same shape without cached tokens; None if there are none, or if the attention is not causal."""
    return replace(shape, cached=0) if shape.causal and shape.cached != 0 else None


@kernel_call("flash_attention", "block_sparse_attention")
def prefill(row: Row) -> Call:
    """Attention of any number of new tokens. With a cache, the time is at least as long as without one."""
    q, k, *_ = (t.dtype.bits for t in row.operands)
    given = attention_shape(row)
    own = LOW_PRECISION_PREFILL.get((q, k), ()) if given.causal else ("attention_encoder",)
    return prefill_call(given, own)


def prefill_call(given: AttentionShape, own: tuple[str, ...]) -> Call:
    """The call for a shape, with the kernel families in `own` first."""
    return Call((*own, "attention_prefill"), given, contained=without_context(given))


# Decode

HEAD = 128  # head size up to which `block_us` is constant
ROWS = 128  # most queries per tile in FlashAttention and FlashInfer
LEAST_ROWS = 16  # rows of a matrix instruction
# Rates of the arithmetic. Measured decode rows have one new token and do not determine them; prefill on A100,
# H100 and B200 reaches higher shares.
MATRIX = 0.4  # share of the matrix peak
EXPONENTIALS = 0.2  # share of the fp32 peak
AGAIN = 0.1  # share of the keys that more tiles read from memory again: fits of MLA give 0.05 to 0.1
PACKED = 32  # query heads per block in TensorRT-LLM's XQA
# Bytes that memory moves in the time that the kernel for single heads needs per element of keys. Both fits to
# H100 give this value.
VECTOR_BYTES = 1.0
PIECE_KEYS = 256  # fewest keys of a piece; if fitted, 25 of 28 cases are between 193 and 271


@families("attention_decode", "attention_decode_fp32", "attention_decode_kv8")
@dataclass(frozen=True)
class DecodeAttention(Kernel):
    """Attention of one or a few new tokens over a cache."""

    group: ClassVar[str] = "decode"

    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that keys and values reach")
    alone: float = parameter(0.3, 0.01, 4, "", "time of a single block, relative to its share of the traffic")
    block_us: float = parameter(
        1.5, 0.05, 20, "µs", "time to start and end a block of heads up to 128; grows with the root above"
    )
    exposed: float = parameter(
        0.5, 0.01, 1, "", "share of the shorter of block starts and traffic that is not hidden"
    )
    combine_us: float = parameter(2, 0.01, 30, "µs", "time to combine pieces")
    pieces: float = parameter(16, 2, 256, "", "largest number of pieces of split keys")
    launch_us: float = parameter(8, 0.5, 40, "µs", "time of an empty call")
    lone: float = parameter(
        1, 0.05, 10, "", "time to start and end a block of one head, relative to that of a group"
    )
    lone_us: float = parameter(2, 0.01, 20, "µs", "time added per call of the kernel for single heads")
    packs: float = choice(
        1024, (1024, PACKED), "", "query heads per block; larger groups run head by head", usual=True
    )
    planned: float = parameter(
        0,
        0,
        1,
        "",
        "share of the keys outside a window that are split into pieces with empty blocks",
    )

    @staticmethod
    def supports(shape: AttentionShape) -> Any:
        """True for a few new tokens; true for any number of new tokens after cached tokens if the attention
        is causal, and otherwise for one new token.
        """
        causal = (shape.causal > 0) & ((shape.cached > 0) | (shape.new <= DRAFTS))
        return causal | (shape.new == 1)

    def seconds(self, device: Device, shape: AttentionShape, xp: Namespace = ARRAYS) -> Number:
        share = 1 / multiprocessors(device)
        together = xp.where(shape.group <= self.packs, shape.group, 1)
        single = xp.where(together == 1, self.singles, 0)  # 1 for the kernel for single heads
        queries = shape.new * together  # queries that see the keys of a head
        passes = xp.maximum(queries / ROWS, 1)
        heads = shape.batch * shape.kv_heads * shape.group / together
        seen, values = shape.keys(xp), shape.kv_elements(xp)
        keys = seen + self.planned * (shape.cached + shape.new * shape.causal - seen)
        possible = xp.maximum(xp.minimum(keys / PIECE_KEYS, self.pieces), 1)
        pieces = xp.minimum(xp.maximum(1 / (share * heads * passes), 1), possible)
        blocks, reading = heads * passes * pieces, heads * xp.maximum(pieces * seen / keys, 1)

        read = values * shape.group / together  # each head reads its keys separately
        used = single * read * shape.new * VECTOR_BYTES
        again = 1 + AGAIN * (passes - 1)
        cache = xp.maximum(values * shape.kv_bits / 8 / self.bandwidth * again, used) / device.memory_Bps
        rows = shape.rows_bytes / (device.memory_Bps * self.bandwidth)
        least = (1 - single) * read * self.row_s(device, shape) * LEAST_ROWS
        traffic = xp.maximum(cache + rows, least * xp.maximum(queries / LEAST_ROWS, 1))
        block = (
            self.block_us * 1e-6 * xp.maximum(shape.head / HEAD, 1) ** 0.5 * (1 + single * (self.lone - 1))
        )
        each = cache / reading + rows / (heads * passes)
        longest = block + xp.maximum(self.alone * each, least / reading) / share
        begun = blocks * block * share
        busy = xp.maximum(longest, xp.maximum(begun, traffic) + self.exposed * xp.minimum(begun, traffic))
        combine = self.combine_us * 1e-6 * (1 - 1 / possible)
        launch = (self.launch_us + self.lone_us * single) * 1e-6
        return launch + busy + combine

    @property
    def singles(self) -> int:
        """1 if the library has a separate kernel for single heads: if its blocks support few heads."""
        return int(self.packs <= PACKED)

    def transfer_parameters(self, travel: KernelTransfer) -> dict[str, float]:
        """The parameters on another device.

        A single block reaches the same bandwidth, relative to one multiprocessor's part of the bandwidth.
        """
        there, here = (d.memory_Bps / (d.multiprocessors or 1) for d in (travel.device, travel.home))
        values = super().transfer_parameters(travel)
        return {**values, "alone": values["alone"] * there / here}

    def row_s(self, device: Device, shape: AttentionShape) -> Number:
        """Seconds of the device to multiply one element of keys or values with a query."""
        product: float = 2 / (MATRIX * device.matrix_peak(shape.dtype)[0])
        exponential = SOFTMAX / (EXPONENTIALS * device.vector_flops["fp32"])
        return product + exponential / (2 * shape.head)


LOW_PRECISION_DECODE = {8: ("attention_decode_kv8",), 32: ("attention_decode_fp32",)}  # by bits of the cache


@kernel_call("flash_attention", "block_sparse_attention")
def decode(row: Row) -> Call | None:
    """Attention of new tokens over a cache. Several new tokens take at least as long as one token."""
    q, k, *_ = row.operands
    return decode_call(attention_shape(row)) if has_cache(q, k) else None


def decode_call(given: AttentionShape) -> Call:
    """The call for a shape."""
    return Call(
        (*LOW_PRECISION_DECODE.get(int(given.kv_bits), ()), "attention_decode"),
        given,
        contained=replace(given, new=1),
    )
