"""fuse-attention: replace scores, cap, mask, softmax and mix by FlashAttention.

`rewrite_graphs` applies rules to each graph of a program; other passes also call this function.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from llmir.base import arguments
from llmir.base.dataclass import dataclass
from llmir.base.errors import PassError
from llmir.ir.core.graph import Value
from llmir.ir.core.program import Program
from llmir.ir.ops.attention import AttentionMask, AttentionScores, FlashAttention
from llmir.ir.ops.elementwise import SoftCap
from llmir.ir.ops.latent_attention import LatentScores, SelectKeys
from llmir.ir.ops.sparse_attention import SelectBlocks
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule, rewrite


def _attention(p: Any, q: Value, k: Value, v: Value) -> Any:
    capped = p.soft_cap(p.attention_scores(q, k, label="scores"), label="cap", optional=True)
    masked = p.attention_mask(capped, label="mask", optional=True)
    return p.attention_mix(p.softmax(masked, ..., label="softmax"), v, label="mix")


def _flash(b: Builder, match: Match, q: Value, k: Value, v: Value) -> Any:
    mask = match.op("mask", AttentionMask).mask if "mask" in match.labels else "full"
    how: dict[str, Any] = {"scale": match.op("scores", AttentionScores).scale, "mask": mask}
    how |= {"cap": match.op("cap", SoftCap).cap} if "cap" in match.labels else {}
    sinks, block = match["softmax"].operands[1:], match["mix"].op.block
    return b.flash_attention(q, k, v, *sinks, block=block, name="flash_attention", **how)


def _blocks(p: Any, q: Value, k: Value, v: Value, index: Value) -> Any:
    masked = p.attention_mask(p.attention_scores(q, k, label="scores"), label="mask")
    selected = p.select_blocks(masked, index, label="select")
    return p.attention_mix(p.softmax(selected), v, label="mix")


def _blocks_flash(b: Builder, match: Match, q: Value, k: Value, v: Value, index: Value) -> Any:
    mask, scores = match.op("mask", AttentionMask), match.op("scores", AttentionScores)
    select, block = match.op("select", SelectBlocks), match["mix"].op.block
    how: dict[str, Any] = {"mask": mask.mask, "scale": scores.scale}
    how |= {"length": select.length, "top_k": select.top_k, "local": select.local}
    return b.block_sparse_attention(q, k, v, index, block=block, name="flash_attention", **how)


def _blocks_widened(p: Any, q: Value, k: Value, v: Value, index: Value) -> Any:
    return p.block_sparse_attention(q, p.dequantize(k), p.dequantize(v), index, label="flash")


def _latent(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value, v: Value) -> Any:
    scores = p.attention_mask(p.latent_scores(q, q_rope, k, k_rope, label="scores"), label="mask")
    return p.latent_mix(p.softmax(scores), v, label="mix")


def _latent_flash(
    b: Builder, match: Match, q: Value, q_rope: Value, k: Value, k_rope: Value, v: Value
) -> Any:
    scores, mask = match.op("scores", LatentScores), match.op("mask", AttentionMask)
    how: dict[str, Any] = {"mask": mask.mask, "scale": scores.scale, "block": match["mix"].op.block}
    how |= {"name": "latent_attention"}
    absorbed = v == k  # the latents are both keys and values
    return b.latent_attention(q, q_rope, k, k_rope, *(() if absorbed else (v,)), **how)


def _sparse(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value, v: Value, index: Value) -> Any:
    scores = p.attention_mask(p.latent_scores(q, q_rope, k, k_rope, label="scores"), label="mask")
    return p.latent_mix(p.softmax(p.select_keys(scores, index, label="select")), v, label="mix")


def _sparse_flash(
    b: Builder, match: Match, q: Value, q_rope: Value, k: Value, k_rope: Value, v: Value, index: Value
) -> Any:
    scores, mask = match.op("scores", LatentScores), match.op("mask", AttentionMask)
    select, block = match.op("select", SelectKeys), match["mix"].op.block
    if select.mask != mask.mask:
        return None
    how: dict[str, Any] = {"mask": mask.mask, "scale": scores.scale, "top_k": select.top_k}
    operands = (q, q_rope, k, k_rope, *(() if v == k else (v,)), index)
    return b.sparse_latent_attention(*operands, block=block, name="latent_attention", **how)


def _latent_widened(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value) -> Any:
    return p.latent_attention(q, q_rope, p.dequantize(k), p.dequantize(k_rope), label="flash")


def _rotary_widened_beside_latents(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value) -> Any:
    return p.latent_attention(q, q_rope, k, p.dequantize(k_rope), label="flash")


def _sparse_widened(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value, index: Value) -> Any:
    return p.sparse_latent_attention(q, q_rope, k, p.dequantize(k_rope), index, label="flash")


def _rotary_widened(p: Any, q: Value, q_rope: Value, k: Value, k_rope: Value, v: Value) -> Any:
    return p.latent_attention(q, q_rope, k, p.dequantize(k_rope), v, label="flash")


def _same_reads_narrow(b: Builder, match: Match, *operands: Value) -> Any:
    return b.apply(match["flash"].op, *operands, name=match["flash"].name)[0]


def _widened(p: Any, q: Value, k: Value, v: Value) -> Any:
    return p.flash_attention(q, p.dequantize(k), p.dequantize(v), ..., label="flash")


def _reads_narrow(b: Builder, match: Match, q: Value, k: Value, v: Value) -> Any:
    flash = match["flash"]
    return b.apply(flash.op, q, k, v, *flash.operands[3:], name=flash.name)[0]


# Flash kernels dequantize a low-precision cache while they read it.
RULES = (
    Rule("flash-attention", _attention, _flash),
    Rule("narrow-cache", _widened, _reads_narrow),
    Rule("block-sparse-attention", _blocks, _blocks_flash),
    Rule("narrow-blocks", _blocks_widened, _same_reads_narrow),
    Rule("latent-attention", _latent, _latent_flash),
    Rule("sparse-latent-attention", _sparse, _sparse_flash),
    Rule("narrow-latents", _latent_widened, _same_reads_narrow),
    Rule("narrow-rotary", _rotary_widened, _same_reads_narrow),
    Rule("narrow-latents-rotary", _rotary_widened_beside_latents, _same_reads_narrow),
    Rule("narrow-sparse-rotary", _sparse_widened, _same_reads_narrow),
)


def _any_flash(p: Any, q: Value, k: Value, v: Value) -> Any:
    return p.flash_attention(q, k, v, ..., label="flash")


def _narrows_q(b: Builder, match: Match, q: Value, k: Value, v: Value) -> Any:
    op, operands = match.op("flash", FlashAttention), match["flash"].operands
    wide, cache = b.type(q).dtype, b.type(k).dtype
    if wide.low or not cache.low or cache.kind != "float":
        return None
    narrow = b.quantize(q, to=cache.plain.name, static=True, block=op.block, name=f"quantize_{q.node}")
    op = replace(op, to=wide.name)
    return b.apply(op, narrow, k, v, *operands[3:], name=match["flash"].name)[0]


# Kernels that multiply in 8 bits require q in the cache's dtype. Both q and the cache have calibrated scales.
NARROW_Q = (Rule("narrow-q", _any_flash, _narrows_q),)


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Compute attention without scores in memory, and only for the pairs that the mask allows.

    With `q=fp8`, the pass quantizes q with a static scale if the cache is in fp8, so that the products of
    attention are in fp8. Engines do this with the kernels of FlashAttention-3 and TensorRT-LLM.
    """

    name: ClassVar[str] = "fuse-attention"

    q: str = ""

    def __post_init__(self) -> None:
        if arguments.text("fuse-attention: q", self.q, error=PassError):
            arguments.choice("fuse-attention: q", self.q, ("fp8",), error=PassError)

    def __call__(self, program: Program) -> Program:
        """Apply the rules to each graph."""
        fused = rewrite_graphs(program, RULES)
        found = rewrite_graphs(fused, NARROW_Q) if self.q else fused
        if self.q and found is fused:
            nothing = f"no fused attention of program {program.name!r} reads a cache in fp8"
            raise PassError(f"fuse-attention: q={self.q}, but {nothing}; quantize{{kv=fp8}} before it")
        return found


def rewrite_graphs(program: Program, rules: tuple[Rule, ...]) -> Program:
    """Apply rules to each graph of a program."""
    graphs = {name: rewrite(graph, rules) for name, graph in program.graphs.items()}
    same = all(graph is program.graphs[name] for name, graph in graphs.items())
    return program if same else program.replace(graphs=graphs)
