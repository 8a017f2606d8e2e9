"""Attention of few new tokens over a long cache: keys and values streamed once, split over blocks.

A block takes a tile of queries, of the heads of one group and of all new tokens, over a piece of the keys
(Flash-Decoding); further tiles read their keys from the L2, mostly. Where sequences and
heads are fewer than the multiprocessors, keys are cut into pieces, which a second kernel combines. A block
alone draws only so much from memory, since so many bytes at most are on their way; all of them together
reach a share of the bandwidth; and short ones cost what it takes to begin and end, part of which other
blocks' traffic hides. Libraries whose tensor-core kernel holds so many query heads at most (TensorRT-LLM's
XQA: 32) have a second one, on the vector units, for a head alone and for larger groups, head by head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device

from .attention import AttentionShape, has_cache, shape
from .base import DRAFTS, Kernel, Travel, choice, families, multiprocessors, parameter
from .call import Call, prices
from .prefill import SOFTMAX

HEAD = 128  # size of the heads in the unit of `block_us`; blocks of smaller ones take as long
ROWS = 128  # queries in a tile at most, as FlashAttention's and FlashInfer's have
LEAST_ROWS = 16  # that a matrix instruction multiplies
# Of rows with one new token none tells the following; of prompts on A100, H100, B200 the shares are higher.
MATRIX = 0.4  # share of the matrix peak
EXPONENTIALS = 0.2  # share of the fp32 peak
AGAIN = 0.1  # of what further tiles read, from memory: fits of latents have 0.05 to 0.1
PACKED = 32  # query heads that a block of TensorRT-LLM's XQA holds
# Bytes that memory could move while the kernel for single heads uses an element of keys: both fits to H100.
VECTOR_BYTES = 1.0
PIECE_KEYS = 256  # in a piece at least; where it was fitted, 25 of 28 cases lay between 193 and 271


@families("attention_decode", "attention_decode_fp32", "attention_decode_kv8")
@dataclass(frozen=True)
class Decode(Kernel):
    """Attention of a new token, or a few, over a cache."""

    group: ClassVar[str] = "decode"

    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that keys and values reach")
    alone: float = parameter(0.3, 0.01, 4, "", "time of a block alone, to that of its share of the traffic")
    block_us: float = parameter(
        1.5, 0.05, 20, "µs", "to begin and end a block of heads up to 128; grows as the root of larger ones"
    )
    exposed: float = parameter(
        0.5, 0.01, 1, "", "of the shorter of that and traffic, not hidden by the longer"
    )
    combine_us: float = parameter(2, 0.01, 30, "µs", "to combine pieces")
    pieces: float = parameter(16, 2, 256, "", "pieces at most")
    launch_us: float = parameter(8, 0.5, 40, "µs", "of an empty call")
    lone: float = parameter(
        1, 0.05, 10, "", "time to begin and end a block of one head, to that of a group's"
    )
    lone_us: float = parameter(2, 0.01, 20, "µs", "more, of a call of the kernel for single heads")
    packs: float = choice(
        1024, (1024, PACKED), "", "query heads in a block; larger groups go one by one", usual=True
    )
    planned: float = parameter(
        0,
        0,
        1,
        "",
        "of the keys outside a window, those that are cut into pieces too, whose blocks are empty",
    )

    @staticmethod
    def takes(shape: AttentionShape) -> Any:
        """Tokens after others, and a few; more are a prompt, and so are several that see all."""
        causal = (shape.causal > 0) & ((shape.cached > 0) | (shape.new <= DRAFTS))
        return causal | (shape.new == 1)

    def seconds(self, device: Device, shape: AttentionShape, xp: Namespace = ARRAYS) -> Number:
        """Time of one call; HardwareError for no number of multiprocessors."""
        share = 1 / multiprocessors(device)
        together = xp.where(shape.group <= self.packs, shape.group, 1)
        single = xp.where(together == 1, self.singles, 0)  # 1 by the kernel for single heads
        queries = shape.new * together  # that see the keys of a head
        passes = xp.maximum(queries / ROWS, 1)
        heads = shape.batch * shape.kv_heads * shape.group / together
        seen, values = shape.keys(xp), shape.kv_elements(xp)
        keys = seen + self.planned * (shape.cached + shape.new * shape.causal - seen)
        possible = xp.maximum(xp.minimum(keys / PIECE_KEYS, self.pieces), 1)
        pieces = xp.minimum(xp.maximum(1 / (share * heads * passes), 1), possible)
        blocks, reading = heads * passes * pieces, heads * xp.maximum(pieces * seen / keys, 1)

        read = values * shape.group / together  # by all heads of their own
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
        """1 if the library has a kernel for single heads: where blocks hold few."""
        return int(self.packs <= PACKED)

    def moved(self, travel: Travel) -> dict[str, float]:
        """A block alone draws as many bytes a second there, of a multiprocessor's part of the bandwidth."""
        there, here = (d.memory_Bps / (d.multiprocessors or 1) for d in (travel.device, travel.home))
        values = super().moved(travel)
        return {**values, "alone": values["alone"] * there / here}

    def row_s(self, device: Device, shape: AttentionShape) -> Number:
        """Seconds in which the device does an element of keys and values with a query."""
        product: float = 2 / (MATRIX * device.matrix_peak(shape.dtype)[0])
        exponential = SOFTMAX / (EXPONENTIALS * device.vector_flops["fp32"])
        return product + exponential / (2 * shape.head)


NARROW = {8: ("attention_decode_kv8",), 32: ("attention_decode_fp32",)}  # by bits of the cache


@prices("flash_attention", "block_sparse_attention")
def decode(row: Row) -> Call | None:
    """Of new tokens of each sequence over a cache, if there is one; several take no less than one."""
    q, k, *_ = row.operands
    return step(shape(row)) if has_cache(q, k) else None


def step(given: AttentionShape) -> Call:
    """Of new tokens of a shape."""
    return Call((*NARROW.get(int(given.kv_bits), ()), "attention_decode"), given, less=replace(given, new=1))
