"""Multi-head latent attention in the naive form (arXiv:2405.04434, section 2.1), and its sparse indexer."""

from __future__ import annotations

from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Value
from llmir.ir.sizes.polynomial import B, C

from .attention import Rope, Temper
from .blocks import Blocks, Norm

_NORM = Norm(1e-6)  # epsilon for latents, independent of `rms_norm_eps`
_INDEX_NORM = Norm(1e-6, "layer_norm", ("weight", "bias"))
_MODULE = "self_attn."
_PIECES = {
    "l": "latent",
    "p": "rope",
    "u": "nope",
    "m": "values",
}  # pieces of a stored tensor along the last axis


@dataclass(frozen=True)
class Indexer:
    """Select `keys` keys for each query by index scores, from `heads` heads of `size` over separate keys.

    A rotary pair has one element of each half of a head, or two neighbors with `interleaved`.
    """

    heads: int
    size: int
    keys: int
    interleaved: bool = False

    def build(self, blocks: Blocks, x: Value, rows: Value, rope: Rope, rotary: int) -> Value:
        """Compute the index scores of all keys from hidden states and the latent of the queries."""
        b, at, module = blocks.b, blocks.sized(i=self.heads, y=self.size), f"{_MODULE}indexer."
        how = {**vars(rope), "size": rotary, "interleaved": self.interleaved}
        with b.block("indexer"):
            q = at.linear(rows, "b t q", "q i y", "b t i y", "index_q", f"{module}wq_b")
            k = at.linear(x, "b t h", "h y", "b t y", "index_k", f"{module}wk")
            k = _INDEX_NORM.build(at, k, "index_norm", f"{module}k_norm", "y", 1)
            k = b.rope(k, name="rope_index_k", **how)
            keys = _appended(at, k, self.size, "index")
            weights = at.linear(x, "b t h", "h i", "b t i", "index_weights", f"{module}weights_proj")
            q = b.rope(q, name="rope_index_q", **how)
            scale = (self.size * self.heads) ** -0.5
            scores: Value = b.index_scores(q, keys, weights, scale=scale, name="index_scores")
            return scores


@dataclass(frozen=True)
class LatentAttention:
    """Attention that caches a latent row and a rotary key per token, and expands them to keys and values.

    In each head, queries and keys have `nope` elements without position and `rotary` elements with position,
    and values have `value` elements. Without a `rope`, no element has a position. Queries may be projected
    from a latent of size `q_latent`, and a `temper` scales queries by position. `bias` applies to `q_a_proj`,
    `kv_a_proj_with_mqa` and `o_proj`.
    """

    kind: ClassVar[str] = "full"
    block: ClassVar[str] = "attention"

    heads: int
    q_latent: int | None
    latent: int
    nope: int
    rotary: int
    value: int
    rope: Rope | None
    scale: float
    bias: bool = False
    indexer: Indexer | None = None
    temper: Temper | None = None

    def build(self, blocks: Blocks, x: Value) -> Value:
        b = blocks.b
        sizes = {"g": self.heads, "l": self.latent, "u": self.nope, "p": self.rotary, "m": self.value}
        at = blocks.sized(**sizes, q=self.q_latent or 1)
        norms = Blocks(b, at.dtype, _NORM, at.stem, **at.sizes)
        with b.block("attention"):
            rows = self._rows(at, norms, x)
            q, q_rope = self._queries(at, rows)
            latent, k_rope = _product(
                at, x, "b t h", ("h l", "h p"), "kv_a_proj", "kv_a_proj_with_mqa", self.bias
            )
            latent = norms.norm(latent, "kv_a_norm", f"{_MODULE}kv_a_layernorm", "l")
            if self.rope:
                how = vars(self.rope)
                q_rope, k_rope = b.rope(q_rope, name="rope_q", **how), b.rope(k_rope, name="rope_k", **how)
            if self.temper:
                how = vars(self.temper)
                q, q_rope = b.temper(q, name="temper", **how), b.temper(q_rope, name="temper_rope", **how)
            latents = _appended(at, latent, self.latent, "latent")
            rotary = _appended(at, k_rope, self.rotary, "k_rope")
            k, v = _product(at, latents, "b c l", ("l g u", "l g m"), "kv_b_proj", "kv_b_proj")
        index = None
        if self.indexer and self.rope:
            index = self.indexer.build(at, x, rows, self.rope, self.rotary)
        with b.block("attention_core"):
            scores = b.latent_scores(q, q_rope, k, rotary, scale=self.scale, name="scores")
            masked = b.attention_mask(scores, mask="causal", name="mask")
            if self.indexer and index:
                masked = b.select_keys(masked, index, top_k=self.indexer.keys, mask="causal", name="select")
            probabilities = b.softmax(at.cast(masked, FP32), name="softmax")
            mixed = b.latent_mix(at.cast(probabilities, at.dtype), v, name="mix")
        with b.block("attention"):
            bias: dict[str, Any] = {"bias": self.bias}
            return at.linear(mixed, "b t g m", "g m h", "b t h", "o_proj", f"{_MODULE}o_proj", **bias)

    def _rows(self, at: Blocks, norms: Blocks, x: Value) -> Value:
        """The input of the query projection: the latent of the queries, or the hidden states."""
        if not self.q_latent:
            return x
        rows = at.linear(x, "b t h", "h q", "b t q", "q_a_proj", f"{_MODULE}q_a_proj", bias=self.bias)
        return norms.norm(rows, "q_a_norm", f"{_MODULE}q_a_layernorm", "q")

    def _queries(self, at: Blocks, rows: Value) -> tuple[Value, ...]:
        """The parts of the queries without position and with position."""
        if not self.q_latent:
            return _product(at, rows, "b t h", ("h g u", "h g p"), "q_proj", "q_proj")
        return _product(at, rows, "b t q", ("q g u", "q g p"), "q_b_proj", "q_b_proj")


def _product(
    at: Blocks, x: Value, term: str, weights: tuple[str, str], name: str, module: str, bias: bool = False
) -> tuple[Value, ...]:
    """A product with several results; one stored tensor contains their weights, within each head if any."""
    *axes, x_axis = term.split()
    outs = [w.removeprefix(x_axis).strip() for w in weights]
    inside = f"/{at.sizes['g']}" if "g" in outs[0] else ""
    terms = [*weights, *(outs if bias else ())]
    kinds = ["weight"] * len(weights) + ["bias"] * (len(terms) - len(weights))
    pieces = [(_PIECES[out.split()[-1]], i) for i, out in enumerate(outs)] * 2
    held = [
        at.weight(t, f"{name}_{what}.{kind}", f"{_MODULE}{module}.{kind}[{i}{inside}]")
        for t, kind, (what, i) in zip(terms, kinds, pieces, strict=False)
    ]
    results = ", ".join(" ".join((*axes, out)) for out in outs)
    found: tuple[Value, ...] = at.b.linear(
        x, *held, einsum=f"{', '.join((term, *terms))} -> {results}", name=name
    )
    return found


def _appended(at: Blocks, rows: Value, size: int, name: str) -> Value:
    """Append new rows to a cache of rows that all heads share."""
    kept = at.b.cache(at.tensor(B, C, size), name=f"{name}_cache", axes=("batch", "cached", "latent"))
    result: Value = at.b.append(kept, rows, name=f"append_{name}")
    return result
