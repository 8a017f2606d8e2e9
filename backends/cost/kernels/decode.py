"""Attention of one new token over a long cache: keys and values streamed once, split over blocks.

A block takes the query heads of one group over a piece of the keys (Flash-Decoding). Where sequences and
heads are fewer than the multiprocessors want, keys are cut into pieces, which a second kernel combines.
A block alone draws only so much from memory, since so many bytes at most are on their way; all of them
together reach a share of the bandwidth; and short ones cost what it takes to begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmir.dim import Number
from llmir.hw import Device

from .attention import AttentionShape
from .base import Kernel, choice, multiprocessors, parameter

ROW = 128  # values of the output in the unit of `row_us`: one head


@dataclass(frozen=True)
class Decode(Kernel):
    """Attention of a new token, or a few, over a cache."""

    bandwidth: float = parameter(0.9, 0.1, 1, "", "share of the memory bandwidth that keys and values reach")
    element: float = parameter(0.1, 0.001, 10, "B", "that memory could move while a key's element is used")
    alone: float = parameter(0.3, 0.01, 4, "", "time of a block alone, to that of its share of the traffic")
    block_us: float = parameter(1.5, 0.05, 20, "µs", "to begin and end a block")
    row_us: float = parameter(0.05, 0.001, 5, "µs", "for 128 values of its output; grows as their root")
    combine_us: float = parameter(2, 0.01, 30, "µs", "to combine pieces")
    blocks: float = parameter(1, 0.2, 8, "", "blocks wanted on each multiprocessor before keys are cut")
    pieces: float = parameter(16, 2, 256, "", "pieces at most")
    piece_keys: float = parameter(256, 16, 2048, "keys", "in a piece at least")
    launch_us: float = parameter(8, 0.5, 40, "µs", "of a call that has nothing to do")
    packs: float = choice(1024, (1024, 32, 1), "", "query heads in a block; larger groups go one by one")
    planned: float = choice(0, (0, 1), "", "1 if keys outside the window are cut into pieces as well")

    def seconds(self, device: Device, shape: AttentionShape) -> Number:
        """Time of one call, as the roofline at least; HardwareError for no number of multiprocessors."""
        share = 1 / multiprocessors(device)
        together = np.where(shape.group <= self.packs, shape.group, 1)
        heads = shape.batch * shape.kv_heads * shape.group / together
        keys = shape.keys + self.planned * (shape.cached + shape.new - shape.keys)
        possible = np.maximum(np.minimum(keys / self.piece_keys, self.pieces), 1)
        pieces = np.clip(self.blocks / (share * heads), 1, possible)
        blocks, reading = heads * pieces, heads * np.maximum(pieces * shape.keys / keys, 1)

        used = shape.kv_elements * shape.group / together * self.element
        cache = np.maximum(shape.kv_elements * shape.kv_bits / 8 / self.bandwidth, used) / device.memory_Bps
        rows = shape.rows_bytes / (device.memory_Bps * self.bandwidth)
        values = together * shape.new * shape.head / ROW  # of which more overlap the more there are
        block = (self.block_us + self.row_us * np.sqrt(values)) * 1e-6
        longest = block + self.alone / share * (cache / reading + rows / heads)
        busy = np.maximum(longest, blocks * block * share + cache + rows)
        combine = self.combine_us * 1e-6 * (1 - 1 / possible)
        return np.maximum(self.launch_us * 1e-6 + busy + combine, shape.roofline(device))
