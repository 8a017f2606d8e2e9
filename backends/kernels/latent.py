"""Multi-head latent attention (MLA): absorbed, by kernels such as FlashMLA, or naive, by FlashAttention.

In the absorbed form, the latents are keys and values of all heads. A block contains rows of several heads and
positions and iterates over the keys with two products per tile. With 128 heads this is about 240 FLOPs per
byte, so these kernels are bound by compute or memory. If there are fewer blocks than multiprocessors, keys
are split into pieces that a second kernel combines. `compressed` and `shared` are functions for attention
over compressed or shared keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from llmir.backends.work.rows import Row
from llmir.base.array_namespace import ARRAYS, Namespace, Number
from llmir.base.dataclass import dataclass
from llmir.hw.device import Device
from llmir.ir.sizes.binding import Binding, UnevenBinding

from .attention import AttentionShape, PrefillAttention, has_cache, visible_keys, without_context
from .base import (
    Call,
    Kernel,
    Shape,
    bits,
    choice,
    families,
    kernel_call,
    multiprocessors,
    overlap_time,
    parameter,
)

TILE_KEYS = 64  # keys per tile of scores in FlashMLA and TensorRT-LLM
PIECE_KEYS = 256  # fewest keys of a piece, as in other attention
# Added error for head counts to which a kernel was not fitted. The attention_prefill kernels of the engines
# have a mean error of 35% on DeepSeek-V3's naive prefill with 256 keys or more on A100, H100 and B200 (7
# cases), and of 10% on their own rows.
OTHER_HEADS = 0.25


@dataclass(frozen=True)
class LatentShape(Shape):
    """Latent attention of `new` tokens of each of `batch` sequences with `cached` tokens.

    - `heads`, `latent`, `rotary`: Query heads, and the sizes of a latent and of the rotary key.
    - `window`: The most keys that a query sees.
    - `q_bits`, `kv_bits`, `out_bits`: Bits per element of q, of the cache and of the output.
    - `stored_bits`: Bits per element of a cache that is dequantized first; otherwise 0.
    """

    batch: Number
    new: Number
    cached: Number
    heads: Number
    latent: Number
    rotary: Number
    window: Number = np.inf
    q_bits: float = 16
    kv_bits: float = 16
    out_bits: float = 16
    dtype: str = "bf16"
    stored_bits: float = 0

    @property
    def most(self) -> Number:
        """The most keys that a query sees."""
        return self.window

    def keys(self, xp: Namespace) -> Number:
        """The most keys that a query sees, at most those of the sequence."""
        return xp.minimum(self.cached + self.new, self.most)

    def uneven(self, at: UnevenBinding) -> dict[str, Number]:
        """The mean number of cached keys in the windows of the sequences."""
        return {"cached": at.capped(self.cached, self.window - 1)} if self.window < np.inf else {}

    @property
    def rows_bytes(self) -> Number:
        """Bytes of q and of the output."""
        ins, outs = (self.latent + self.rotary) * self.q_bits, self.latent * self.out_bits
        return self.batch * self.new * self.heads * (ins + outs) / 8

    def cache_bytes(self, xp: Namespace) -> Number:
        """Bytes of latents and rotary keys."""
        return self.batch * xp.minimum(self.cached + self.new, self.new * self.most) * self.key_bytes

    def widening_bytes(self, xp: Namespace) -> Number:
        """Bytes that are read and written if the cache is dequantized before attention."""
        return self.cache_bytes(xp) * (self.stored_bits > 0) * (1 + self.stored_bits / self.kv_bits)

    @property
    def key_bytes(self) -> Number:
        """Bytes of a latent and its rotary key."""
        return (self.latent + self.rotary) * self.kv_bits / 8


@dataclass(frozen=True)
class CompressedShape(LatentShape):
    """Attention over keys and compressed entries that all heads share.

    `pairs` is twice the number of pairs of a query and a key or entry that it attends to.
    """

    pairs: Number = 0

    @property
    def most(self) -> Number:
        """Mean number of keys and entries to which a query attends."""
        return self.pairs / (2 * self.new)


@dataclass(frozen=True)
class SharedKvShape(AttentionShape):
    """Shared keys and entries count as one head of keys and values; the window is the mean number of visible
    keys.
    """

    pairs: Number = 0

    @property
    def most(self) -> Number:
        """Mean number of keys and entries to which a query attends."""
        return self.pairs / (2 * self.new)


@families("mla_absorbed", "mla_absorbed_kv8")
@dataclass(frozen=True)
class AbsorbedAttention(Kernel):
    """Causal attention with latents as keys and values."""

    group: ClassVar[str] = "latents"

    matrix: float = parameter(0.6, 0.01, 2, "", "share of the 16-bit matrix peak; above 1 if q is quantized")
    bandwidth: float = parameter(0.8, 0.05, 1, "", "share of the memory bandwidth that latents reach")
    again: float = parameter(
        0.1, 0.001, 1, "", "share of the keys that other rows of a sequence read from memory again"
    )
    block_us: float = parameter(2, 0.05, 30, "µs", "time to start and end a block")
    alone: float = parameter(
        1.3, 0.2, 10, "", "time of a single block, relative to its share of the products"
    )
    combine_us: float = parameter(3, 0.01, 40, "µs", "time to combine pieces")
    pieces: float = parameter(32, 2, 256, "", "largest number of pieces of split keys")
    widened: float = parameter(
        0, 0, 12, "", "16-bit values moved per value of an 8-bit cache, to dequantize it"
    )
    launch_us: float = parameter(8, 0.5, 300, "µs", "time of an empty call")
    tile_rows: float = choice(64, (16, 64, 128), "", "rows of queries per block", usual=True)

    def seconds(self, device: Device, shape: LatentShape, xp: Namespace = ARRAYS) -> Number:
        share = 1 / multiprocessors(device)
        together = xp.minimum(shape.heads, self.tile_rows)  # heads per block
        positions = xp.maximum(self.tile_rows / together, 1)
        tiles, across = xp.maximum(shape.new / positions, 1), xp.ceil(shape.heads / together)
        before, step = shape.cached / TILE_KEYS, positions / TILE_KEYS
        walked = xp.maximum(
            visible_keys(xp, tiles, before, shape.most / TILE_KEYS, step), tiles * step
        )  # tiles of scores, for all rows
        blocks = shape.batch * across * tiles
        keys = shape.keys(xp)
        possible = xp.minimum(xp.maximum(keys / PIECE_KEYS, 1), self.pieces)
        pieces = xp.minimum(xp.maximum(1 / (share * blocks), 1), possible)

        rate = device.matrix_peak(shape.dtype)[0] * share * self.matrix
        tile = 2 * self.tile_rows * TILE_KEYS * (2 * shape.latent + shape.rotary) / rate
        block = self.block_us * 1e-6
        waves = blocks * pieces * share
        ragged = xp.maximum(1, 1 / waves)
        products = shape.batch * across * walked * tile * share * ragged
        longest = block + self.alone * keys / TILE_KEYS / pieces * tile
        once, each = (
            shape.cache_bytes(xp),
            blocks * keys * shape.key_bytes,
        )  # `each`: bytes that all blocks read
        widened = 2 * self.widened * (shape.kv_bits < shape.q_bits) * 8 / shape.kv_bits
        read = once * (1 + widened) + self.again * xp.maximum(each - once, 0)
        moved = read + shape.widening_bytes(xp) + shape.rows_bytes
        memory = moved / (device.memory_Bps * self.bandwidth)
        busy = xp.maximum(longest, overlap_time(xp, products + waves * block, memory))
        combine = self.combine_us * 1e-6 * (1 - 1 / possible)
        return self.launch_us * 1e-6 + busy + combine


families("mla_naive", "mla_naive_kv8")(PrefillAttention)


@kernel_call("latent_attention", "sparse_latent_attention")
def latent(row: Row) -> Call:
    """Latent attention: absorbed without separate values, otherwise naive with keys and values of each head.

    In the naive form, queries and values have different head sizes, and the shape has their mean.
    """
    op: Any = row.node.op
    q, q_rope, k, k_rope, *values = op.core(row.operands)
    by = op.pattern
    cached, narrow = k.shape[1] - q.shape[1] * by.step, k_rope.dtype.bits <= 8
    batch, new, heads, head = q.shape
    rotary = q_rope.shape[-1]
    own = {"q_bits": q.dtype.bits, "kv_bits": bits(k.dtype), "out_bits": row.shape.dtype.bits}
    common: dict[str, Any] = {**own, "dtype": row.work.dtype.name, "window": by.most}
    common |= {"batch": batch, "new": new, "cached": cached}
    if not values:
        shape = LatentShape(heads=heads, latent=head, rotary=rotary, **common)
        return Call((*("mla_absorbed_kv8",) * narrow, "mla_absorbed"), shape)
    mean = Binding()(head + rotary + values[0].shape[-1]) / 2
    given = AttentionShape(kv_heads=heads, group=1, head=mean, causal=by.step, **common)
    names = (*("mla_naive_kv8",) * narrow, "mla_naive", "attention_prefill")
    return Call(names, given, contained=without_context(given))


@kernel_call("latent_attention")
def dequantized_latent(row: Row) -> Call | None:
    """Absorbed attention over an 8-bit cache by the 16-bit kernel, which dequantizes the cache first."""
    made: Any = latent(row)
    if not isinstance(made.shape, LatentShape) or made.shape.kv_bits > 8:
        return None
    return Call(("mla_absorbed",), replace(made.shape, kv_bits=16, stored_bits=made.shape.kv_bits))


@kernel_call("latent_attention", "sparse_latent_attention")
def naive_decode(row: Row) -> Call | None:
    """Decode attention over the keys and values of each head, as in attention without latents."""
    made: Any = latent(row)
    op: Any = row.node.op
    q, _, k, *_ = op.core(row.operands)
    if not isinstance(made.shape, AttentionShape) or not has_cache(q, k):
        return None
    narrow = made.families[0] == "mla_naive_kv8"
    one = replace(made.shape, new=1)
    return Call((*("attention_decode_kv8",) * narrow, "attention_decode"), made.shape, contained=one)


@kernel_call("compressed_attention")
def compressed(row: Row) -> Call:
    """Absorbed attention over shared keys and entries. Each query attends to the mean number of them."""
    op: Any = row.node.op
    q, keys, _, *entries = row.operands
    batch, new, groups, group, head = q.shape
    rows = sum((x.shape[1] for x in entries[:1]), start=keys.shape[1])
    shape = CompressedShape(
        batch=batch,
        new=new,
        cached=rows - new,
        heads=groups * group,
        latent=head,
        rotary=0,
        pairs=op.pairs(row.operands),
        q_bits=q.dtype.bits,
        kv_bits=bits(keys.dtype),
        out_bits=row.shape.dtype.bits,
        dtype=row.work.dtype.name,
    )
    narrow = keys.dtype.bits <= 8
    return Call((*("mla_absorbed_kv8",) * narrow, "mla_absorbed"), shape, shape_error=OTHER_HEADS)


@kernel_call("compressed_attention")
def shared(row: Row) -> Call | None:
    """Prefill attention with one head of keys and values; None if an index selects keys.

    Without an index, neighboring queries attend to nearly the same keys.
    """
    op: Any = row.node.op
    if op.top_k:
        return None
    made: Any = compressed(row)
    of = made.shape
    alike = {name: getattr(of, name) for name in ("batch", "new", "cached", "q_bits", "kv_bits", "out_bits")}
    seen = SharedKvShape(**alike, kv_heads=1, group=of.heads, head=of.latent, dtype=of.dtype, pairs=of.pairs)
    narrow = made.families[0] == "mla_absorbed_kv8"
    return Call((*("attention_prefill_kv8",) * narrow, "attention_prefill"), seen, shape_error=OTHER_HEADS)
