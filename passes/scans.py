"""What engines do to scans: the convolution before one ends in its activation, and tokens go in chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llmir.ir.core.graph import Value
from llmir.ir.core.op import Op
from llmir.ir.core.program import Program
from llmir.ir.tools.build import Builder
from llmir.ir.tools.rewrite import Match, Rule


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
    """Those for the scans that a program has."""
    kinds = {type(node.op) for graph in program.graphs.values() for node in graph.nodes}
    scans = {kind.opcode for kind in kinds if kind.chunked is not Op.chunked}
    return CONV, *map(_chunk, sorted(scans))
