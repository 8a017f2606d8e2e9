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
    """Select `top_k` blocks of `length` keys, always including the last `local` ones, by scores of heads of
    `size`.

    There is one head for each key/value head of the attention. The heads share separate keys.
    """

    size: int
    length: int
    top_k: int
    local: int = 1

    def build(self, blocks: Blocks, x: Value, module: str, how: dict[str, Any]) -> Value:
        """The scores of all blocks, of hidden states; `how` queries and keys are rotated."""
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
        """The scores of the keys in these blocks only."""
        how: dict[str, Any] = {"length": self.length, "top_k": self.top_k, "local": self.local}
        result: Value = at.b.select_blocks(scores, index, name="select", **how)
        return result


# --- Attention ---

_KEPT = ("batch", "cached", "kv_heads", "head_dim")


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base, the stretching beyond the trained length, and the rotated elements of a
    head.

    These are the first `size` elements, or with `last` the last ones, or all if `size` is 0; as two halves
    or, with `interleaved`, as pairs of neighbors.
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
      unless `cap` is 0. q, k and v are clipped to ±`clip` unless it is 0, and a `temper` scales q by
      position.
    - `qk_norm`: The norm of q and k: one weight for each `head`, separate weights for the `heads`, the
      `whole` projection (ranks gather it), a `pair` of whole projections (ranks sum the squares of q and k in
      one collective), or no weight (`bare`). The norm is after the rotary positions if `norm_turned`.
    - `gate`: The module of an output gate with a sigmoid. If it is the projection of q, each head's gate
      follows its q.
    - `out_norm`: The name of a norm over all heads before the projection back, "" for none.
    - `module`, `matrices`, `qk_norms`: Names in checkpoints, of the attention, of the projections to q, k, v
      and back, and of the norms.
    - `sinks`: The name of a learned score per head that takes part in the softmax.
    - `value_dim`, `bare_v`, `one_kv`: The head size of values if it differs from that of keys; whether values
      are normalized without a weight; whether values are the keys before norm and positions.
    - `lends`, `borrows`: The name under which keys and values are passed to later layers, and the name of
      those that a layer without its own uses.
    - `given`: The axes of the hidden states.
    - `mask`: With `full`, as in an encoder, there is no cache.
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
        """The name of the kind in configs: full, sliding, chunked or sparse."""
        word = self.mask.partition("(")[0]
        return "sparse" if self.blocks else {"window": "sliding", "chunk": "chunked"}.get(word, "full")

    @property
    def kind(self) -> str:
        """A name by mask, by absence of positions, and by use of another layer's keys."""
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
        """The heads, normalized if there is a norm, and projected back."""
        if self.out_norm:
            mixed = at.norm(mixed, "out_norm", f"{self.module}.{self.out_norm}", axes, len(axes.split()))
        return at.linear(mixed, f"b t {axes}", f"{axes} h", "b t h", "o_proj", param, bias=self.out_bias)

    def _kept(self, at: Blocks, x: Value, name: str, size: int) -> Value:
        """Keys or values of all previous and new tokens that a future token sees."""
        type = at.tensor(B, mask(self.mask).kept(C), self.kv_heads, size)
        cache = at.b.cache(type, name=f"{name}_cache", axes=_KEPT)
        result: Value = at.b.append(cache, x, name=f"append_{name}")
        return result

    def _shared(self, at: Blocks, k: Value | None, v: Value | None) -> tuple[Value, Value]:
        """The layer's keys and values, which later layers may use, or those of an earlier layer."""
        if not (k and v):
            return at.beside[f"{self.borrows}_keys"], at.beside[f"{self.borrows}_values"]
        if self.lends:
            at.beside.hand(f"{self.lends}_keys", k, _KEPT)
            at.beside.hand(f"{self.lends}_values", v, _KEPT)
        return k, v

    def _sinks(self, at: Blocks) -> list[Value]:
        """The score of each head's sink, if there are sinks."""
        with at.b.block("attention"):
            return [at.weight("g r", "sinks", f"{self.module}.{self.sinks}")] if self.sinks else []

    def _norm_pair(self, at: Blocks, q: Value, k: Value) -> tuple[Value, Value]:
        """q and k, each normalized over all heads: ranks sum the squares of both at once."""
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
        """q or k with these axes, normalized unless both are normalized as a pair."""
        if self.qk_norm in ("", "pair"):
            return x
        if self.qk_norm == "bare":
            return self._bare(at, x, name)
        learned, over = {"head": ("d", 1), "heads": (axes, 1), "whole": (axes, len(axes.split()))}[
            self.qk_norm
        ]
        return at.norm(x, name, f"{self.module}.{param}", learned, over)

    def _bare(self, at: Blocks, x: Value, name: str) -> Value:
        """Each head normed, without a weight."""
        with at.b.block("norm"):
            bare: Value = at.b.rms_norm(x, eps=at.normal.eps, name=name)
            return bare
