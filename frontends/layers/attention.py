"""Grouped-query attention over a cache, its rotary positions, and the block index of MiniMax-M3."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value
from llmir.ir.core.masks import mask
from llmir.ir.sizes.polynomial import B, C

from .blocks import Blocks

# --- Block index ---


@dataclass(frozen=True)
class BlockIndex:
    """Select `top_k` blocks of `length` keys by index scores; the last `local` blocks are always selected.

    The index has one head of `size` for each key/value head of the attention. All index heads share one set
    of keys, which are separate from the attention's keys.
    """

    size: int
    length: int
    top_k: int
    local: int = 1

    def build(self, blocks: Blocks, x: Value, module: str, how: dict[str, Any]) -> Value:
        """Compute the scores of all blocks from hidden states; `how` is the rotation of queries and keys."""
        b, at = blocks.b, blocks.sized(y=self.size)
        with b.block("indexer"):
            q = at.linear(x, "b t h", "h g y", "b t g y", "index_q", f"{module}.index_q_proj")
            q = at.normal.build(at, q, "index_q_norm", f"{module}.index_q_norm", "y", 1)
            k = at.linear(x, "b t h", "h y", "b t y", "index_k", f"{module}.index_k_proj")
            k = at.normal.build(at, k, "index_k_norm", f"{module}.index_k_norm", "y", 1)
            q, k = b.rope(q, name="rope_index_q", **how), b.rope(k, name="rope_index_k", **how)
            kept = b.cache(at.tensor(B, C, self.size), name="index_cache", axes=("batch", "cached", "latent"))
            keys = b.append(kept, k, name="append_index")
            scores: Value = b.block_scores(q, keys, length=self.length, name="block_scores")
            return scores

    def select(self, at: Blocks, scores: Value, index: Value) -> Value:
        """Attention scores, with −∞ for keys outside of the selected blocks."""
        how: dict[str, Any] = {"length": self.length, "top_k": self.top_k, "local": self.local}
        result: Value = at.b.select_blocks(scores, index, name="select", **how)
        return result


# --- Attention ---

_KEPT = ("batch", "cached", "kv_heads", "head_dim")


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base, the scaling beyond the trained length, and the rotated elements.

    The first `size` elements of a head are rotated, or the last `size` elements with `last`, or all elements
    if `size` is 0. A pair has one element of each half, or two neighbors with `interleaved`.
    """

    theta: float
    scaling: str = "none"
    factors: tuple[float, ...] = ()
    size: int = 0
    interleaved: bool = False
    last: bool = False


@dataclass(frozen=True)
class Temper:
    """Scaling of queries at late positions; the fields are those of the op `temper`."""

    beta: float
    length: float
    shift: float = 0.0


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over the cache, in eager form: scores are written to memory.

    - `scale`, `cap`, `clip`, `temper`: Scores are scaled by `scale`, by default 1/√head_dim, and soft-capped
      unless `cap` is 0. q, k and v are clipped to ±`clip` unless `clip` is 0, and a `temper` scales q by
      position.
    - `qk_norm`: The norm of q and k. `head`: per head, all heads share a weight. `heads`: per head, with
      separate weights. `whole`: over the whole projection, which ranks gather. `pair`: over whole
      projections, where ranks sum the squares of q and k in one collective. `bare`: per head, without a
      weight. The norm comes after the rotation if `norm_turned`.
    - `gate`: The module of a sigmoid output gate. If this module is the projection of q, each head's gate is
      stored after the head's q.
    - `out_norm`: The name of a norm over all heads before the output projection, "" for none.
    - `module`, `matrices`, `qk_norms`: The checkpoint names of the attention, of the q, k, v and output
      projections, and of the norms.
    - `sinks`: The name of learned sinks: one score per head that contributes to the sum of the softmax.
    - `value_dim`, `bare_v`, `one_kv`: The head size of values, if different from the head size of keys;
      whether values are normalized without a weight; whether values are the keys before norm and rotation.
    - `lends`, `borrows`: The name under which the layer passes keys and values to later layers; the name of
      the keys and values of an earlier layer, which this layer uses instead of its own.
    - `given`: The axes of the hidden states.
    - `mask`: The attention mask. With `full`, as in an encoder, there is no cache.
    - `blocks`: The selection of blocks of keys, if any.
    """

    block: ClassVar[str] = "attention"

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = ""
    out_norm: str = ""
    mask: str = "causal"
    scale: float | None = None
    cap: float = 0.0
    gate: str = ""
    clip: float = 0.0
    temper: Temper | None = None
    module: str = "self_attn"
    matrices: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")
    qk_norms: tuple[str, str] = ("q_norm", "k_norm")
    norm_turned: bool = False
    sinks: str = ""
    value_dim: int | None = None
    value_scale: float = 1.0
    given: str = "h"
    blocks: BlockIndex | None = None
    bare_v: bool = False
    one_kv: bool = False
    lends: str = ""
    borrows: str = ""

    @property
    def sees(self) -> str:
        """The kind of attention, by its name in configs: full, sliding, chunked or sparse."""
        word = self.mask.partition("(")[0]
        return "sparse" if self.blocks else {"window": "sliding", "chunk": "chunked"}.get(word, "full")

    @property
    def kind(self) -> str:
        """A name for the mask, for the absence of positions, and for the use of another layer's keys."""
        words = (self.sees, "" if self.rope else "nope", "shared" if self.borrows else "")
        return "_".join(filter(None, words))

    def build(self, blocks: Blocks, x: Value) -> Value:
        """Add the attention to the program; return the summand for the hidden states."""
        b, wide, m = blocks.b, self.value_dim or self.head_dim, "m" if self.value_dim else "d"
        sizes = {"g": self.kv_heads, "r": self.heads // self.kv_heads, "d": self.head_dim}
        at = blocks.sized(**sizes, m=wide)
        to_q, to_k, to_v, to_out = (f"{self.module}.{name}" for name in self.matrices)

        def project(outs: str, name: str, param: str) -> Value:
            terms = f"b t {self.given}", f"{self.given} {outs}", f"b t {outs}"
            found = at.linear(x, *terms, name, param, bias=self.qkv_bias)
            return b.clip(found, limit=self.clip, name=f"clip_{name}") if self.clip else found

        with b.block("attention"):
            if self.gate == self.matrices[0]:
                parts = dict.fromkeys(("q_proj", "gate_proj"), "h g r d")
                q, gate = at.merged(x, parts, "q_proj", to_q, self.heads, bias=self.qkv_bias)
            else:
                q = project("g r d", "q_proj", to_q)
            q = q if self.norm_turned else self._norm(at, q, "q_norm", self.qk_norms[0], "g r d")
            k = v = None
            if not self.borrows:
                k = first = project("g d", "k_proj", to_k)
                k = k if self.norm_turned else self._norm(at, k, "k_norm", self.qk_norms[1], "g d")
                v = first if self.one_kv else project(f"g {m}", "v_proj", to_v)
                v = self._bare(at, v, "v_norm") if self.bare_v else v
                v = at.scale(v, self.value_scale, "value_scale")
                q, k = self._norm_pair(at, q, k) if self.qk_norm == "pair" else (q, k)
            if self.gate and self.gate != self.matrices[0]:
                named = f"{self.module}.{self.gate}"
                gate = at.linear(x, "b t h", f"h g r {m}", f"b t g r {m}", "gate_proj", named)
            if self.rope:
                how: dict[str, Any] = vars(self.rope)
                q, k = b.rope(q, name="rope_q", **how), k and b.rope(k, name="rope_k", **how)
            if self.norm_turned:
                q = self._norm(at, q, "q_norm", self.qk_norms[0], "g r d")
                k = k and self._norm(at, k, "k_norm", self.qk_norms[1], "g d")
            q = b.temper(q, name="temper", **vars(self.temper)) if self.temper else q
            alone = self.mask == "full"
            if k and v and not alone:
                k, v = self._kept(at, k, "k", self.head_dim), self._kept(at, v, "v", wide)
            keys, values = self._shared(at, k, v)
        index = self.blocks.build(at, x, self.module, vars(self.rope)) if self.blocks and self.rope else None
        with b.block("attention_core"):
            scale = self.head_dim**-0.5 if self.scale is None else self.scale
            scores = at.cap(b.attention_scores(q, keys, scale=scale, name="scores"), self.cap, "soft_cap")
            masked = scores if alone else b.attention_mask(scores, mask=self.mask, name="mask")
            if self.blocks and index:
                masked = self.blocks.select(at, masked, index)
            probabilities = b.softmax(at.cast(masked, FP32), *self._sinks(at), name="softmax")
            mixed = b.attention_mix(at.cast(probabilities, at.dtype), values, name="mix")
        with b.block("attention"):
            mixed = b.sigmoid_mul(mixed, gate, name="gated") if self.gate else mixed
            return self._output(at, mixed, f"g r {m}", to_out)

    def _output(self, at: Blocks, mixed: Value, axes: str, param: str) -> Value:
        """The output projection of the heads, which are normalized first if there is a norm."""
        if self.out_norm:
            mixed = at.norm(mixed, "out_norm", f"{self.module}.{self.out_norm}", axes, len(axes.split()))
        return at.linear(mixed, f"b t {axes}", f"{axes} h", "b t h", "o_proj", param, bias=self.out_bias)

    def _kept(self, at: Blocks, x: Value, name: str, size: int) -> Value:
        """Append keys or values to the cache, and return the keys or values of previous and new tokens."""
        type = at.tensor(B, mask(self.mask).kept(C), self.kv_heads, size)
        cache = at.b.cache(type, name=f"{name}_cache", axes=_KEPT)
        result: Value = at.b.append(cache, x, name=f"append_{name}")
        return result

    def _shared(self, at: Blocks, k: Value | None, v: Value | None) -> tuple[Value, Value]:
        """The layer's own keys and values, which later layers may use, or those of an earlier layer."""
        if not (k and v):
            return at.beside[f"{self.borrows}_keys"], at.beside[f"{self.borrows}_values"]
        if self.lends:
            at.beside.hand(f"{self.lends}_keys", k, _KEPT)
            at.beside.hand(f"{self.lends}_values", v, _KEPT)
        return k, v

    def _sinks(self, at: Blocks) -> list[Value]:
        """The sink of each head, as a list with one weight; empty without sinks."""
        with at.b.block("attention"):
            return [at.weight("g r", "sinks", f"{self.module}.{self.sinks}")] if self.sinks else []

    def _norm_pair(self, at: Blocks, q: Value, k: Value) -> tuple[Value, Value]:
        """Normalize q and k over all heads; ranks sum the squares of both in one collective."""
        with at.b.block("norm"):
            weights = [
                at.weight(axes, f"{name}.weight", f"{self.module}.{param}.weight")
                for axes, name, param in zip(
                    ("g r d", "g d"), ("q_norm", "k_norm"), self.qk_norms, strict=True
                )
            ]
            squares = at.b.pair_squares(q, k, name="qk_squares")
            how: dict[str, Any] = {"eps": at.normal.eps, "name": "qk_norm"}
            pair: tuple[Value, Value] = at.b.pair_norm(q, k, squares, *weights, **how)
            return pair

    def _norm(self, at: Blocks, x: Value, name: str, param: str, axes: str) -> Value:
        """Normalize q or k with these axes, unless q and k are normalized as a pair."""
        if self.qk_norm in ("", "pair"):
            return x
        if self.qk_norm == "bare":
            return self._bare(at, x, name)
        learned, over = {"head": ("d", 1), "heads": (axes, 1), "whole": (axes, len(axes.split()))}[
            self.qk_norm
        ]
        return at.norm(x, name, f"{self.module}.{param}", learned, over)

    def _bare(self, at: Blocks, x: Value, name: str) -> Value:
        """Normalize each head without a weight."""
        with at.b.block("norm"):
            bare: Value = at.b.rms_norm(x, eps=at.normal.eps, name=name)
            return bare
