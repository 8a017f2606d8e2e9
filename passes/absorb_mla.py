"""absorb-mla: attention over the latents themselves, without expanded keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import DType
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.ops.linear import Linear
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .dce import DeadCode
from .fuse_attention import rewrite_graphs

Latents = Callable[[Any, Any], Any]


def _plain(p: Any, latents: Value) -> Any:
    return latents


def _narrowed(p: Any, latents: Value) -> Any:
    return p.quantize(latents)


def _eager(of: Latents) -> Callable[..., Any]:
    def pattern(
        p: Any, latents: Value, w_k: Value, w_v: Value, q: Value, q_rope: Value, k_rope: Value
    ) -> Any:
        k, v = p.linear(of(p, latents), w_k, w_v, label="expand", results=2)
        scores = p.attention_mask(p.latent_scores(q, q_rope, k, k_rope, label="scores"), label="mask")
        return p.latent_mix(p.softmax(scores, label="softmax"), v, label="mix")

    return pattern


def _fused(of: Latents) -> Callable[..., Any]:
    def pattern(
        p: Any, latents: Value, w_k: Value, w_v: Value, q: Value, q_rope: Value, k_rope: Value
    ) -> Any:
        k, v = p.linear(of(p, latents), w_k, w_v, label="expand", results=2)
        return p.latent_attention(q, q_rope, k, k_rope, v, label="flash")

    return pattern


def _absorbed(
    b: Builder,
    match: Match,
    latents: Value,
    w_k: Value,
    w_v: Value,
    q: Value,
    q_rope: Value,
    k_rope: Value,
    *index: Value,
) -> Any:
    """(W_k·c)·q = c·(W_kᵀ·q), and Σ p·(W_v·c) = W_v·Σ p·c (arXiv:2405.04434, section 2.1.2)."""
    expand = match.op("expand", Linear)
    narrowed = b.type(latents).dtype.low and b.node(latents.node).op.converts  # for other ops, too
    if narrowed or expand.einsum != "b c l, l g u, l g m -> b c g u, b c g m":
        return None
    own: dict[str, Any] = {"block": expand.block}
    dtype = b.type(q).dtype
    w_k, w_v = _widened(b, w_k, dtype), _widened(b, w_v, dtype)
    q = b.linear(q, w_k, einsum="b t g u, l g u -> b t g l", name="q_to_latent", **own)
    if "flash" in match.labels:
        flash = match["flash"]
        (mixed,) = b.apply(flash.op, q, q_rope, latents, k_rope, *index, name=flash.name)
    else:
        scores, softmax = match["scores"], match["softmax"]
        (x,) = b.apply(scores.op, q, q_rope, latents, k_rope, name=scores.name)
        (x,) = b.apply(match["mask"].op, x, name=match["mask"].name)
        if index:
            (x,) = b.apply(match["select"].op, x, *index, name=match["select"].name)
        x = _cast(b, x, softmax.results[0].dtype, softmax.op.block)
        (x,) = b.apply(softmax.op, x, name=softmax.name)
        x = _cast(b, x, dtype, softmax.op.block)
        (mixed,) = b.apply(match["mix"].op, x, latents, name=match["mix"].name)
    return b.linear(mixed, w_v, einsum="b t g l, l g m -> b t g m", name="latent_to_v", **own)


def _cast(b: Builder, x: Value, to: DType, block: str) -> Value:
    if b.type(x).dtype == to:
        return x
    result: Value = b.cast(x, to=to.name, block=block)
    return result


def _widened(b: Builder, weight: Value, to: DType) -> Value:
    """The matrix in the dtype of the queries, because engines store it in this dtype for the absorbed
    form.
    """
    node = b.node(weight.node)
    type = node.results[0]
    if not type.dtype.low:
        return weight
    return b.apply(node.op.typed(type.to(to)), name=f"{node.name}.wide")[0]


def _sparse_eager(of: Latents) -> Callable[..., Any]:
    def pattern(
        p: Any, latents: Value, w_k: Value, w_v: Value, q: Value, q_rope: Value, k_rope: Value, index: Value
    ) -> Any:
        k, v = p.linear(of(p, latents), w_k, w_v, label="expand", results=2)
        scores = p.attention_mask(p.latent_scores(q, q_rope, k, k_rope, label="scores"), label="mask")
        selected = p.select_keys(scores, index, label="select")
        return p.latent_mix(p.softmax(selected, label="softmax"), v, label="mix")

    return pattern


def _sparse_fused(of: Latents) -> Callable[..., Any]:
    def pattern(
        p: Any, latents: Value, w_k: Value, w_v: Value, q: Value, q_rope: Value, k_rope: Value, index: Value
    ) -> Any:
        k, v = p.linear(of(p, latents), w_k, w_v, label="expand", results=2)
        return p.sparse_latent_attention(q, q_rope, k, k_rope, v, index, label="flash")

    return pattern


RULES = tuple(
    Rule(f"absorb-{form.__name__}{of.__name__}", form(of), _absorbed)
    for form in (_eager, _fused, _sparse_eager, _sparse_fused)
    for of in (_narrowed, _plain)
)


@dataclass(frozen=True)
class AbsorbMla(Pass):
    """Move the expansion of keys into the queries of latent attention, and the expansion of values into the
    output.

    Scores are then products of query latents with cached latents, and the cache is never expanded. This saves
    a lot of work for a few new tokens, but costs more for a prompt. The two absorbed matrices are parts of
    the expansion matrix, dequantized to the dtype of the queries. Programs without latent attention are
    unchanged.
    """

    name: ClassVar[str] = "absorb-mla"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once."""
        absorbed = rewrite_graphs(program, RULES)
        return program if absorbed is program else DeadCode()(absorbed)
