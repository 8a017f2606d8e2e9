"""Attention of one new token over a long cache: keys and values streamed once, split over blocks.

A block takes the query heads of one group over a piece of the keys (Flash-Decoding). Where sequences and
heads are fewer than the multiprocessors, keys are cut into pieces, which a second kernel combines. A block
alone draws only so much from memory, since so many bytes at most are on their way; all of them together
reach a share of the bandwidth; and short ones cost what it takes to begin and end, part of which other
blocks' traffic hides. Libraries whose tensor-core kernel holds so many query heads at most (TensorRT-LLM's
XQA: 32) have a second one, on the vector units, for a head alone and for larger groups, head by head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from llmir.backends.cost.rows import Row
from llmir.dim import Number
from llmir.hw import Device

from .attention import AttentionShape, shape
from .base import Kernel, choice, families, multiprocessors, parameter
from .call import Call, prices

HEAD = 128  # size of the heads in the unit of `block_us`
PIECE_KEYS = 256  # in a piece at least; where it was fitted, 25 of 28 cases lay between 193 and 271


@families("attention_decode", "attention_decode_fp32", "attention_decode_kv8")
@dataclass(frozen=True)
class Decode(Kernel):
    """Attention of a new token, or a few, over a cache."""

    group: ClassVar[str] = "decode"

    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that keys and values reach")
    alone: float = parameter(0.3, 0.01, 4, "", "time of a block alone, to that of its share of the traffic")
    block_us: float = parameter(
        1.5, 0.05, 20, "µs", "to begin and end a block of heads of 128; grows as their root"
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
    element: float = parameter(1, 0.001, 10, "B", "that memory could move while that uses a key's element")
    packs: float = choice(
        1024, (1024, 32, 1), "", "query heads in a block; larger groups go one by one", usual=True
    )
    planned: float = choice(
        0, (0, 1), "", "1 if keys outside the window are cut into pieces as well", usual=True
    )

    @staticmethod
    def takes(shape: AttentionShape) -> Any:
        """One new token of each sequence, after others: a prompt of one token is read like any other."""
        return (np.asarray(shape.new) == 1) & (np.asarray(shape.cached) > 0)

    def seconds(self, device: Device, shape: AttentionShape) -> Number:
        """Time of one call; HardwareError for no number of multiprocessors."""
        share = 1 / multiprocessors(device)
        together = np.where(shape.group <= self.packs, shape.group, 1)
        single = (together == 1) & (self.packs <= 32)  # by the kernel for single heads, if there is one
        heads = shape.batch * shape.kv_heads * shape.group / together
        keys = shape.keys + self.planned * (shape.cached + shape.new * shape.causal - shape.keys)
        possible = np.maximum(np.minimum(keys / PIECE_KEYS, self.pieces), 1)
        pieces = np.clip(1 / (share * heads), 1, possible)
        blocks, reading = heads * pieces, heads * np.maximum(pieces * shape.keys / keys, 1)

        used = single * shape.kv_elements * shape.group / together * self.element
        cache = np.maximum(shape.kv_elements * shape.kv_bits / 8 / self.bandwidth, used) / device.memory_Bps
        rows = shape.rows_bytes / (device.memory_Bps * self.bandwidth)
        traffic = cache + rows
        block = self.block_us * 1e-6 * np.sqrt(shape.head / HEAD) * np.where(single, self.lone, 1)
        longest = block + self.alone / share * (cache / reading + rows / heads)
        short, long = np.minimum(blocks * block * share, traffic), np.maximum(blocks * block * share, traffic)
        busy = np.maximum(longest, long + self.exposed * short)
        combine = self.combine_us * 1e-6 * (1 - 1 / possible)
        launch = (self.launch_us + self.lone_us * single) * 1e-6
        return launch + busy + combine


NARROW = {8: ("attention_decode_kv8",), 32: ("attention_decode_fp32",)}  # by bits of the cache


@prices("flash_attention", "block_sparse_attention")
def decode(row: Row) -> Call:
    """Of one new token of each sequence."""
    return Call((*NARROW.get(int(row.operands[1].dtype.bits), ()), "attention_decode"), shape(row))
