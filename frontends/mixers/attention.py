"""Attention over a cache, eager, and what rotary positions it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmir.dim import B, C
from llmir.dtype import FP32
from llmir.graph import Value
from llmir.masks import mask

from ..blocks import LAYER, Blocks


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, how they stretch beyond the trained length, and whether neighbours pair."""

    theta: float
    scaling: str = "none"
    factors: tuple[float, ...] = ()
    interleaved: bool = False


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the cache, eager: the scores go through memory.

    `matrices` are what checkpoints call the projections to q, k and v.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    mask: str = "causal"
    matrices: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")

    @property
    def kind(self) -> str:
        """Whether it sees all keys or a part, as configs call it."""
        return "full" if self.mask == "causal" else "sliding"

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Of normed hidden states, what is added to them."""
        b, module = blocks.b, f"{LAYER}self_attn."
        at = blocks.sized(g=self.kv_heads, r=self.heads // self.kv_heads, d=self.head_dim)
        stored = dict(zip(("q_proj", "k_proj", "v_proj"), self.matrices, strict=True))

        def project(weight: str, out: str, name: str) -> Value:
            return at.linear(x, "b t h", weight, out, name, module + stored[name], bias=self.qkv_bias)

        with b.block("attention"):
            q = project("h g r d", "b t g r d", "q_proj")
            q = at.norm(q, "q_norm", f"{module}q_norm", "d") if self.qk_norm else q
            k = project("h g d", "b t g d", "k_proj")
            k = at.norm(k, "k_norm", f"{module}k_norm", "d") if self.qk_norm else k
            v = project("h g d", "b t g d", "v_proj")
            how: dict[str, Any] = vars(self.rope)
            q, k = b.rope(q, name="rope_q", **how), b.rope(k, name="rope_k", **how)
            axes = ("batch", "cached", "kv_heads", "head_dim")
            kept = at.tensor(B, mask(self.mask).kept(C), self.kv_heads, self.head_dim)
            keys = b.append(b.cache(kept, name="k_cache", axes=axes), k, name="append_k")
            values = b.append(b.cache(kept, name="v_cache", axes=axes), v, name="append_v")
        with b.block("attention_core"):
            scores = b.attention_scores(q, keys, scale=self.head_dim**-0.5, name="scores")
            masked = b.attention_mask(scores, mask=self.mask, name="mask")
            probabilities = b.softmax(at.cast(masked, FP32), name="softmax")
            mixed = b.attention_mix(at.cast(probabilities, at.dtype), values, name="mix")
        with b.block("attention"):
            how = {"bias": self.out_bias}
            return at.linear(mixed, "b t g r d", "g r d h", "b t h", "o_proj", f"{module}o_proj", **how)
