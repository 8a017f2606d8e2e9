"""fuse: the fusions that inference engines apply to every model.

Products of q, k, v and of gate, up become one product. Add with norm, activation with multiply, score with
top-k, and rope with the cache write become one kernel each. A convolution before a scan includes its
activation, and Mamba-2 scans run in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, ClassVar

from llmir.base.dataclass import dataclass
from llmir.ir.core.dtype import FP32
from llmir.ir.core.graph import Node, Value
from llmir.ir.core.op import Op
from llmir.ir.core.program import Program
from llmir.ir.ops.elementwise import GatedActivation, GeluMul, GeluTanhMul, SiluMul
from llmir.ir.ops.linear import Linear, merged_einsum
from llmir.ir.ops.moe import GroupedLinear
from llmir.ir.ops.norm import RmsNorm
from llmir.ir.ops.rope import Rope
from llmir.ir.ops.top_k import SigmoidTopK, SoftmaxTopK, SqrtSoftplusTopK, TopK
from llmir.ir.tools.build import Builder
from llmir.ir.tools.pipeline import Pass
from llmir.ir.tools.rewrite import Match, Rule

from .fuse_attention import rewrite_graphs

# Blocks of merged products.
MLPS = frozenset({"mlp", "shared_experts"})
ATTENTION = frozenset({"attention", "linear_attention"})


# --- Scans ---


def _conv_silu(p: Any, x: Value) -> Any:
    y, state = p.causal_conv(x, ..., results=2, label="conv")
    return p.silu(y), state


def _fused_conv(b: Builder, match: Match, x: Value) -> Any:
    conv = match["conv"]
    return b.causal_conv_silu(*conv.operands, block=conv.op.block, name=conv.name)


def _scan(opcode: str) -> Callable[..., Any]:
    def pattern(p: Any, x: Value) -> Any:
        y, state = getattr(p, opcode)(x, ..., results=2, label="scan")
        return y, state

    return pattern


def _in_chunks(b: Builder, match: Match, x: Value) -> Any:
    node = match["scan"]
    chunked = node.op.chunked
    return chunked and b.apply(chunked, *node.operands, name=node.name)


@cache
def _chunk(opcode: str) -> Rule:
    return Rule(f"chunk-{opcode}", _scan(opcode), _in_chunks)


CONV = Rule("conv-silu", _conv_silu, _fused_conv)


def rules(program: Program) -> tuple[Rule, ...]:
    """The rules for the scans that a program has."""
    kinds = {type(node.op) for graph in program.graphs.values() for node in graph.nodes}
    scans = {kind.opcode for kind in kinds if kind.chunked is not Op.chunked}
    return CONV, *map(_chunk, sorted(scans))


# --- Products, norms, activations, routing and rope ---


def _qkv(p: Any, x: Value) -> Any:
    return p.linear(x, ..., label="q"), p.linear(x, ..., label="k"), p.linear(x, ..., label="v")


def _merged_qkv(b: Builder, match: Match, x: Value) -> Any:
    nodes = [match[i] for i in "qkv"]
    gated = nodes[0].op.block in MLPS  # gate, up and their adapters
    return _merge(b, x, nodes, "gate_up_proj" if gated else "qkv_proj")


def _gate_up(p: Any, x: Value) -> Any:
    gate, up = p.linear(x, ..., label="gate"), p.linear(x, ..., label="up")
    return gate, up


def _merged_gate_up(b: Builder, match: Match, x: Value) -> Any:
    one, other = (b.type(match[name].operands[1]) for name in ("gate", "up"))
    if len(one.shape) != len(other.shape):
        return None  # a router, and the gate of a shared expert
    pair = [match["gate"], match["up"]]
    attends = pair[0].op.block in ATTENTION
    return _merge(b, x, pair, _joined(*(node.name for node in pair)) if attends else "gate_up_proj")


def _latent_inputs(p: Any, x: Value) -> Any:
    latent, rope = p.linear(x, ..., label="kv_a", results=2)
    return p.linear(x, ..., label="q_a"), latent, rope


def _merged_latent_inputs(b: Builder, match: Match, x: Value) -> Any:
    """`fused_qkv_a_proj` of vLLM, SGLang and TensorRT-LLM: latents of queries, of keys, and a rotary key."""
    q, kv = match["q_a"], match["kv_a"]
    one, other = q.op_as(Linear), kv.op_as(Linear)
    weights = q.operands[1], *kv.operands[1:]
    types = [b.type(w) for w in weights]
    if one.block not in ATTENTION or len(weights) != 3 or len(q.operands) != 2:
        return None  # biases, which no such model has
    if any(len(t.shape) != 2 or t.dtype.scheme != types[0].dtype.scheme for t in types):
        return None  # a product of heads, such as queries without a latent
    if (one.block, one.to, _sides(one.einsum)[0][0]) != (other.block, other.to, _sides(other.einsum)[0][0]):
        return None
    einsum = merged_einsum(_split_einsum(one.einsum) + _split_einsum(other.einsum))
    return b.apply(replace(one, einsum=einsum), x, *weights, name="qkv_a_proj")


def _split_einsum(einsum: str) -> list[str]:
    """One equation for each result, which has its own weight.

    >>> _split_einsum("b t h, h f, h g -> b t f, b t g")
    ['b t h, h f -> b t f', 'b t h, h g -> b t g']
    """
    (x, *weights), results = _sides(einsum)
    return [f"{x}, {w} -> {r}" for w, r in zip(weights, results, strict=True)]


def _joined(first: str, second: str) -> str:
    """The name of two merged products of attention, such as kv_proj."""
    one, other = first.removesuffix("_proj"), second.removesuffix("_proj")
    return f"{one}{other}_proj" if len(one) == len(other) == 1 else f"{one}_{other}_proj"


def _merge(b: Builder, x: Value, nodes: list[Node], name: str, blocks: bool = False) -> Any:
    """Merge several products of the same kind; None if their blocks, dtypes, terms of x or numbers of biases
    differ.

    With `blocks`, their blocks may differ.
    """
    ops = [node.op_as(Linear) for node in nodes]
    if any(len(n.results) > 1 for n in nodes) or len({_sides(op.einsum)[0][0] for op in ops}) > 1:
        return None
    weights = [n.operands[1] for n in nodes]
    alike = {
        (blocks or op.block, op.to, len(node.operands), b.type(weight).dtype.scheme)
        for op, node, weight in zip(ops, nodes, weights, strict=True)
    }
    if len(alike) > 1:
        return None
    biases = [v for n in nodes for v in n.operands[2:]]
    einsum = merged_einsum(op.einsum for op in ops)
    return b.apply(replace(ops[0], einsum=einsum), x, *weights, *biases, name=name)


def _experts_gate_up(p: Any, x: Value, gate: Value, up: Value, experts: Value) -> Any:
    return (
        p.grouped_linear(x, gate, experts, ..., label="gate"),
        p.grouped_linear(x, up, experts, ..., label="up"),
    )


def _merged_experts(b: Builder, match: Match, x: Value, gate: Value, up: Value, experts: Value) -> Any:
    one, other = match.op("gate", GroupedLinear), match.op("up", GroupedLinear)
    ((rows, first, chosen, *bias), result), ((same_rows, second, same_chosen, *biases), results) = map(
        _sides, (one.einsum, other.einsum)
    )
    schemes = {b.type(w).dtype.scheme for w in (gate, up)}
    alike = one == replace(other, einsum=one.einsum) and (rows, chosen) == (same_rows, same_chosen)
    if not alike or len(schemes) > 1 or len(bias) != len(biases):
        return None
    terms = ", ".join([rows, first, second, chosen, *bias, *biases])
    added = *match["gate"].operands[3:], *match["up"].operands[3:]
    op = replace(one, einsum=f"{terms} -> {result[0]}, {results[0]}")
    return b.apply(op, x, gate, up, experts, *added, name="experts_gate_up")


def _sides(einsum: str) -> tuple[list[str], list[str]]:
    left, right = ([t.strip() for t in side.split(",")] for side in einsum.split("->"))
    return left, right


def _add_norm(p: Any, x: Value, y: Value, w: Value) -> Any:
    total = p.add(x, y)
    return total, p.rms_norm(total, w, label="norm")


def _added_norm(b: Builder, match: Match, x: Value, y: Value, w: Value) -> Any:
    norm = match.op("norm", RmsNorm)
    if norm.over > 1:
        return None
    how: dict[str, Any] = {"eps": norm.eps, "offset": norm.offset, "block": norm.block}
    return b.add_rms_norm(x, y, w, name=f"add_{match['norm'].name}", **how)


def _gated(kind: type[GatedActivation]) -> tuple[Rule, Rule]:
    """An activation and its product with another value, in either order."""

    def act_mul(p: Any, gate: Value, up: Value) -> Any:
        return p.mul(getattr(p, kind.of.opcode)(gate), up, label="mul")

    def mul_act(p: Any, gate: Value, up: Value) -> Any:
        return p.mul(up, getattr(p, kind.of.opcode)(gate), label="mul")

    def fused(b: Builder, match: Match, gate: Value, up: Value) -> Any:
        return b.apply(kind(block=match["mul"].op.block), gate, up, name=kind.opcode)[0]

    name = kind.of.opcode.replace("_", "-")
    return Rule(f"{name}-mul", act_mul, fused), Rule(f"mul-{name}", mul_act, fused)


def _rope_append(p: Any, q: Value, k: Value, v: Value, k_cache: Value, v_cache: Value) -> Any:
    tempered = p.temper(p.rope(q, label="rope"), label="temper", optional=True)
    rotated = p.quantize(tempered, label="narrow", optional=True)
    keys, values = p.append(k_cache, p.rope(k, label="rope_k")), p.append(v_cache, v)
    # Later layers may use keys and values, too.
    return p.flash_attention(rotated, keys, values, ..., label="flash"), keys, values


def _fused_rope_append(
    b: Builder, match: Match, q: Value, k: Value, v: Value, k_cache: Value, v_cache: Value
) -> Any:
    rope, flash = match.op("rope", Rope), match["flash"]
    if match["rope_k"].op != rope:
        return None  # one kernel rotates both equally
    how: dict[str, Any] = {field.name: getattr(rope, field.name) for field in fields(rope)}
    rotated, keys, values = b.rope_append(q, k, v, k_cache, v_cache, name="rope_append", **how)
    for label in ("temper", "narrow"):
        if node := match.labels.get(label):
            (rotated,) = b.apply(node.op, rotated, name=node.name)
    (mixed,) = b.apply(flash.op, rotated, keys, values, *flash.operands[3:], name=flash.name)
    return mixed, keys, values


def _block_inputs(
    p: Any,
    q: Value,
    k: Value,
    v: Value,
    k_cache: Value,
    v_cache: Value,
    index_q: Value,
    index_k: Value,
    index_cache: Value,
) -> Any:
    rotated = p.rope(p.rms_norm(q, ..., label="q_norm"), label="rope")
    narrowed = p.quantize(rotated, label="narrow", optional=True)
    keys = p.append(k_cache, p.rope(p.rms_norm(k, ..., label="k_norm"), label="rope_k"))
    values = p.append(v_cache, v)
    index = p.rope(p.rms_norm(index_q, ..., label="index_q_norm"), label="rope_index_q")
    index_keys = p.append(
        index_cache, p.rope(p.rms_norm(index_k, ..., label="index_k_norm"), label="rope_index_k")
    )
    scores = p.block_scores(index, index_keys, label="scores")
    attention = p.block_sparse_attention(narrowed, keys, values, scores, label="flash")
    return attention, keys, values, index_keys


def _fused_block_inputs(
    b: Builder,
    match: Match,
    q: Value,
    k: Value,
    v: Value,
    k_cache: Value,
    v_cache: Value,
    index_q: Value,
    index_k: Value,
    index_cache: Value,
) -> Any:
    """One kernel before attention to blocks: vLLM's `fused_minimax_m3_qknorm_rope_kv_insert`."""
    names = "q_norm", "k_norm", "index_q_norm", "index_k_norm"
    norms = [match.op(name, RmsNorm) for name in names]
    ropes = [match.op(name, Rope) for name in ("rope", "rope_k", "rope_index_q", "rope_index_k")]
    weights = [match[name].operands[1:] for name in names]
    norm, rope = norms[0], ropes[0]
    if any((n.eps, n.offset, n.over) != (norm.eps, norm.offset, 1) for n in norms):
        return None
    if any(replace(r, block=rope.block) != rope for r in ropes) or any(len(w) != 1 for w in weights):
        return None
    if any(len(b.type(w[0]).shape) != 1 for w in weights):
        return None
    how: dict[str, Any] = {field.name: getattr(rope, field.name) for field in fields(rope)}
    (wq,), (wk,), (index_wq,), (index_wk,) = weights
    operands = q, k, v, k_cache, v_cache, wq, wk, index_q, index_k, index_cache, index_wq, index_wk
    rotated, keys, values, index, index_keys = b.norm_rope_append_index(
        *operands, name="norm_rope_append", eps=norm.eps, offset=norm.offset, **how
    )
    if narrow := match.labels.get("narrow"):
        (rotated,) = b.apply(narrow.op, rotated, name=narrow.name)
    scores, flash = match["scores"], match["flash"]
    (found,) = b.apply(scores.op, index, index_keys, name=scores.name)
    (mixed,) = b.apply(flash.op, rotated, keys, values, found, name=flash.name)
    return mixed, keys, values, index_keys


def _block_products(p: Any, x: Value) -> Any:
    return tuple(p.linear(x, ..., label=name) for name in ("q", "k", "v", "index_q", "index_k"))


def _merged_block_products(b: Builder, match: Match, x: Value) -> Any:
    """Merge the products of attention and of its index into one, as in vLLM's MiniMax-M3."""
    nodes = [match[name] for name in ("q", "k", "v", "index_q", "index_k")]
    blocks = [node.op.block for node in nodes]
    if blocks[0] not in ATTENTION or blocks != [blocks[0]] * 3 + ["indexer"] * 2:
        return None
    return _merge(b, x, nodes, "qkv_index_proj", blocks=True)


def _routes(kind: type[TopK]) -> tuple[Rule, Rule]:
    """Score and choice of experts in one kernel; the logits are in fp32 or are cast to fp32."""
    score = kind.opcode.removesuffix("_top_k")

    def plain(p: Any, logits: Value) -> Any:
        weights, experts = p.top_k(getattr(p, score)(logits), ..., results=2, label="top_k")
        return weights, experts

    def cast(p: Any, logits: Value) -> Any:
        return plain(p, p.cast(logits, to="fp32"))

    def routed(b: Builder, match: Match, logits: Value) -> Any:
        node = match["top_k"]
        if node.results[0].dtype != FP32:
            return None  # engines route in fp32
        return b.apply(
            kind(**{f.name: getattr(node.op, f.name) for f in fields(node.op)}),
            logits,
            *node.operands[1:],
            name=kind.opcode,
        )

    name = f"{score.replace('_', '-')}-route"
    return Rule(f"{name}-fp32", cast, routed), Rule(name, plain, routed)


RULES = (
    Rule("qkv-index", _block_products, _merged_block_products),
    Rule("qkv", _qkv, _merged_qkv),
    Rule("latent-inputs", _latent_inputs, _merged_latent_inputs),
    Rule("gate-up", _gate_up, _merged_gate_up),
    Rule("experts-gate-up", _experts_gate_up, _merged_experts),
    *_routes(SoftmaxTopK),
    *_routes(SigmoidTopK),
    *_routes(SqrtSoftplusTopK),
    *_gated(SiluMul),
    *_gated(GeluMul),
    *_gated(GeluTanhMul),
    Rule("add-norm", _add_norm, _added_norm),
    Rule("rope-append", _rope_append, _fused_rope_append),
    Rule("norm-rope-append-index", _block_inputs, _fused_block_inputs),
)


@dataclass(frozen=True)
class Fuse(Pass):
    """Merge qkv and gate/up, and fuse add+norm, silu·mul, routing, rope+cache write (after fuse-attention),
    scans.

    Convolutions include silu, and scans use the chunk length of kernels.
    """

    name: ClassVar[str] = "fuse"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once, with all rules."""
        return rewrite_graphs(program, (*RULES, *rules(program)))
