"""Attention over a window and over compressed keys, with low-rank queries and outputs (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value
from llmir.ir.core.masks import Entries, mask
from llmir.ir.sizes.polynomial import B, C, Min

from .attention import Rope
from .blocks import Blocks


@dataclass(frozen=True)
class Compressor:
    """Compress `stride` tokens to one entry of `size`: a gated mean of rows, normalized and rotated.

    With two `series` of rows and gates, an entry also includes the tokens of the previous entry.
    """

    stride: int
    series: int
    size: int
    rope: Rope

    def build(self, blocks: Blocks, x: Value, name: str, module: str) -> Value:
        """All entries of previous and new tokens.

        One cache stores the entries, and another stores the rows of tokens in incomplete entries.
        """
        at, b = blocks.sized(w=self.stride, s=self.series, d=self.size), blocks.b
        whole = Entries(self.stride).kept(C)
        kept = C - self.stride * whole + self.stride * Min.of(whole, self.series - 1)
        with b.block("compressor"):
            bias = at.weight("w S d", f"{name}_bias", f"{module}.ape", dtype=FP32)
            given = []
            for part, stored in (("rows", "wkv"), ("gates", "wgate")):
                row = at.linear(x, "b t h", "h S d", "b t S d", f"{name}_{part}", f"{module}.{stored}")
                axes = ("batch", "cached", "series", "head_dim")
                cache = b.cache(
                    at.tensor(B, kept, self.series, self.size), name=f"{name}_{part}_cache", axes=axes
                )
                given.append(b.append(cache, row, name=f"append_{name}_{part}"))
            rows, gates = given
            found = b.compress_rows(rows, gates, bias, name=f"{name}_compress")
            found = at.normal.build(at, found, f"{name}_norm", f"{module}.norm", "d", 1)
            found = b.rope(found, name=f"rope_{name}", stride=self.stride, **vars(self.rope))
            cache = b.cache(
                at.tensor(B, whole, self.size), name=f"{name}_cache", axes=("batch", "cached", "latent")
            )
            result: Value = b.append(cache, found, name=f"append_{name}")
            return result


@dataclass(frozen=True)
class CompressedAttention:
    """Attention over a window; one vector per token is both the key and the value of all heads.

    Queries are projected from a latent. The output projection is low-rank: each of `groups` groups of heads
    is projected to `out_rank` numbers first. With a `compressor`, a query also sees compressed entries: all
    entries, or `top_k` entries. An index with `index_heads` heads and separate entries of `index_size`
    selects these `top_k` entries. The last `rope.size` elements of keys and queries are rotated, and the
    rotation is removed from the output.
    """

    block: ClassVar[str] = "attention"

    heads: int
    head_dim: int
    q_latent: int
    groups: int
    out_rank: int
    window: int
    rope: Rope
    compressor: Compressor | None = None
    index_heads: int = 0
    index_size: int = 0
    top_k: int = 0
    module: str = "attn"

    @property
    def kind(self) -> str:
        """A name for the number of tokens per entry."""
        return f"compressed_{self.compressor.stride}" if self.compressor else "sliding"

    def build(self, blocks: Blocks, x: Value) -> Value:
        b, module, how = blocks.b, self.module, vars(self.rope)
        sizes = {"g": self.groups, "r": self.heads // self.groups, "d": self.head_dim, "o": self.out_rank}
        at = blocks.sized(**sizes, q=self.q_latent, i=self.index_heads, y=self.index_size)
        with b.block(self.block):
            rows = at.linear(x, "b t h", "h q", "b t q", "q_a_proj", f"{module}.wq_a")
            rows = at.norm(rows, "q_a_norm", f"{module}.q_norm", "q")
            q = at.linear(rows, "b t q", "q g r d", "b t g r d", "q_b_proj", f"{module}.wq_b")
            q = b.rms_norm(q, eps=at.normal.eps, name="q_norm", block="norm")
            q = b.rope(q, name="rope_q", **how)
            kv = at.linear(x, "b t h", "h d", "b t d", "kv_proj", f"{module}.wkv")
            kv = b.rope(at.norm(kv, "kv_norm", f"{module}.kv_norm", "d"), name="rope_kv", **how)
            seen = mask(f"window({self.window})")
            kept = at.tensor(B, seen.kept(C), self.head_dim)
            keys = b.append(
                b.cache(kept, name="kv_cache", axes=("batch", "cached", "latent")), kv, name="append_kv"
            )
            sinks = at.weight("g r", "sinks", f"{module}.attn_sink", dtype=FP32)
        given: list[Value] = []
        if self.compressor:
            given.append(self.compressor.build(at, x, "entries", f"{module}.compressor"))
            given += self._index(at, x, rows, self.compressor)
        with b.block("attention_core"):
            mixed = self._attended(at, q, keys, given, sinks, str(seen))
        with b.block(self.block):
            mixed = b.unrope(mixed, name="unrope", **how)
            low = at.linear(mixed, "b t g r d", "g r d o", "b t g o", "o_a_proj", f"{module}.wo_a")
            return at.linear(low, "b t g o", "g o h", "b t h", "o_b_proj", f"{module}.wo_b")

    def _attended(
        self, at: Blocks, q: Value, keys: Value, given: list[Value], sinks: Value, seen: str
    ) -> Value:
        how: dict[str, Any] = {"scale": self.head_dim**-0.5, "mask": seen, "name": "attention"}
        if self.compressor:
            how |= {"stride": self.compressor.stride, "top_k": self.top_k if given[1:] else 0}
        result: Value = at.b.compressed_attention(q, keys, sinks, *given, **how)
        return result

    def _index(self, at: Blocks, x: Value, rows: Value, outer: Compressor) -> list[Value]:
        """The index scores of all entries, if a query sees only some entries; otherwise none."""
        if not self.index_heads:
            return []
        b, module = at.b, f"{self.module}.indexer"
        entries = replace(outer, size=self.index_size).build(at, x, "index", f"{module}.compressor")
        with b.block("indexer"):
            q = at.linear(rows, "b t q", "q i y", "b t i y", "index_q", f"{module}.wq_b")
            q = b.rope(q, name="rope_index_q", **vars(self.rope))
            weights = at.linear(x, "b t h", "h i", "b t i", "index_weights", f"{module}.weights_proj")
            scale = (self.index_size * self.index_heads) ** -0.5
            return [b.index_scores(q, entries, weights, scale=scale, name="index_scores")]
