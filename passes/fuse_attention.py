"""fuse-attention: scores → mask → softmax → mix becomes FlashAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from llmir.build import Builder
from llmir.graph import Program, Value
from llmir.pipeline import Pass
from llmir.rewrite import Match, Rule, rewrite


def _masked(p: Any, q: Value, k: Value, v: Value) -> Any:
    scores = p.attention_scores(q, k, label="scores")
    return p.attention_mix(p.softmax(p.causal_mask(scores)), v, label="mix")


def _unmasked(p: Any, q: Value, k: Value, v: Value) -> Any:
    return p.attention_mix(p.softmax(p.attention_scores(q, k, label="scores")), v, label="mix")


def _flash(opcode: str) -> Any:
    def replacement(b: Builder, match: Match, q: Value, k: Value, v: Value) -> Any:
        scores: Any = match["scores"].op
        block = match["mix"].op.block
        return getattr(b, opcode)(q, k, v, scale=scores.scale, block=block, name="flash_attention")

    return replacement


def _widened(opcode: str) -> Any:
    def pattern(p: Any, q: Value, k: Value, v: Value) -> Any:
        return getattr(p, opcode)(q, p.dequantize(k), p.dequantize(v), label="flash")

    return pattern


def _reads_narrow(b: Builder, match: Match, q: Value, k: Value, v: Value) -> Any:
    flash = match["flash"]
    return b.apply(flash.op, q, k, v, name=flash.name)[0]


# Flash kernels widen a narrow cache as they read it.
RULES = (
    Rule("flash-attention", _masked, _flash("causal_flash_attention")),
    Rule("flash-attention-unmasked", _unmasked, _flash("flash_attention")),
    Rule("narrow-cache", _widened("causal_flash_attention"), _reads_narrow),
    Rule("narrow-cache-unmasked", _widened("flash_attention"), _reads_narrow),
)


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Attention without its scores in memory: reads q, k, v once, and does only the causal half."""

    name: ClassVar[str] = "fuse-attention"

    def __call__(self, program: Program) -> Program:
        """Rewrite each graph once."""
        return rewrite_graphs(program, RULES)


def rewrite_graphs(program: Program, rules: tuple[Rule, ...]) -> Program:
    """`program` with `rules` applied to each of its graphs."""
    graphs = {name: rewrite(graph, rules) for name, graph in program.graphs.items()}
    same = all(graph is program.graphs[name] for name, graph in graphs.items())
    return program if same else program.replace(graphs=graphs)
